use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_wire::LeaseId;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::Handle;
use crate::members::tests::{Cluster, SOON, acquire, grant, until};
use crate::propose::proposal::Failure;

/// How late the timers of this thread have been since this was made: nodes that share it lose their leader by that.
fn lateness() -> impl Fn() -> Duration {
    const NAP: Duration = Duration::from_millis(10);
    let worst = Arc::new(AtomicU64::new(0));
    let weak = Arc::downgrade(&worst);
    tokio::spawn(async move {
        while let Some(worst) = weak.upgrade() {
            let slept = Instant::now();
            sleep(NAP).await;
            let late = slept.elapsed().saturating_sub(NAP);
            worst.fetch_max(u64::try_from(late.as_millis()).unwrap(), Ordering::Relaxed);
        }
    });
    move || Duration::from_millis(worst.load(Ordering::Relaxed))
}

fn has(handle: &Handle, lease: u128) -> bool {
    handle.view(|table| table.lease(None, LeaseId::from_u128(lease).unwrap(), None).is_ok())
}

#[test]
fn a_leader_is_idle_for_as_long_as_it_gets_on_with_nothing_for_no_reason_but_itself() {
    let begun = Instant::now();
    let mut idleness = Idleness::default();
    let mut look = |after, reached: Option<u64>| {
        let waits = reached.map(|index| Some(crate::consensus::log_id(1, index)));
        idleness.look(waits, begun + Duration::from_millis(after)).as_millis()
    };
    assert_eq!([look(0, Some(7)), look(100, Some(7)), look(900, Some(7))], [0, 100, 900]);
    // Slow disks: it gets on now and then.
    assert_eq!([look(1_000, Some(8)), look(1_900, Some(8)), look(2_000, Some(9))], [0, 900, 0]);
    // The others do not work all the while, or nothing waits.
    assert_eq!([look(3_900, Some(9)), look(4_000, None), look(4_100, Some(9))], [1_900, 0, 0]);
    assert_eq!(look(6_100, Some(9)), 2_000);
}

/// It logged the same every two seconds for as long as it did not hear the next leader.
#[test]
fn who_is_not_replaced_asks_more_and_more_rarely_and_logs_that_once() {
    let mut now = Instant::now();
    let mut asked = Asked::first(now);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let before = asked.at;
        asked = loop {
            now += Duration::from_millis(100);
            if let Some(next) = asked.next(now) {
                break next;
            }
        };
        pauses.push(((now - before).as_secs(), asked.is_second()));
    }
    let longest = MOST_PATIENCE.as_secs();
    assert_eq!(pauses[..2], [(2, true), (4, false)]);
    assert_eq!(pauses[2..], [(9, false), (longest, false), (longest, false), (longest, false)]);
}

/// A hung disk once let a leader's memory grow without bound, because the others committed without it.
#[tokio::test]
async fn a_leader_whose_disk_hangs_hands_over_and_comes_back_when_it_goes_on() {
    let cluster = Box::pin(Cluster::start(3)).await;
    grant(&cluster.handle(1), 1).await;
    let hung = cluster.handle(1).status().leader.unwrap();
    let (old, other) = (cluster.handle(hung), cluster.handle(hung % 3 + 1));
    let before = old.status().term;
    let go_on = old.shared.log.hang();
    for lease in 2..10 {
        grant(&other, lease).await;
    }
    until("another leads", async || other.status().leader.is_some_and(|leader| leader != hung)).await;
    let (status, late) = (other.status(), lateness());
    for lease in 10..20 {
        grant(&other, lease).await;
    }
    // What the old one is asked it passes on, though Raft stands still there.
    grant(&old, 20).await;
    until("it says that it leads no more", async || old.leads().borrow().is_none()).await;
    sleep(2 * HANGS).await;
    grant(&other, 21).await;
    // A machine that stands still deposes leaders, too.
    if late() < Duration::from_millis(ELECTION_MS.start / 2) {
        assert_eq!((other.status().term, other.status().leader), (status.term, status.leader));
    }
    assert!(status.term > before);

    drop(go_on);
    until("the old leader has caught up", async || (1..=21).all(|lease| has(&old, lease))).await;
    until("it follows the new leader", async || old.status().leader == other.status().leader).await;
    // It may be elected again.
    cluster.lead(hung).await;
    grant(&other, 22).await;
    until("it has applied the last grant", async || has(&old, 22)).await;
}

/// A leader of an idle cluster once learned half a minute later that its log was closed, from a request that failed.
#[tokio::test]
async fn a_node_ends_when_its_log_is_closed_though_it_has_nothing_to_write() {
    let cluster = Box::pin(Cluster::start(1)).await;
    cluster.handle(1).shared.log.fail();
    let reason = timeout(SOON, cluster.nodes[&1].failed()).await.unwrap();
    assert!(reason.contains("the log is closed by an error"), "{reason}");
}

#[tokio::test]
async fn a_leader_without_another_waits_for_its_disk_and_takes_no_more_than_there_is_room_for() {
    let cluster = Box::pin(Cluster::start(1)).await;
    let handle = cluster.handle(1);
    grant(&handle, 1).await;
    let go_on = handle.shared.log.hang();
    handle.shared.log.fill();
    let refused = handle.shared.proposer.propose(vec![acquire(2)].into()).await;
    assert!(matches!(refused, Err(Failure::Rejected(_))), "{refused:?}");
    assert!(!has(&handle, 2));
    drop(go_on);
    grant(&handle, 2).await;
    until("there is room again", async || !handle.shared.log.is_full()).await;
    grant(&handle, 3).await;
}

#[tokio::test]
async fn a_follower_whose_disk_hangs_takes_no_more_than_there_is_room_for_and_comes_back() {
    let cluster = Box::pin(Cluster::start(3)).await;
    grant(&cluster.handle(1), 1).await;
    let leader = cluster.handle(1).status().leader.unwrap();
    let (leader, follower) = (cluster.handle(leader), cluster.handle(leader % 3 + 1));
    until("the follower has the first grant", async || has(&follower, 1)).await;
    let go_on = follower.shared.log.hang();
    follower.shared.log.fill();
    let last = follower.status().last_log_index;
    for lease in 2..30 {
        grant(&leader, lease).await;
    }
    sleep(2 * HANGS).await;
    assert_eq!(follower.status().last_log_index, last);
    drop(go_on);
    until("it has caught up", async || (1..30).all(|lease| has(&follower, lease))).await;
}
