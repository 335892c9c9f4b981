use std::collections::{BTreeMap, BTreeSet};

use ringfence_wire::{EndReason, Key, LeaseId, Metadata, Mode, PrincipalName, Token, Ttl};

use super::LeaseTable;
use super::room::Room;
use crate::keys::Keys;
use crate::lease::Lease;
use crate::owner::SpaceNo;
use crate::steps::step;
use crate::store::{Known, Slot};
use crate::{Condition, Conditional, Event, KeyChange, Outcome, Owner, Refusal, Value};

/// The state of a key, as a requester sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// An acquire that tries once would get it, exclusively.
    Free,
    /// It would not.
    Taken {
        /// How long one of its holders' leases lives unless renewed, in milliseconds. `None`: only waiters block the key.
        expires_in_ms: Option<u64>,
    },
    /// A lease of the requester with a value holds it.
    Own {
        /// The token of the lease.
        token: Token,
        /// Its handle.
        lease_id: LeaseId,
        /// Its value.
        value: Value,
        /// Its deadline, in milliseconds of cluster time.
        until_ms: u64,
        /// The time until then, in milliseconds.
        expires_in_ms: u64,
        /// Whether its client may not know it yet.
        is_untold: bool,
    },
}

/// A change that can be done, after those before it.
enum Step {
    Acquire(Lease),
    Keep(Slot),
    Expire(Slot, Ttl),
    End(Slot),
}

/// The changes that can be done, in their order, and the state of the keys after them.
struct Plan<'a> {
    table: &'a LeaseTable,
    by: Option<&'a PrincipalName>,
    steps: Vec<Step>,
    /// The keys that changes end or acquire. True if the key has no holder then.
    is_free: BTreeMap<Key, bool>,
    /// The ids of the new leases.
    ids: BTreeSet<LeaseId>,
    room: Room,
}

/// **All or nothing.** First the conditions are checked, then each change as if those before it were done. Only then are the changes
/// done, and none can fail: an end lets waiters in, but a key that is acquired has no waiters.
impl LeaseTable {
    /// The state of `key`, as `by` sees it. `now_ms`: a cluster time that is not ahead of the leader's.
    pub fn found(&self, by: Option<&PrincipalName>, key: &Key, now_ms: u64) -> Found {
        if self.is_free(key) {
            return Found::Free;
        }
        let holder = self.holders(key).next().map(|(holder, _)| holder);
        let left = |holder: &Lease| holder.expires_in_ms(now_ms.max(self.at_ms));
        match holder.and_then(|holder| self.own(by, key, holder.number.into())) {
            Some((_, lease, value)) => Found::Own {
                token: lease.number.into(),
                lease_id: lease.id,
                value: value.clone(),
                until_ms: lease.deadline_ms,
                expires_in_ms: left(lease),
                is_untold: lease.attachment().is_some(),
            },
            None => Found::Taken { expires_in_ms: holder.map(left) },
        }
    }

    pub(super) fn conditional(
        &mut self,
        owner: Option<&Owner>,
        conditional: Conditional,
        events: &mut Vec<Event>,
    ) -> Result<Outcome, Refusal> {
        let by = owner.map(|owner| &owner.name);
        let mut conditions = conditional.conditions().iter().inspect(|_| step());
        if let Some((key, _)) = conditions.find(|(key, condition)| !self.holds(by, key, condition)) {
            return Err(Refusal::Changed { key: key.clone() });
        }
        let steps = self.plan(owner, conditional.into_changes())?;
        let space = match steps.iter().any(|step| matches!(step, Step::Acquire(_))) {
            true => self.store.spaces_mut().open(by).ok_or(Refusal::Full)?,
            false => SpaceNo::default(),
        };
        let mut grants = Vec::new();
        for step in steps {
            match step {
                Step::Acquire(mut lease) => {
                    lease.space = space;
                    let slot = self.grant(lease, events);
                    grants.push(self.grant_of(self.store.get(slot), Some(self.at_ms)));
                }
                Step::Keep(slot) => self.store.edit(slot, |lease| lease.attach(None)),
                Step::Expire(slot, ttl) => self.store.edit(slot, |lease| lease.expire(ttl, self.at_ms)),
                Step::End(slot) => self.end(slot, EndReason::Released, events),
            }
        }
        Ok(Outcome::Changed(grants))
    }

