//! One node's replica: the table, Raft, and who leads as far as this node knows.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Instant as _, RaftMetrics, ServerState};
use ringfence_wire::{Key, Revision};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::applied::state_machine::Raft;
use crate::applied::table::Applied;
use crate::consensus::{Consensus, ELECTION_MS, NodeId};
use crate::peer::Peers;
use crate::propose::proposer::Proposer;
use crate::reads::Reads;
use crate::storage::log_store::LogStore;
use crate::time::leading::Leading;

/// After this long without an acknowledgement by a quorum, a leader no longer calls itself one. A follower that has heard nothing from it
/// for as long does not name it, either. There may be a new leader.
const LEADER_LOST: Duration = Duration::from_millis(ELECTION_MS.end + ELECTION_MS.start);
/// A member that acknowledged nothing for so long takes over no leadership, and gets no vote.
pub(crate) const HEARD: Duration = LEADER_LOST;

/// What the tasks and handles of a node share.
pub(crate) struct Replica {
    pub(crate) id: NodeId,
    pub(crate) raft: Raft,
    pub(crate) applied: Applied,
    pub(crate) leading: Arc<Leading>,
    pub(crate) proposer: Proposer,
    pub(crate) log: LogStore,
    pub(crate) reads: Reads,
    pub(crate) peers: Arc<Peers>,
    pub(crate) mirror: OnceLock<Box<dyn MirrorView>>,
    /// Held while this node changes the members.
    pub(crate) changing: tokio::sync::Mutex<()>,
    pub(crate) given_up: GivenUp,
    /// Whether this node is cut off: see `fitness`.
    pub(crate) cut_off: watch::Sender<bool>,
    pub(crate) leader_url: LeaderUrl,
}

/// The URL of the leader's HTTP listener, and when the Raft thread last said so. Every response has it, so it is read without a lock,
/// which a thread that hangs could have.
#[derive(Debug, Default)]
pub(crate) struct LeaderUrl(ArcSwapOption<(Arc<String>, Instant)>);

impl LeaderUrl {
    fn publish(&self, url: Option<String>) {
        self.0.store(url.map(|url| Arc::new((Arc::new(url), Instant::now()))));
    }

    /// `None` also if that was said too long ago: the Raft thread hangs, and another node may lead.
    pub(crate) fn get(&self) -> Option<Arc<String>> {
        let said = self.0.load_full().filter(|said| said.1.elapsed() < LEADER_LOST)?;
        Some(Arc::clone(&said.0))
    }
}

/// What publishes this node's fences while it leads, as far as the other nodes need to know it.
pub trait MirrorView: Send + Sync {
    /// Whether the mirror shows what `revision` changed on `keys`, or a newer state. Waits for it for a bounded time.
    fn has<'a>(
        &'a self,
        keys: &'a [Key],
        revision: Revision,
    ) -> std::pin::Pin<Box<dyn Future<Output = bool> + Send + 'a>>;
}

/// The last term in which this node gave up its leadership because it was not fit to lead, and its successor.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    /// 0: none yet. Raft's first leader has term 1.
    term: AtomicU64,
    to: AtomicU64,
}

impl GivenUp {
    pub(crate) fn set(&self, term: u64, to: NodeId) {
        self.to.store(to, Ordering::Relaxed);
        self.term.store(term, Ordering::Release);
    }

    /// Whether it is this term.
    pub(crate) fn is(&self, term: u64) -> bool {
        self.term.load(Ordering::Acquire) == term
    }
}

impl Replica {
    /// Looks at Raft's metrics. They are locked meanwhile: `look` must not look at them a second time.
    pub(crate) fn metrics<R>(&self, look: impl FnOnce(&RaftMetrics<Consensus>) -> R) -> R {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        look(&metrics)
    }

