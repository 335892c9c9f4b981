use super::scene::{change, key, lease, view};
use super::*;
use ChangeName::{Ended, Granted, Queued};

#[test]
fn the_states_of_a_key_follow_from_its_changes() {
    let mut history = History::default();
    history.end.changes = vec![
        change(3, 1, Granted, Some(3), 3),
        change(4, 2, Queued, None, 3),
        change(6, 1, Ended, Some(3), 7),
        change(7, 2, Granted, Some(7), 7),
        change(9, 2, Ended, Some(7), 10),
    ];
    let plain = Plain::of(&history);
    let facts = Facts::of(&plain);
    let line = facts.log.known_line(&key()).unwrap();
    let fences: Vec<u64> = (0..11).map(|revision| line.fence(revision)).collect();
    assert_eq!(fences, [1, 2, 3, 3, 3, 3, 7, 7, 7, 10, 11]);
    for fence in 1..11 {
        let from_fences = (0..11).filter(|&r| fences[r as usize] == fence);
        let told: Vec<u64> = line.with_fence(fence).take_while(|&r| r < 11).collect();
        assert_eq!(from_fences.collect::<Vec<_>>(), told, "fence {fence}");
    }
    let step = line.at(5);
    assert_eq!((step.newest, step.holders, step.waiters), (Some(3), 1, 1));
    assert_eq!((line.life(3), line.life(7), line.life(8)), (3..6, 7..9, 0..0));
    let stages = facts.lives[&lease(2)].stages.iter().map(|stage| (stage.during.clone(), stage.token));
    assert_eq!(stages.collect::<Vec<_>>(), [(4..7, None), (7..9, Some(Token(7)))]);
    assert!(facts.log.has(9) && !facts.log.has(10));
}

#[test]
fn holders_from_before_the_log_are_known_where_the_key_was_read_in_the_end() {
    let mut history = History::default();
    history.end.changes_after = Revision(5);
    history.end.changes = vec![change(6, 1, Ended, Some(2), 4)];
    assert!(
        Facts::of(&Plain::of(&history)).log.known_line(&key()).is_none(),
        "another one may hold it all the time"
    );
    history.end.keys = vec![view(6, 4, &[4], 0)];
    let plain = Plain::of(&history);
    let facts = Facts::of(&plain);
    let line = facts.log.known_line(&key()).unwrap();
    assert_eq!((line.at(5).holders, line.fence(5), line.fence(6)), (2, 2, 4));
    assert!(!facts.log.has(4));
}
