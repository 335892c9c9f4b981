//! Counts what is applied.

use metrics::{Counter, counter};
use ringfence_lease::{Change, Event};
use ringfence_wire::EndReason;

/// Where it is counted: looked up once.
pub(crate) struct Tally {
    commands: Counter,
    released: Counter,
    expired: Counter,
    revoked: Counter,
    abandoned: Counter,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let ended = |reason: &'static str| counter!("ringfence_lease_end_total", "reason" => reason);
        Self {
            commands: counter!("ringfence_raft_commands_applied_total"),
            released: ended("released"),
            expired: ended("expired"),
            revoked: ended("revoked"),
            abandoned: ended("abandoned"),
        }
    }

    /// So many commands are applied, for the first time or again after a restart.
    pub(crate) fn applied(&self, commands: usize) {
        self.commands.increment(commands as u64);
    }

    /// A lease changed by an entry that this node proposed. Every node applies every end, some of them again after a
    /// restart; so each is counted once, and the sum over all nodes is that of the cluster.
    pub(crate) fn changed(&self, event: &Event) {
        if let Change::Ended(reason) = event.change {
            let counter = match reason {
                EndReason::Released => &self.released,
                EndReason::Expired => &self.expired,
                EndReason::Revoked => &self.revoked,
                EndReason::Abandoned => &self.abandoned,
            };
            counter.increment(1);
        }
    }
}
