use std::collections::BTreeMap;

use ringfence_wire::Revision;

use crate::lease::Lease;
use crate::slots::Slot;

/// Leases by (deadline, number): the order in which they end. One such list holds the live leases, one the waiters.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(BTreeMap<(u64, Revision), Slot>);

impl Deadlines {
    /// The list of these leases, much faster than one by one.
    pub(crate) fn of<'a>(leases: impl Iterator<Item = (&'a Lease, Slot)>) -> Self {
        Self(leases.map(|(lease, slot)| ((lease.deadline_ms, lease.number), slot)).collect())
    }

    pub(crate) fn insert(&mut self, lease: &Lease, slot: Slot) {
        self.0.insert((lease.deadline_ms, lease.number), slot);
    }

    /// Takes the lease out; before its deadline or its number change.
    pub(crate) fn remove(&mut self, lease: &Lease) {
        self.0.remove(&(lease.deadline_ms, lease.number));
    }

    /// The first lease whose deadline is past at `now_ms`: it lies before `now_ms`.
    pub(crate) fn first_past(&self, now_ms: u64) -> Option<Slot> {
        let (&(deadline_ms, _), &slot) = self.0.first_key_value()?;
        (now_ms > deadline_ms).then_some(slot)
    }

    /// The smallest time at which a deadline is past.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        let (&(deadline_ms, _), _) = self.0.first_key_value()?;
        deadline_ms.checked_add(1)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
