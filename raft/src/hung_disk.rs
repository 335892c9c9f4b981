//! A disk that hangs, or fails while nobody waits for it.
//!
//! An error closes the log. Raft learns of it with its next write; a node with nothing to write would go on, and fail the
//! next request. So the node ends at once.
//!
//! A disk that hangs returns no error, and writes nothing. The other nodes commit without one node's disk, even the
//! leader's, and each entry they commit waits in the leader's memory. So a leader whose flush takes longer than an election
//! hands over the leadership, and retries until another node leads. It does so only if the cluster commits without its
//! disk. If a majority of the disks hangs, no entry is committed, little piles up, and an election, which needs a majority
//! of the disks as well, would not help.
//!
//! From the hand-over on this node does not lead in that term: it forwards requests to the new leader. It does not
//! wait for its own Raft to learn of that leader: Raft must first write the new term, and blocks until that is on disk.
//! While its disk hangs, a node does not campaign, leader or not.
//!
//! Meanwhile [`LogStore::is_full`](crate::storage::log_store::LogStore::is_full) bounds what it takes in.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::consensus::ELECTION_MS;
use crate::reads::leader_is;
use crate::replica::Replica;

/// A flush that takes longer than any election does.
const HANGS: Duration = Duration::from_millis(ELECTION_MS.end);
/// How often flushes are checked.
const LOOK: Duration = Duration::from_millis(100);
/// How long one hand-over may take before the next attempt.
const HAND_OVER: Duration = Duration::from_millis(2 * ELECTION_MS.end);

/// Watches the flushes of this node; returns when Raft has stopped, or the log is closed, which is a `fault`.
pub(crate) async fn watch(shared: Arc<Replica>, fault: watch::Sender<Option<String>>) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut hangs = false;
    loop {
        ticks.tick().await;
        if let Some(error) = shared.log.failure() {
            fault.send_replace(Some(error));
            return;
        }
        let flushing = shared.log.flushing();
        if hangs != (flushing > HANGS) {
            hangs = !hangs;
            shared.raft.runtime_config().elect(!hangs);
            match hangs {
                true => tracing::warn!("the disk hangs: a flush of the log has taken {flushing:?} so far"),
                false => tracing::info!("the disk works again: the flush of the log has ended"),
            }
        }
        if hangs && shared.hand_over_for_disk().await.is_none() {
            return;
        }
    }
}

impl Replica {
    /// Hands over if this node leads and the others commit without its disk. `None` when Raft has stopped.
    async fn hand_over_for_disk(&self) -> Option<()> {
        // Raft may be blocked, and its metrics long outdated.
        self.raft.with_raft_state(|_| ()).await.ok()?;
        let led = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let own = metrics.replication.as_ref().and_then(|matched| *matched.get(&self.id)?);
            (metrics.cluster_committed > own).then_some(metrics.current_term)
        };
        let (Some(term), Some(to)) = (led.filter(|_| self.raft.is_leader()), self.successor()) else {
            return Some(());
        };
        tracing::warn!(to, "handing over the leadership, because the disk of this node hangs");
        self.given_up.set(term, to);
        self.leading.end();
        self.raft.trigger().transfer_leader(to).await.ok()?;
        let handed = leader_is(&self.raft, |now| now != Some(self.id));
        if timeout(HAND_OVER, handed).await.is_err() {
            tracing::warn!(to, "no other node took over the leadership in time, as far as this node knows");
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use ringfence_wire::LeaseId;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::Handle;
    use crate::members::tests::{Cluster, SOON, acquire, grant, until};
    use crate::propose::proposer::Failure;

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
}
