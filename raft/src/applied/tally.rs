//! Metrics of applied entries.

use metrics::Counter;
use ringfence_lease::{Change, Event};
use ringfence_wire::EndReason;

use crate::measure::{COMMANDS_APPLIED, LEASE_ENDS};

/// The counters, looked up once.
pub(crate) struct Tally {
    commands: Counter,
    released: Counter,
    expired: Counter,
    revoked: Counter,
    abandoned: Counter,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            commands: COMMANDS_APPLIED.get(),
            released: LEASE_ENDS.of("released"),
            expired: LEASE_ENDS.of("expired"),
            revoked: LEASE_ENDS.of("revoked"),
            abandoned: LEASE_ENDS.of("abandoned"),
        }
    }

    /// Counts applied commands, replays after a restart included.
    pub(crate) fn applied(&self, commands: usize) {
        self.commands.increment(commands as u64);
    }

    /// Counts the end of a lease. Call it only for entries that this node proposed: then the sum over all nodes counts each
    /// end once.
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
