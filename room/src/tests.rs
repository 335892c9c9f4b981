use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures_util::FutureExt;

use super::*;

fn is_empty<O: Owner, H>(room: &Room<O, H>) -> bool {
    let State { taken, revocable, .. } = &mut *room.state();
    taken.all() == 0 && taken.owners() == 0 && taken.greediest().is_none() && revocable.is_empty()
}

/// Portions of `amount` that an owner gets until it is refused.
fn most<O: Owner>(room: &Arc<Room<O>>, owner: O, amount: usize) -> Vec<Portion<O>> {
    std::iter::from_fn(|| room.take(owner.clone(), amount)).collect()
}

#[test]
fn one_owner_leaves_room_for_others_and_gives_back_what_it_took() {
    let room = Room::new(Bound::of(160));
    let first = most(&room, "greedy", 1);
    assert_eq!(first.len(), 60);
    assert!(room.take("greedy", 1).is_none());
    let second = most(&room, "modest", 1);
    assert_eq!(second.len(), 30);
    drop((first, second));
    assert!(is_empty(&room));
    assert_eq!(most(&room, "modest", 1).len(), 60);
}

/// Eighteen owners that took all they could once left nothing for anybody.
#[test]
fn fifty_greedy_owners_leave_little_for_fifty_others() {
    let room = Room::new(Bound::of(64 << 20));
    let taken: Vec<_> = (0..50).flat_map(|owner| most(&room, owner, 256 << 10)).collect();
    assert!(taken.len() > 100);
    for owner in 50..100 {
        let two = [(); 2].map(|()| room.take(owner, 32 << 10).map(std::mem::forget));
        assert_eq!(two, [Some(()); 2], "{owner}");
    }
    let rest: Vec<_> = (100..1_000).flat_map(|owner| most(&room, owner, 32 << 10)).collect();
    assert!(room.state().taken.all() <= 64 << 20 && rest.len() > 100);
}

#[test]
fn the_owner_that_has_most_loses_its_oldest_portions_first() {
    let room = Room::new(Bound::of(100));
    let portion = |owner: &'static str, amount| {
        let holder = Arc::new(AtomicBool::new(false));
        let mut portion = room.revocable(owner, &holder, |holder| holder.store(true, Relaxed));
        portion.grow(amount);
        (holder, portion)
    };
    let mut few = portion("few", 30);
    let mut many: Vec<_> = (0..5).map(|_| portion("many", 20)).collect();
    let revoked: Vec<_> = many.iter().map(|(holder, _)| holder.load(Relaxed)).collect();
    assert_eq!(revoked, [true, true, false, false, false]);
    assert_eq!(many[0].1.grow(1_000), 90, "it counts no more");
    assert!(!few.0.load(Relaxed));
    assert_eq!(few.1.grow(40), 60);
    assert!(few.0.load(Relaxed), "it has most now");
    drop((few, many));
    assert!(is_empty(&room));
}

#[tokio::test]
async fn the_next_one_is_given_when_there_is_room_and_owners_take_turns() {
    let room = Room::<_>::new(Bound::of(10));
    let mut first = room.wait("many", 9).now_or_never().unwrap();
    let second = room.wait("many", 9).now_or_never().expect("there was some room");
    let mut waits: Vec<_> = (0..3).map(|_| Box::pin(room.wait("many", 9))).collect();
    let mut few = Box::pin(room.wait("few", 20));
    assert!(
        waits.iter_mut().all(|wait| wait.now_or_never().is_none()) && (&mut few).now_or_never().is_none()
    );
    drop(second);
    let third = (&mut waits[0]).now_or_never().expect("the first of those that wait");
    drop(third);
    let few = few.now_or_never().expect("an owner with fewer is next");
    assert!((&mut waits[1]).now_or_never().is_none());
    assert_eq!(first.grow(0), 29);
    drop(few);
    assert_eq!(first.grow(2), 20, "the next one has begun");
    drop(first);
    assert!((&mut waits[1]).now_or_never().is_some());
}

#[tokio::test]
async fn a_waiter_that_goes_away_takes_nothing() {
    let room = Room::<_>::new(Bound::of(1));
    let first = room.wait("a", 5).now_or_never().unwrap();
    let mut gone: Vec<_> = (0..10_000).map(|_| Box::pin(room.wait("a", 5))).collect();
    for wait in &mut gone {
        assert!(wait.now_or_never().is_none());
    }
    // What it waits for was given, but it has not seen that.
    drop(first);
    assert_eq!(room.state().taken.all(), 5);
    drop(gone);
    assert!(is_empty(&room));
    assert!(room.wait("a", 5).now_or_never().is_some());
}
