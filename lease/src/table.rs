use ringfence_mutant::{Mutant, is};
use ringfence_wire::{Key, LeaseId, Revision};

use crate::deadlines::Deadlines;
use crate::ended::Ended;
use crate::ids::Ids;
use crate::lease::Lease;
use crate::limits::{Limits, REVISION_END};
use crate::line::Line;
use crate::lines::Lines;
use crate::slots::{Slot, Slots};
use crate::{Command, Event, Outcome, Refusal};

mod acquire;
mod change;
mod detach;
mod due;
mod fences;
mod frozen;
mod reader;
mod release;
mod renew;
mod restore;
mod revoke;
mod snapshot;
mod view;

pub use fences::Fence;
pub use frozen::FrozenTable;
#[cfg(test)]
pub(crate) use reader::RecordReader;
pub use restore::RestoreError;
#[cfg(test)]
pub(crate) use snapshot::{LeaseRecord, Record, write_records};
pub use view::LeaseState;

/// Who holds what, who waits for what, and who did until lately.
#[derive(Debug, Default)]
pub struct LeaseTable {
    at_ms: u64,
    /// Where the numbering was started.
    first_revision: Revision,
    revision: Revision,
    /// Every lease that is live or waits.
    leases: Slots<Lease>,
    by_id: Ids<Slot>,
    /// The live ones by the end of their time-to-live.
    live: Deadlines,
    /// The others by the end of their wait.
    waiting: Deadlines,
    lines: Lines,
    ended: Ended,
    /// How much may yet be done in this entry to let waiters in.
    grants_left: usize,
    pub(crate) limits: Limits,
}

impl LeaseTable {
    /// An empty table, not started: revision 0, time 0.
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Applies one entry of the log: time goes on to `at_ms` (it never goes back), what is due then ends, waiters are granted
    /// that earlier entries let in and left over, and the commands run in their order. Answers one outcome per command; the changes are pushed to `events` in the order
    /// of their revisions.
    pub fn apply(&mut self, at_ms: u64, commands: Vec<Command>, events: &mut Vec<Event>) -> Vec<Outcome> {
        self.at_ms = self.at_ms.max(at_ms);
        self.ended.forget(self.at_ms, self.limits.ends + commands.len());
        self.grants_left = self.limits.grants;
        self.end_what_is_due(events);
        self.let_in(events);
        commands.into_iter().map(|command| self.run(command, events)).collect()
    }

    /// Cluster time, in milliseconds.
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// The number of the latest change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The revision that the numbering of changes was started at: with it, clusters that share a Redis tell which of
    /// them is the newer.
    pub fn first_revision(&self) -> Revision {
        self.first_revision
    }

    /// Whether the numbering was started, or anything was numbered.
    pub fn started(&self) -> bool {
        self.revision > Revision(0)
    }

    /// How many leases are live.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// How many leases wait.
    pub fn waiters(&self) -> usize {
        self.waiting.len()
    }

    /// How many ended ids are remembered.
    pub fn remembered(&self) -> usize {
        self.ended.len()
    }

    /// How many keys are held or waited for.
    pub fn keys_len(&self) -> usize {
        self.lines.len()
    }

    fn run(&mut self, command: Command, events: &mut Vec<Event>) -> Outcome {
        match command {
            Command::Start { revision } => self.start(revision),
            Command::Acquire(acquire) => self.acquire(*acquire, events),
            Command::Renew { lease_id, ttl } => self.renew(lease_id, ttl),
            Command::Release { lease_id } => self.release(lease_id, events),
            Command::Revoke { key, token } => self.revoke(&key, token, events),
            Command::Detach { lease_id, attachment } => self.detach(lease_id, attachment, events),
        }
    }

    /// A revision that no token could follow below 2^53 starts nothing.
    fn start(&mut self, revision: Revision) -> Outcome {
        if (!self.started() || is(Mutant::TokensStartAnew)) && revision.0 < REVISION_END {
            self.first_revision = revision;
            self.revision = revision;
        }
        Outcome::Done
    }

    /// The slot and the lease with this id, live or waiting.
    fn find(&self, id: LeaseId) -> Option<(Slot, &Lease)> {
        let slot = self.by_id.get(id, |slot| self.leases.get(slot).id)?;
        Some((slot, self.leases.get(slot)))
    }

    fn line(&self, key: &Key) -> Option<Line<'_>> {
        self.lines.get(key, &self.leases)
    }

    /// What to say of an id that is neither live nor waits.
    fn refusal(&self, id: LeaseId) -> Refusal {
        self.ended.get(id).map_or(Refusal::Unknown, Refusal::from)
    }
}
