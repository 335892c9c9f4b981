//! A majority serves: what is asked of its nodes is done, not only what is asked of the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use ringfence_raft::NodeId;

use super::super::World;
use super::health::Quorum;
use crate::network::Latency;

/// How long a majority of nodes may serve nobody while a quorum is well, in milliseconds.
const SERVES_WITHIN: u64 = 5_000;
/// The same, while a voter is down, or messages or flushes may take longer than [`FAST`], and for as long afterwards: an election takes
/// several of both, and others if it needs every node that is left.
const SLOWLY: u64 = 15_000;
/// In milliseconds.
const FAST: u64 = 30;
/// How often the nodes of a quorum are asked, in milliseconds.
const ASK_EVERY: u64 = 1_000;

/// What findings of this law begin with.
pub(crate) const NOBODY_SERVES: &str = "a majority serves nobody";

/// When the nodes of a quorum last answered a read.
#[derive(Default)]
pub(super) struct Served {
    at: BTreeMap<NodeId, u64>,
    answers: Arc<Mutex<BTreeSet<NodeId>>>,
    ask_at: u64,
    /// When a voter was last down, or messages or flushes slow.
    slow_at: u64,
}

impl World {
    /// Asks all voters that run, once a quorum is well: the leader need not be of that quorum.
    pub(super) fn look_at_served(&mut self, quorum: Option<&Quorum>) {
        let are_up = self.alive.voters.iter().flatten().all(|id| self.handle(*id).is_some());
        let served = &mut self.alive.served;
        let answers =
            std::mem::take(&mut *served.answers.lock().expect("nothing panics while the answers are locked"));
        served.at.extend(answers.into_iter().map(|node| (node, self.now)));
        let Latency { most, spikes, .. } = self.network.latency();
        if !are_up || spikes > 0 || most.max(self.flush.1) > FAST {
            served.slow_at = self.now;
        }
        let within = if self.now.saturating_sub(served.slow_at) < SLOWLY { SLOWLY } else { SERVES_WITHIN };
        let Some(quorum) = quorum else { return };
        let since = quorum.since.max(self.alive.caught_up_at);
        let is_served = |id: &NodeId| {
            self.now.saturating_sub(served.at.get(id).copied().unwrap_or(0).max(since)) <= within
        };
        let is_majority = |of: &BTreeSet<NodeId>| 2 * of.iter().filter(|id| is_served(id)).count() > of.len();
        if !self.alive.voters.iter().all(is_majority) {
            let statuses = self.statuses();
            self.findings
                .push(format!("{NOBODY_SERVES}, though nodes {:?} are well: {statuses}", quorum.nodes));
        }
        if self.now < self.alive.served.ask_at {
            return;
        }
        self.alive.served.ask_at = self.now + ASK_EVERY;
        let voters: BTreeSet<NodeId> = self.alive.voters.iter().flatten().copied().collect();
        for node in voters {
            let answers = Arc::clone(&self.alive.served.answers);
            self.spawn_on(node, |handle| async move {
                if handle.linearize().await.is_ok() {
                    answers.lock().expect("nothing panics while the answers are locked").insert(node);
                }
            });
        }
    }
}
