use std::cmp::Ordering;

use ringfence_wire::Revision;

use super::sorted::{At, Sorted};

/// When a lease may end, in milliseconds, and its number.
pub(crate) type Deadline = (u64, Revision);

/// Places in the order of their deadlines, which are not stored here: each method takes a function that tells the deadline of a place.
///
/// An entry has eight bytes: the place, and a hint that spares most looks at the deadline.
#[derive(Debug)]
pub(crate) struct Deadlines<P>(Sorted<(u32, P)>);

/// It counts in units of 16 ms, so that it sorts as the deadline does. It is the same for all deadlines beyond two years of cluster time:
/// these are all compared.
fn hint((ms, _): &Deadline) -> u32 {
    u32::try_from(ms >> 4).unwrap_or(u32::MAX)
}

impl<P> Default for Deadlines<P> {
    fn default() -> Self {
        Self(Sorted::default())
    }
}

impl<P: Copy> Deadlines<P> {
    /// Puts all in order much faster than one insert after the other; `None` if a deadline comes twice.
    pub(crate) fn of(all: impl Iterator<Item = (Deadline, P)>) -> Option<Self> {
        let mut all: Vec<_> = all.collect();
        all.sort_unstable_by_key(|(deadline, _)| *deadline);
        let is_unique = all.is_sorted_by(|(one, _), (next, _)| one != next);
        is_unique.then(|| Self(Sorted::of(all.iter().map(|(deadline, place)| (hint(deadline), *place)))))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn first(&self) -> Option<P> {
        self.0.first().map(|&(_, place)| place)
    }

    /// Adds a deadline that is not in yet.
    pub(crate) fn insert(&mut self, deadline: &Deadline, place: P, deadline_at: impl Fn(P) -> Deadline) {
        if let Err(at) = self.search(deadline, deadline_at) {
            self.0.insert(at, (hint(deadline), place));
        }
    }

    /// Removes a deadline that its place still has.
    pub(crate) fn remove(&mut self, deadline: &Deadline, deadline_at: impl Fn(P) -> Deadline) {
        if let Ok(at) = self.search(deadline, deadline_at) {
            self.0.remove(at);
        }
    }

    fn search(&self, deadline: &Deadline, deadline_at: impl Fn(P) -> Deadline) -> Result<At, At> {
        let sought = hint(deadline);
        self.0.search(|&(hint, place)| match hint.cmp(&sought) {
            Ordering::Equal => deadline_at(place).cmp(deadline),
            unequal => unequal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_sort_by_time_and_then_by_number_however_far_off() {
        const FAR: u64 = 1 << 40;
        // Many in the same milliseconds, near ones and such as are beyond all hints, the later numbers first.
        let deadlines: Vec<Deadline> = (1..=3_000)
            .map(|n| ((n * 7 % 11) * 5 + if n % 2 == 0 { FAR } else { 0 }, Revision(3_001 - n)))
            .collect();
        let deadline_at = |place: usize| deadlines[place];
        let mut one_by_one = Deadlines::default();
        for (place, deadline) in deadlines.iter().enumerate() {
            one_by_one.insert(deadline, place, deadline_at);
            if place % 5 == 0 {
                one_by_one.remove(deadline, deadline_at);
            }
        }
        let kept = deadlines.iter().copied().zip(0..).filter(|(_, place)| place % 5 != 0);
        let mut expected: Vec<_> = kept.clone().map(|(deadline, _)| deadline).collect();
        expected.sort_unstable();
        for mut index in [Deadlines::of(kept).unwrap(), one_by_one] {
            assert_eq!(index.len(), expected.len());
            for deadline in &expected {
                let first = index.first().unwrap();
                assert_eq!(deadline_at(first), *deadline);
                index.remove(deadline, deadline_at);
            }
            assert_eq!(index.first(), None);
        }
    }
}