    /// Who leads, as far as this node knows: itself with a quorum behind it, or the leader that it followed just now. Raft
    /// does not forget a leader before there is another.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        if let Some(to) = self.handed_to() {
            return Some(to);
        }
        // Where most requests arrive, this node leads.
        if self.is_acknowledged(LEADER_LOST) {
            return Some(self.id);
        }
        let leader = self.raft.server_metrics().borrow_watched().current_leader?;
        let leads = match leader == self.id {
            true => self.has_quorum(LEADER_LOST),
            false => self.peers.directory.followed_within(LEADER_LOST),
        };
        leads.then_some(leader)
    }

    /// Publishes the URL of who leads now. To be called on the Raft thread.
    pub(crate) fn publish_leader(&self) {
        self.leader_url.publish(self.leader().and_then(|leader| self.peers.directory.url(leader)));
    }

    /// Whether this node leads, and a quorum acknowledged it within the last while. A lone voter is its own quorum.
    pub(crate) fn has_quorum(&self, within: Duration) -> bool {
        let is_alone = || self.leads_in().is_some() && self.raft.voter_ids().all(|voter| voter == self.id);
        self.is_acknowledged(within) || is_alone()
    }

    /// openraft may date an acknowledgement too late, by up to the time that the answer travelled (`docs/openraft.md`). Use this only to
    /// decide where to send requests.
    fn is_acknowledged(&self, within: Duration) -> bool {
        self.metrics(|metrics| {
            let acknowledged = metrics.last_quorum_acked.filter(|_| metrics.state == ServerState::Leader);
            acknowledged.is_some_and(|at| at.elapsed() < within)
        })
    }

    /// The term in which this node leads, as far as Raft has said. The vote alone does not say it: a restarted leader still
    /// has its own vote.
    pub(crate) fn leads_in(&self) -> Option<u64> {
        self.metrics(|metrics| (metrics.state == ServerState::Leader).then_some(metrics.current_term))
    }

    /// The successor that this node handed over to because it was not fit to lead, until Raft here knows a later term.
    pub(crate) fn handed_to(&self) -> Option<NodeId> {
        if self.given_up.is(0) {
            return None;
        }
        let term = self.leads_in()?;
        self.given_up.is(term).then(|| self.given_up.to.load(Ordering::Relaxed))
    }

    pub(crate) fn voters(&self) -> BTreeSet<NodeId> {
        self.raft.voter_ids().collect()
    }

    /// Those that vote once a change in progress is finished.
    pub(crate) fn coming_voters(&self) -> BTreeSet<NodeId> {
        self.metrics(|metrics| {
            metrics.membership_config.membership().get_joint_config().last().cloned().unwrap_or_default()
        })
    }

    /// This node. If it leads, also the members that acknowledged what it sent `within` this time.
    pub(crate) fn heard(&self, within: Duration) -> BTreeSet<NodeId> {
        self.metrics(|metrics| {
            let acknowledged = metrics.heartbeat.iter().flatten();
            let heard = acknowledged.filter(|(_, sent)| sent.is_some_and(|sent| sent.elapsed() < within));
            heard.map(|(id, _)| *id).chain([self.id]).collect()
        })
    }

    /// Of the other voters that stay and are heard, the one with the most of the log; `None` if there is none, or this node
    /// does not lead.
    pub(crate) fn successor(&self) -> Option<NodeId> {
        let may_lead = &self.coming_voters() & &self.heard(HEARD);
        self.metrics(|metrics| {
            let others = metrics.replication.as_ref()?.iter();
            let others = others.filter(|(id, _)| **id != self.id && may_lead.contains(id));
            others.max_by_key(|(_, matched)| **matched).map(|(id, _)| *id)
        })
    }

    /// Hands the leadership to `to`. Whether another node leads within that time.
    pub(crate) async fn hand_over(&self, to: NodeId, within: Duration) -> bool {
        tracing::info!(to, "handing over the leadership");
        let handed = async {
            if self.raft.trigger().transfer_leader(to).await.is_err() {
                return;
            }
            while self.leader().is_none_or(|leader| leader == self.id) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = timeout(within, handed).await.is_ok();
        if !in_time {
            tracing::warn!(to, "no other node took over the leadership in time");
        }
        in_time
    }
}

pub(crate) fn is_majority(of: &BTreeSet<NodeId>, voters: &BTreeSet<NodeId>) -> bool {
    2 * voters.intersection(of).count() > voters.len()
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// A node whose Raft thread hung named a leader that was dead, for as long.
    #[tokio::test(start_paused = true)]
    async fn a_leader_is_not_named_once_the_thread_hangs_that_says_who_leads() {
        let url = LeaderUrl::default();
        let publish = || url.publish(Some("http://leader.test".to_owned()));
        publish();
        advance(LEADER_LOST / 2).await;
        publish();
        advance(LEADER_LOST / 2).await;
        assert!(url.get().is_some());
        advance(LEADER_LOST / 2).await;
        assert_eq!(url.get(), None);
    }
}