    fn plan(&self, owner: Option<&Owner>, changes: Vec<KeyChange>) -> Result<Vec<Step>, Refusal> {
        let mut plan = Plan {
            table: self,
            by: owner.map(|owner| &owner.name),
            steps: Vec::with_capacity(changes.len()),
            is_free: BTreeMap::new(),
            ids: BTreeSet::new(),
            room: self.room(owner),
        };
        changes.into_iter().inspect(|_| step()).try_for_each(|change| plan.add(change))?;
        Ok(plan.steps)
    }

    fn holds(&self, by: Option<&PrincipalName>, key: &Key, condition: &Condition) -> bool {
        match *condition {
            Condition::Free => self.is_free(key),
            Condition::Taken => matches!(self.found(by, key, 0), Found::Taken { .. }),
            Condition::Held { token, until_ms } => self
                .own(by, key, token)
                .is_some_and(|(_, lease, _)| until_ms.is_none_or(|until_ms| lease.deadline_ms == until_ms)),
        }
    }

    fn is_free(&self, key: &Key) -> bool {
        self.store.lock(key).is_none_or(|lock| lock.fits(Mode::Exclusive))
    }

    /// The lease with a value that holds `key` with this token, if `by` owns it. A principal does not own a lease without an
    /// owner. Over HTTP, it could change one by its id, but conditionals name no ids.
    fn own(&self, by: Option<&PrincipalName>, key: &Key, token: Token) -> Option<(Slot, &Lease, &Value)> {
        let slot = self.store.lock(key)?.holder(token)?;
        let lease = self.store.get(slot);
        let is_own = self.store.owner(lease) == by;
        is_own.then_some((slot, lease, lease.value()?))
    }
}

impl<'a> Plan<'a> {
    fn add(&mut self, change: KeyChange) -> Result<(), Refusal> {
        let step = match change {
            KeyChange::Acquire { key, lease_id, ttl, value, holder, attachment } => {
                let keys = Keys::new(vec![(key.clone(), Mode::Exclusive)]);
                let mut lease = Lease::new(lease_id, keys, ttl, holder, Metadata::default());
                lease.attach(Some(attachment));
                lease.set_value(value);
                self.acquire(&key, &mut lease)?;
                self.is_free.insert(key, false);
                self.ids.insert(lease_id);
                Step::Acquire(lease)
            }
            KeyChange::Keep { key, token } => Step::Keep(self.own(&key, token)?.0),
            KeyChange::Expire { key, token, ttl } => Step::Expire(self.own(&key, token)?.0, ttl),
            KeyChange::End { key, token } => {
                let (slot, lease) = self.own(&key, token)?;
                self.room.give_back(lease);
                self.is_free.insert(key, true);
                Step::End(slot)
            }
        };
        self.steps.push(step);
        Ok(())
    }

    /// Checks that a new lease would be granted, and takes its room.
    fn acquire(&mut self, key: &Key, lease: &mut Lease) -> Result<(), Refusal> {
        match self.table.store.find(self.by, lease.id) {
            Known::Active(_) => return Err(Refusal::Mismatch),
            Known::Ended(end) => return Err(end.into()),
            Known::Nothing if self.ids.contains(&lease.id) => return Err(Refusal::Mismatch),
            Known::Nothing => {}
        }
        let fits = self.table.store.share_text_and_fits(&mut lease.keys);
        let waiters = self.table.longest_queue(lease);
        match self.is_free.get(key) {
            Some(true) if waiters == 0 => {}
            Some(_) => return Err(Refusal::Held { holders: Vec::new(), waiters: waiters as u64 }),
            None if fits => {}
            None => return Err(self.table.held(lease, waiters)),
        }
        self.room.take(lease, false)
    }

    /// The live lease that a change names, unless an earlier change has ended it.
    fn own(&self, key: &Key, token: Token) -> Result<(Slot, &'a Lease), Refusal> {
        let own = self.table.own(self.by, key, token).filter(|_| !self.is_free.contains_key(key));
        own.map(|(slot, lease, _)| (slot, lease)).ok_or(Refusal::NotLive)
    }
}
