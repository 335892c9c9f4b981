use std::cmp::Ordering;

use ringfence_wire::LeaseId;

use crate::sorted::{At, Sorted};

/// Finds what has an id. It keeps eight bytes for each: the place where that lies, of which whoever asks can tell the id,
/// and a hint, so that hardly any place is looked at in vain.
#[derive(Debug)]
pub(crate) struct Ids<P>(Sorted<(u32, P)>);

impl<P> Default for Ids<P> {
    fn default() -> Self {
        Self(Sorted::default())
    }
}

impl<P: Copy> Ids<P> {
    /// These, much faster than one by one; `None` if an id is among them twice.
    pub(crate) fn of(all: impl Iterator<Item = (LeaseId, P)>) -> Option<Self> {
        let mut all: Vec<_> = all.map(|(id, place)| (hint(id), id, place)).collect();
        all.sort_unstable_by_key(|&(hint, id, _)| (hint, id));
        let is_once = all.is_sorted_by(|one, next| (one.0, one.1) < (next.0, next.1));
        is_once.then(|| Self(Sorted::of(all.into_iter().map(|(hint, _, place)| (hint, place)))))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, id: LeaseId, id_at: impl Fn(P) -> LeaseId) -> Option<P> {
        let at = self.search(id, id_at).ok()?;
        Some(self.0.get(at).1)
    }

    /// Puts in where an id lies that is not in yet.
    pub(crate) fn insert(&mut self, id: LeaseId, place: P, id_at: impl Fn(P) -> LeaseId) {
        if let Err(at) = self.search(id, id_at) {
            self.0.insert(at, (hint(id), place));
        }
    }

    /// Takes an id out, while it still lies at its place.
    pub(crate) fn remove(&mut self, id: LeaseId, id_at: impl Fn(P) -> LeaseId) {
        if let Ok(at) = self.search(id, id_at) {
            self.0.remove(at);
        }
    }

    /// Hints are spread evenly, so that its own tells about where in its leaf an id is.
    fn search(&self, id: LeaseId, id_at: impl Fn(P) -> LeaseId) -> Result<At, At> {
        let sought = hint(id);
        self.0.search_near(order(id, id_at), |&(first, _), next| {
            let next = next.map_or(u32::MAX, |&(next, _)| next);
            sought.saturating_sub(first) as f32 / (next.saturating_sub(first).max(1)) as f32
        })
    }
}

/// By the hint and, where two have the same, by the id: whoever makes ids of one hint on purpose has it compare them, and
/// no more.
fn order<P: Copy>(id: LeaseId, id_at: impl Fn(P) -> LeaseId) -> impl FnMut(&(u32, P)) -> Ordering {
    let sought = hint(id);
    move |&(hint, place)| hint.cmp(&sought).then_with(|| id_at(place).cmp(&id))
}

/// Any bits will do that differ from id to id, of those too that are made of the time. It never shows outside.
fn hint(id: LeaseId) -> u32 {
    let bits = id.to_u128();
    let folded = (bits >> 64) as u64 ^ bits as u64;
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(bits: u128) -> LeaseId {
        LeaseId::from_u128(bits).unwrap()
    }

    #[test]
    fn ids_of_one_hint_are_told_apart() {
        // The halves of each are the same but for the lowest bits of both: all fold to the same.
        let ids: Vec<LeaseId> = (1..2_000).map(|n| id((n << 64) | n)).collect();
        assert!(ids.iter().all(|id| hint(*id) == hint(ids[0])));
        let id_at = |place: usize| ids[place];
        let mut some = Ids::default();
        for (place, id) in ids.iter().enumerate().filter(|(place, _)| place % 3 != 0) {
            some.insert(*id, place, id_at);
        }
        for (place, id) in ids.iter().enumerate().filter(|(place, _)| place % 3 == 1) {
            assert_eq!(some.get(*id, id_at), Some(place));
            some.remove(*id, id_at);
        }
        for (place, id) in ids.iter().enumerate() {
            assert_eq!(some.get(*id, id_at), (place % 3 == 2).then_some(place));
        }
        assert_eq!(some.len(), ids.len() / 3);
    }

    #[test]
    fn an_id_is_found_however_it_came_in() {
        // As those that are made of the time: first a million of milliseconds, then a few random bits.
        let ids: Vec<LeaseId> = (1..3_000).map(|n| id((n << 80) | (n * 0x9e37_79b9 % 1_009))).collect();
        let id_at = |place: usize| ids[place];
        let all = Ids::of(ids.iter().copied().zip(0..)).unwrap();
        let mut one_by_one = Ids::default();
        ids.iter().zip(0..).for_each(|(id, place)| one_by_one.insert(*id, place, id_at));
        for (place, &id) in ids.iter().enumerate() {
            assert_eq!((all.get(id, id_at), one_by_one.get(id, id_at)), (Some(place), Some(place)));
        }
        assert!(Ids::of(ids.iter().chain(&ids[7..8]).copied().zip(0..)).is_none(), "one is there twice");
    }
}
