use std::cmp::Ordering;

use ringfence_wire::{LeaseId, Revision};

use super::sorted::{At, Sorted};

/// Finds places by a key that is not stored here: each method takes a function that tells the key of a place.
///
/// An entry has eight bytes: the place, and a hint that spares most looks at the key.
#[derive(Debug)]
pub(crate) struct Index<P>(Sorted<(u32, P)>);

/// A key of an [`Index`], which sorts by the hint and then by the key itself.
pub(crate) trait Hinted: Ord {
    /// Whether hints are spread evenly, so that a hint tells about where in its leaf a key is.
    const EVEN: bool;

    /// Four bytes that mostly differ where keys differ. It never shows outside.
    fn hint(&self) -> u32;
}

/// Any bits do that differ from id to id, also between ids that are made from the time. A client that makes ids with
/// the same hint on purpose only causes comparisons.
impl Hinted for LeaseId {
    const EVEN: bool = true;

    fn hint(&self) -> u32 {
        let bits = self.to_u128();
        let folded = (bits >> 64) as u64 ^ bits as u64;
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

/// A deadline in milliseconds, and the number of its lease. The hint counts in units of 16 ms, so that it sorts as the
/// deadline does. It is the same for all deadlines beyond two years of cluster time: these are all compared.
impl Hinted for (u64, Revision) {
    const EVEN: bool = false;

    fn hint(&self) -> u32 {
        u32::try_from(self.0 >> 4).unwrap_or(u32::MAX)
    }
}

impl<P> Default for Index<P> {
    fn default() -> Self {
        Self(Sorted::default())
    }
}

impl<P: Copy> Index<P> {
    /// Builds an index much faster than one insert after the other; `None` if a key comes twice.
    pub(crate) fn of<K: Hinted>(all: impl Iterator<Item = (K, P)>) -> Option<Self> {
        let mut all: Vec<_> = all.map(|(key, place)| (key.hint(), key, place)).collect();
        all.sort_unstable_by(|(hint, key, _), (other_hint, other, _)| {
            hint.cmp(other_hint).then_with(|| key.cmp(other))
        });
        let is_unique = all.is_sorted_by(|(_, one, _), (_, next, _)| one != next);
        is_unique.then(|| Self(Sorted::of(all.into_iter().map(|(hint, _, place)| (hint, place)))))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn first(&self) -> Option<P> {
        self.0.first().map(|&(_, place)| place)
    }

    pub(crate) fn get<K: Hinted>(&self, key: &K, key_at: impl Fn(P) -> K) -> Option<P> {
        let at = self.search(key, key_at).ok()?;
        Some(self.0.get(at).1)
    }

    /// Adds a key that is not in yet.
    pub(crate) fn insert<K: Hinted>(&mut self, key: &K, place: P, key_at: impl Fn(P) -> K) {
        if let Err(at) = self.search(key, key_at) {
            self.0.insert(at, (key.hint(), place));
        }
    }

    /// Removes a key that its place still has.
    pub(crate) fn remove<K: Hinted>(&mut self, key: &K, key_at: impl Fn(P) -> K) {
        if let Ok(at) = self.search(key, key_at) {
            self.0.remove(at);
        }
    }

    fn search<K: Hinted>(&self, key: &K, key_at: impl Fn(P) -> K) -> Result<At, At> {
        let sought = key.hint();
        let order = |&(hint, place): &(u32, P)| match hint.cmp(&sought) {
            Ordering::Equal => key_at(place).cmp(key),
            unequal => unequal,
        };
        if !K::EVEN {
            return self.0.search(order);
        }
        self.0.search_near(order, |&(first, _), next| {
            let next = next.map_or(u32::MAX, |&(next, _)| next);
            sought.saturating_sub(first) as f32 / next.saturating_sub(first).max(1) as f32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(bits: u128) -> LeaseId {
        LeaseId::from_u128(bits).unwrap()
    }

    #[test]
    fn ids_with_the_same_hint_are_told_apart() {
        // The halves of each are the same but for the lowest bits of both: all fold to the same.
        let ids: Vec<LeaseId> = (1..2_000).map(|n| id((n << 64) | n)).collect();
        assert!(ids.iter().all(|id| id.hint() == ids[0].hint()));
        let id_at = |place: usize| ids[place];
        let mut some = Index::default();
        for (place, id) in ids.iter().enumerate().filter(|(place, _)| place % 3 != 0) {
            some.insert(id, place, id_at);
        }
        for (place, id) in ids.iter().enumerate().filter(|(place, _)| place % 3 == 1) {
            assert_eq!(some.get(id, id_at), Some(place));
            some.remove(id, id_at);
        }
        for (place, id) in ids.iter().enumerate() {
            assert_eq!(some.get(id, id_at), (place % 3 == 2).then_some(place));
        }
        assert_eq!(some.len(), ids.len() / 3);
    }

    #[test]
    fn a_bulk_load_finds_what_inserts_find() {
        // As ids made from the time: first a million of milliseconds, then a few random bits.
        let ids: Vec<LeaseId> = (1..3_000).map(|n| id((n << 80) | (n * 0x9e37_79b9 % 1_009))).collect();
        let id_at = |place: usize| ids[place];
        let all = Index::of(ids.iter().copied().zip(0..)).unwrap();
        let mut one_by_one = Index::default();
        ids.iter().zip(0..).for_each(|(id, place)| one_by_one.insert(id, place, id_at));
        for (place, id) in ids.iter().enumerate() {
            assert_eq!((all.get(id, id_at), one_by_one.get(id, id_at)), (Some(place), Some(place)));
        }
        assert!(Index::of(ids.iter().chain(&ids[7..8]).copied().zip(0..)).is_none(), "one id comes twice");
    }

    #[test]
    fn deadlines_sort_by_time_and_then_by_number_however_far_off() {
        const FAR: u64 = 1 << 40;
        // Many in the same milliseconds, near ones and such as are beyond all hints, the later numbers first.
        let deadlines: Vec<(u64, Revision)> = (1..=3_000)
            .map(|n| ((n * 7 % 11) * 5 + if n % 2 == 0 { FAR } else { 0 }, Revision(3_001 - n)))
            .collect();
        let deadline_at = |place: usize| deadlines[place];
        let mut one_by_one = Index::default();
        for (place, deadline) in deadlines.iter().enumerate() {
            one_by_one.insert(deadline, place, deadline_at);
            if place % 5 == 0 {
                one_by_one.remove(deadline, deadline_at);
            }
        }
        let kept = deadlines.iter().copied().zip(0..).filter(|(_, place)| place % 5 != 0);
        let mut expected: Vec<_> = kept.clone().map(|(deadline, _)| deadline).collect();
        expected.sort_unstable();
        for mut index in [Index::of(kept).unwrap(), one_by_one] {
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
