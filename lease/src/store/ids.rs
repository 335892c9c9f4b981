use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use ringfence_wire::LeaseId;

/// Finds places by the ids of leases, which are not stored here: each method takes a function that tells the id of a place.
///
/// It is a hash table in parts, of which one is divided in two whenever they are full on average (linear hashing: Litwin, 1980), and two
/// are joined when all are half full on average. So no change moves more than two parts. Clients choose the ids, but do not know the hashes,
/// which are others on each node: nothing depends on their order.
#[derive(Debug)]
pub(crate) struct Ids<P> {
    /// Never empty.
    parts: Vec<HashTable<P>>,
    len: usize,
    hashes: RandomState,
}

/// How many places a part has on average, at most. One that is not divided yet has up to twice as many.
const FULL: usize = 768;

impl<P> Default for Ids<P> {
    fn default() -> Self {
        Self { parts: vec![HashTable::new()], len: 0, hashes: RandomState::new() }
    }
}

impl<P: Copy> Ids<P> {
    /// These `len` ids; `None` if one comes twice.
    pub(crate) fn of(
        len: usize,
        all: impl Iterator<Item = (LeaseId, P)>,
        id_at: impl Fn(P) -> LeaseId,
    ) -> Option<Self> {
        let part = |_| HashTable::with_capacity(len.min(FULL));
        let parts = (0..len.div_ceil(FULL).max(1)).map(part).collect();
        let mut ids = Self { parts, ..Self::default() };
        for (id, place) in all {
            if ids.get(id, &id_at).is_some() {
                return None;
            }
            ids.insert(id, place, &id_at);
        }
        Some(ids)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, id: LeaseId, id_at: impl Fn(P) -> LeaseId) -> Option<P> {
        let hash = self.hashes.hash_one(id);
        self.parts[part_of(hash, self.parts.len())].find(hash, |place| id_at(*place) == id).copied()
    }

    /// Adds an id that is not in yet.
    pub(crate) fn insert(&mut self, id: LeaseId, place: P, id_at: impl Fn(P) -> LeaseId) {
        let Self { parts, hashes, .. } = self;
        let (hash, count) = (hashes.hash_one(id), parts.len());
        parts[part_of(hash, count)].insert_unique(hash, place, |place| hashes.hash_one(id_at(*place)));
        self.len += 1;
        if self.len > count * FULL {
            self.divide(id_at);
        }
    }

    /// Removes an id that its place still has.
    pub(crate) fn remove(&mut self, id: LeaseId, id_at: impl Fn(P) -> LeaseId) {
        let Self { parts, hashes, .. } = self;
        let (hash, count) = (hashes.hash_one(id), parts.len());
        let part = &mut parts[part_of(hash, count)];
        let Ok(found) = part.find_entry(hash, |place| id_at(*place) == id) else { return };
        found.remove();
        if part.len() < part.capacity() / 4 {
            part.shrink_to(2 * part.len(), |place| hashes.hash_one(id_at(*place)));
        }
        self.len -= 1;
        if count > 1 && self.len < (count - 1) * (FULL / 2) {
            self.join(id_at);
        }
    }

    /// Adds a part, and moves to it what belongs there.
    fn divide(&mut self, id_at: impl Fn(P) -> LeaseId) {
        let Self { parts, hashes, .. } = self;
        let (new, count) = (parts.len(), parts.len() + 1);
        let hash_at = |place: &P| hashes.hash_one(id_at(*place));
        let mut part = HashTable::with_capacity(FULL);
        let moved = parts[divided_for(new)].extract_if(|place| part_of(hash_at(place), count) == new);
        moved.for_each(|place| _ = part.insert_unique(hash_at(&place), place, hash_at));
        parts[divided_for(new)].shrink_to_fit(hash_at);
        parts.push(part);
    }

    /// Moves the places of the last part to where they would be without it.
    fn join(&mut self, id_at: impl Fn(P) -> LeaseId) {
        let Self { parts, hashes, .. } = self;
        let hash_at = |place: &P| hashes.hash_one(id_at(*place));
        let last = parts.pop().expect("it is never empty");
        let joined = divided_for(parts.len());
        last.into_iter().for_each(|place| _ = parts[joined].insert_unique(hash_at(&place), place, hash_at));
    }
}

/// The part of a hash, if there are so many. A part has other uses for the highest and for the lowest bits.
fn part_of(hash: u64, count: usize) -> usize {
    let (number, all) = ((hash >> 16) as usize & 0xffff_ffff, count.next_power_of_two());
    match number % all {
        part if part < count => part,
        part => part - all / 2,
    }
}

/// The part that is divided for the part `new`.
fn divided_for(new: usize) -> usize {
    new - (new + 1).next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> LeaseId {
        LeaseId::from_u128(n as u128 + 1).unwrap()
    }

    fn assert_is_sound(ids: &Ids<usize>) {
        assert_eq!(ids.parts.iter().map(HashTable::len).sum::<usize>(), ids.len());
        for (number, part) in ids.parts.iter().enumerate() {
            assert!(part.iter().all(|n| part_of(ids.hashes.hash_one(id(*n)), ids.parts.len()) == number));
            assert!(part.len() < 4 * FULL, "{}", part.len());
            assert!(part.capacity() <= 64 + 4 * part.len(), "{} for {}", part.capacity(), part.len());
        }
    }

    #[test]
    fn ids_are_found_however_many_come_and_go() {
        let (mut ids, mut most) = (Ids::default(), 0);
        for (from, to) in [(0, 1), (1, FULL), (FULL, 5_000), (5_000, 60_000)] {
            for n in from..to {
                assert_eq!(ids.get(id(n), id), None);
                ids.insert(id(n), n, id);
            }
            assert_is_sound(&ids);
            assert!((0..to).all(|n| ids.get(id(n), id) == Some(n)));
            most = ids.parts.len();
        }
        assert_eq!(most, 60_000_usize.div_ceil(FULL));
        for (from, to) in [(0, 10_000), (10_000, 59_000), (59_000, 60_000)] {
            for n in from..to {
                ids.remove(id(n), id);
                assert_eq!(ids.get(id(n), id), None);
            }
            assert_is_sound(&ids);
            assert!((to..60_000).all(|n| ids.get(id(n), id) == Some(n)));
        }
        assert_eq!((ids.len(), ids.parts.len()), (0, 1));
        assert!(ids.parts[0].capacity() < 8, "{}", ids.parts[0].capacity());
    }

    #[test]
    fn an_id_that_comes_twice_is_refused() {
        let many = || (0..3 * FULL).map(|n| (id(n), n));
        assert_eq!(Ids::of(3 * FULL, many(), id).map(|ids| ids.len()), Some(3 * FULL));
        assert!(Ids::of(0, many().chain([(id(7), 7)]), id).is_none());
    }

    /// Each part is divided in turn, so a few are twice as full as the others at most.
    #[test]
    fn parts_are_divided_in_turn() {
        let divided: Vec<_> = (1..9).map(divided_for).collect();
        assert_eq!(divided, [0, 0, 1, 0, 1, 2, 3, 0]);
    }
}
