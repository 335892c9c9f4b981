use ringfence_wire::{EndReason, Key, Mode, Revision};

use super::LeaseTable;
use crate::lease::Lease;
use crate::store::{End, Slot};
use crate::{Change, Event};

/// Every change of the table. Each takes the next revision and makes one event.
impl LeaseTable {
    /// Grants a new lease, which must fit all its keys.
    pub(super) fn grant(&mut self, mut lease: Lease, events: &mut Vec<Event>) -> Slot {
        lease.grant(self.next_revision(), self.at_ms);
        self.insert(lease, Change::Granted, events)
    }

    /// Puts a new lease at the tail of the queues of all its keys. Its deadline is the end of its wait.
    pub(super) fn enqueue(&mut self, mut lease: Lease, events: &mut Vec<Event>) -> Slot {
        lease.begin_wait(self.next_revision(), self.at_ms);
        self.insert(lease, Change::Queued, events)
    }

    /// Ends a lease, live or waiting, and lets waiters in. [`EndReason::Expired`] means for a waiter that its wait is over.
    pub(super) fn end(&mut self, slot: Slot, reason: EndReason, events: &mut Vec<Event>) {
        self.next_revision();
        let lease = self.store.remove(slot);
        let (end, change) = match (lease.waits(), reason) {
            (false, _) => (End::Gone(reason), Change::Ended(reason)),
            (true, EndReason::Expired) => (End::TimedOut, Change::Left(None)),
            (true, _) => (End::Gone(reason), Change::Left(Some(reason))),
        };
        let event = self.event(&lease, change);
        self.store.remember(lease.space, lease.id, end, self.at_ms, self.limits.remembered);
        events.push(event);
        self.let_in(events);
    }

    /// Admits waiters to the keys that they have come to fit, first come first, and grants those that are admitted on all
    /// their keys. One entry does only so much of it, so that no apply stalls the node. The rest stays ready for the next
    /// entry, and nobody overtakes it.
    pub(super) fn let_in(&mut self, events: &mut Vec<Event>) {
        while self.grants_left > 0
            && let Some(slot) = self.store.admit_next()
        {
            self.grants_left -= 1;
            let lease = self.store.get(slot);
            if lease.is_admitted() && !lease.is_past(self.at_ms) {
                self.grants_left = self.grants_left.saturating_sub(lease.keys.len());
                let token = self.next_revision();
                self.store.grant(slot, token, self.at_ms);
                events.push(self.event(self.store.get(slot), Change::Granted));
            }
        }
    }

    fn insert(&mut self, lease: Lease, change: Change, events: &mut Vec<Event>) -> Slot {
        let slot = self.store.insert(lease);
        events.push(self.event(self.store.get(slot), change));
        slot
    }

    fn next_revision(&mut self) -> Revision {
        self.revision = self.revision.next();
        self.revision
    }

    /// The event of the change that was just made to `lease`. Nobody else held its exclusive keys, so after its end their
    /// fence is the next token: no look at the key is needed.
    fn event(&self, lease: &Lease, change: Change) -> Event {
        let fence = |key: &Key, mode| match (change, mode) {
            (Change::Granted, _) => self.fence_of(lease, key, mode),
            (Change::Ended(_), Mode::Exclusive) => self.next_token(),
            _ => self.fence(key),
        };
        Event {
            revision: self.revision,
            lease_id: lease.id,
            by: self.store.owner(lease).cloned(),
            change,
            token: lease.token(),
            keys: lease.keys.iter().map(|(key, mode)| (key.clone(), *mode, fence(key, *mode))).collect(),
            holder: lease.holder.clone(),
        }
    }
}
