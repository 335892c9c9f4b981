use std::cmp::Ordering;

use crate::lease::Lease;
use crate::slots::{Slot, Slots};
use crate::sorted::Sorted;

/// Leases by (deadline, number): the order in which they end. One such list holds the live leases, one the waiters.
///
/// It keeps eight bytes for each: the slot, and a hint that spares most looks at the lease itself.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(Sorted<(u32, Slot)>);

impl Deadlines {
    /// The list of these leases, much faster than one by one.
    pub(crate) fn of<'a>(leases: impl Iterator<Item = (Slot, &'a Lease)>) -> Self {
        let mut all: Vec<_> = leases.map(|(slot, lease)| (lease.deadline_ms, lease.number, slot)).collect();
        all.sort_unstable_by_key(|&(deadline_ms, number, _)| (deadline_ms, number));
        Self(Sorted::of(all.into_iter().map(|(deadline_ms, _, slot)| (hint(deadline_ms), slot))))
    }

    pub(crate) fn insert(&mut self, slot: Slot, leases: &Slots<Lease>) {
        let lease = leases.get(slot);
        if let Err(at) = self.0.search(order(lease, leases)) {
            self.0.insert(at, (hint(lease.deadline_ms), slot));
        }
    }

    /// Takes the lease out; before its deadline or its number change.
    pub(crate) fn remove(&mut self, slot: Slot, leases: &Slots<Lease>) {
        if let Ok(at) = self.0.search(order(leases.get(slot), leases)) {
            self.0.remove(at);
        }
    }

    /// The first lease whose deadline is past at `now_ms`: it lies before `now_ms`.
    pub(crate) fn first_past(&self, now_ms: u64, leases: &Slots<Lease>) -> Option<Slot> {
        let &(_, slot) = self.0.first()?;
        leases.get(slot).is_past(now_ms).then_some(slot)
    }

    /// The smallest time at which a deadline is past.
    pub(crate) fn next_due_ms(&self, leases: &Slots<Lease>) -> Option<u64> {
        let &(_, slot) = self.0.first()?;
        leases.get(slot).deadline_ms.checked_add(1)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

fn order(sought: &Lease, leases: &Slots<Lease>) -> impl FnMut(&(u32, Slot)) -> Ordering {
    let by_end = |lease: &Lease| (lease.deadline_ms, lease.number);
    let (sought_hint, sought) = (hint(sought.deadline_ms), by_end(sought));
    move |&(hint, slot)| hint.cmp(&sought_hint).then_with(|| by_end(leases.get(slot)).cmp(&sought))
}

/// The deadline in units of 16 ms. It is the same for all that lie beyond two years of cluster time: then all of them
/// are looked at.
fn hint(deadline_ms: u64) -> u32 {
    u32::try_from(deadline_ms >> 4).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{LeaseId, Metadata, Revision, Ttl};

    use super::*;
    use crate::claims::Claims;

    fn lease(deadline_ms: u64, number: u64) -> Lease {
        let id = LeaseId::from_u128(number.into()).unwrap();
        let mut lease = Lease::new(id, Claims::new(Vec::new()), Ttl::default(), None, Metadata::default());
        (lease.deadline_ms, lease.number) = (deadline_ms, Revision(number));
        lease
    }

    #[test]
    fn leases_end_by_deadline_and_then_by_number_however_far_off() {
        const FAR: u64 = 1 << 40;
        let mut leases = Slots::default();
        let mut expected = Vec::new();
        let mut deadlines = Deadlines::default();
        for n in 1..=3_000_u64 {
            // Many in the same milliseconds, near ones and such as are beyond all hints, the later numbers first.
            let number = 3_001 - n;
            let deadline_ms = (n * 7 % 11) * 5 + if n % 2 == 0 { FAR } else { 0 };
            let slot = leases.insert(lease(deadline_ms, number));
            deadlines.insert(slot, &leases);
            if n % 5 == 0 {
                deadlines.remove(slot, &leases);
            } else {
                expected.push((deadline_ms, number));
            }
        }
        expected.sort_unstable();
        let listed = expected.iter().map(|&(deadline_ms, number)| (deadline_ms, Revision(number)));
        let live = leases.iter().filter(|(_, lease)| lease.number.0 % 5 != 1);
        for mut deadlines in [Deadlines::of(live), deadlines] {
            assert_eq!(deadlines.len(), expected.len());
            for (deadline_ms, number) in listed.clone() {
                assert_eq!(deadlines.next_due_ms(&leases), Some(deadline_ms + 1));
                assert_eq!(deadlines.first_past(deadline_ms, &leases), None);
                let first = deadlines.first_past(deadline_ms + 1, &leases).unwrap();
                assert_eq!(leases.get(first).number, number);
                deadlines.remove(first, &leases);
            }
            assert_eq!((deadlines.first_past(u64::MAX, &leases), deadlines.len()), (None, 0));
        }
    }
}
