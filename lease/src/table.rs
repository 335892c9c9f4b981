use ringfence_wire::{LeaseId, PrincipalName, Revision, Token};

use crate::limits::{Limits, REVISION_END};
use crate::rules::{FIRST, OWNERS, VALUES};
use crate::store::{Known, Store};
use crate::{Command, Event, Outcome, Owner, Refusal, Request};

mod acquire;
mod change;
mod conditional;
mod end;
mod fences;
mod frozen;
mod list;
mod names;
mod renew;
mod restore;
mod room;
mod snapshot;
mod view;

pub use conditional::Found;
pub use fences::Fence;
pub use frozen::FrozenTable;
pub use list::Sieve;
pub use names::was_of_another_name;
#[cfg(test)]
pub(crate) use restore::RecordReader;
pub use snapshot::RestoreError;
#[cfg(test)]
pub(crate) use snapshot::{LeaseRecord, Record, write_records};
pub use view::LeaseState;

/// Who holds which keys, who waits for them, and which leases ended lately.
#[derive(Debug)]
pub struct LeaseTable {
    rules: u8,
    at_ms: u64,
    first_revision: Revision,
    revision: Revision,
    store: Store,
    /// The most bytes that all leases may take.
    max_bytes: u64,
    /// How much more this entry may do to let waiters in.
    grants_left: usize,
    pub(crate) limits: Limits,
}

/// An empty table that is not started, under the first rules: revision 0, time 0.
impl Default for LeaseTable {
    fn default() -> Self {
        Self {
            rules: FIRST,
            at_ms: 0,
            first_revision: Revision(0),
            revision: Revision(0),
            store: Store::default(),
            max_bytes: u64::MAX,
            grants_left: 0,
            limits: Limits::of(FIRST),
        }
    }
}

impl LeaseTable {
    /// As [`LeaseTable::default`].
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// As [`Self::apply_requests`], for commands of nobody in particular.
    pub fn apply(&mut self, at_ms: u64, commands: Vec<Command>, events: &mut Vec<Event>) -> Vec<Outcome> {
        self.apply_requests(at_ms, vec![commands.into()], events)
    }

    /// Applies one entry of the log: advances the time to `at_ms` (it never goes back), ends what is due, grants waiters
    /// that earlier entries left over, and runs the commands of the requests in order. Returns one outcome per command, and
    /// appends the changes to `events` in the order of their revisions.
    pub fn apply_requests(
        &mut self,
        at_ms: u64,
        requests: Vec<Request>,
        events: &mut Vec<Event>,
    ) -> Vec<Outcome> {
        let count = requests.iter().map(|request| request.commands.len()).sum();
        self.at_ms = self.at_ms.max(at_ms);
        self.store.spaces_mut().forget(self.at_ms, self.limits.ends + count);
        self.grants_left = self.limits.grants;
        self.end_what_is_due(events);
        self.let_in(events);
        let mut outcomes = Vec::with_capacity(count);
        for Request { by, commands } in requests {
            let owner = by.as_ref().filter(|_| self.rules >= OWNERS);
            let commands = commands.into_iter();
            outcomes.extend(commands.map(|command| self.run(owner, command, events)));
        }
        outcomes
    }

    /// Limits about how many bytes all leases take. Every replica calls this before the same entry.
    pub fn limit_bytes(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
    }

    /// Decides by `rules` from now on, if they are newer than those so far. Every replica calls this before the same entry of
    /// the log. Any number of versions may be skipped: what each of them changed is asked for one by one.
    pub fn raise_rules(&mut self, rules: u8) {
        if rules > self.rules {
            self.rules = rules;
            self.limits = Limits::of(rules);
        }
    }

    /// Raises the revision to `floor`, if the numbering was started. Every replica calls this before the same entry. The
    /// revisions between are no changes, and nobody gets them as tokens. Ignores a floor that leaves less than half of all
    /// revisions below 2^53: no clock that is right gives one.
    pub fn raise_revision(&mut self, floor: Revision) {
        if self.started() && floor.0 < REVISION_END / 2 {
            self.revision = self.revision.max(floor);
        }
    }

    /// The version of the rules in use.
    pub fn rules(&self) -> u8 {
        self.rules
    }

    /// Cluster time, in milliseconds.
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// The number of the latest change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The revision at which the numbering started. Clusters that share a Redis compare it to tell which is newer.
    pub fn first_revision(&self) -> Revision {
        self.first_revision
    }

    /// Whether the numbering was started, or anything was numbered.
    pub fn started(&self) -> bool {
        self.revision > Revision(0)
    }

    /// The number of live leases.
    pub fn live(&self) -> usize {
        self.store.live()
    }

    /// The number of waiting leases.
    pub fn waiters(&self) -> usize {
        self.store.waiting()
    }

    /// The number of ended ids that are remembered.
    pub fn remembered(&self) -> usize {
        self.store.spaces().remembered()
    }

    /// About how many bytes all leases take.
    pub fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// How many they may take; `None` if that is not limited.
    pub fn max_bytes(&self) -> Option<u64> {
        Some(self.max_bytes).filter(|max_bytes| *max_bytes < u64::MAX)
    }

    /// The number of keys that are held or waited for.
    pub fn keys_len(&self) -> usize {
        self.store.keys()
    }

    fn run(&mut self, owner: Option<&Owner>, command: Command, events: &mut Vec<Event>) -> Outcome {
        let by = owner.map(|owner| &owner.name);
        match command {
            Command::Start { revision } => self.start(revision),
            Command::Acquire(acquire) => self.acquire(owner, *acquire, events),
            Command::Renew { lease_id, ttl } => self.renew(by, lease_id, ttl),
            Command::Release { lease_id } => self.release(by, lease_id, events),
            Command::Revoke { key, token } => self.revoke(&key, token, events),
            Command::Detach { lease_id, attachment } => self.detach(by, lease_id, attachment, events),
            Command::Conditional(_) | Command::TakeBack { .. } if self.rules < VALUES => {
                Outcome::Refused(Refusal::NotYet { rules: self.rules, since: VALUES })
            }
            Command::TakeBack { lease_id, attachment } => self.take_back(by, lease_id, attachment, events),
            Command::Conditional(conditional) => {
                self.conditional(owner, *conditional, events).unwrap_or_else(Outcome::Refused)
            }
        }
    }

    /// Ignores a revision that leaves no room for tokens below 2^53.
    fn start(&mut self, revision: Revision) -> Outcome {
        if !self.started() && revision.0 < REVISION_END {
            self.first_revision = revision;
            self.revision = revision;
        }
        Outcome::Done
    }

    /// The token that the next grant would have.
    fn next_token(&self) -> Token {
        self.revision.next().into()
    }

    /// The refusal for an id that is neither live nor waiting.
    fn refusal(&self, by: Option<&PrincipalName>, id: LeaseId) -> Refusal {
        match self.store.find(by, id) {
            Known::Ended(end) => end.into(),
            Known::Active(_) | Known::Nothing => Refusal::Unknown,
        }
    }
}
