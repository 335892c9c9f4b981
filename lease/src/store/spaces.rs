use std::collections::{BTreeMap, BTreeSet};

use ringfence_wire::{LeaseId, PrincipalName};

use super::ended::{End, Ended};
use super::ids::Ids;
use super::slots::Slot;
use crate::lease::Lease;
use crate::owner::SpaceNo;

/// One principal's lease ids. Two principals may use the same id for two leases.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(super) by_id: Ids<Slot>,
    pub(super) waiting: usize,
    /// About how many bytes its leases take.
    pub(super) bytes: u64,
    pub(super) ended: Ended,
}

/// All spaces. The first has the leases that nobody owns. A principal has one while it has leases, or ended ones are remembered.
#[derive(Debug)]
pub(crate) struct Spaces {
    all: Vec<Space>,
    /// Whose they are.
    names: Vec<Option<PrincipalName>>,
    by_name: BTreeMap<PrincipalName, SpaceNo>,
    free: Vec<SpaceNo>,
    /// When the oldest ended lease of each space ended. By name, so that all replicas forget in the same order.
    oldest: BTreeSet<(u64, Option<PrincipalName>)>,
}

/// What an id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Active(Slot),
    Ended(End),
    Nothing,
}

impl Default for Spaces {
    fn default() -> Self {
        Self {
            all: vec![Space::default()],
            names: vec![None],
            by_name: BTreeMap::new(),
            free: Vec::new(),
            oldest: BTreeSet::new(),
        }
    }
}

impl Space {
    /// How many of its leases are live or wait.
    pub(crate) fn leases(&self) -> usize {
        self.by_id.len()
    }

    /// How many of its leases wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// About how many bytes its leases take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn find(&self, id: LeaseId, id_at: impl Fn(Slot) -> LeaseId) -> Known {
        match self.by_id.get(id, id_at) {
            Some(slot) => Known::Active(slot),
            None => self.ended.get(id).map_or(Known::Nothing, Known::Ended),
        }
    }
}

impl Spaces {
    /// The space of `by`, if it has one.
    pub(crate) fn number_of(&self, by: Option<&PrincipalName>) -> Option<SpaceNo> {
        by.map_or(Some(SpaceNo(0)), |name| self.by_name.get(name).copied())
    }

    pub(crate) fn get(&self, number: SpaceNo) -> &Space {
        &self.all[usize::from(number.0)]
    }

    pub(super) fn get_mut(&mut self, number: SpaceNo) -> &mut Space {
        &mut self.all[usize::from(number.0)]
    }

    /// Whose the space is.
    pub(crate) fn name(&self, number: SpaceNo) -> Option<&PrincipalName> {
        self.names[usize::from(number.0)].as_ref()
    }

    /// All spaces: the one of nobody, and then by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SpaceNo, Option<&PrincipalName>, &Space)> {
        let owned = self.by_name.iter().map(|(name, number)| (*number, Some(name)));
        [(SpaceNo(0), None)].into_iter().chain(owned).map(|(number, name)| (number, name, self.get(number)))
    }

    /// The space of `by`, which gets one if it has none; `None` if there are too many.
    pub(crate) fn open(&mut self, by: Option<&PrincipalName>) -> Option<SpaceNo> {
        let (None, Some(name)) = (self.number_of(by), by) else { return self.number_of(by) };
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = SpaceNo(u16::try_from(self.all.len()).ok()?);
                self.all.push(Space::default());
                self.names.push(None);
                number
            }
        };
        self.names[usize::from(number.0)] = Some(name.clone());
        self.by_name.insert(name.clone(), number);
        Some(number)
    }

    /// Notes that a lease of this space ended, and remembers that. Beyond `most` it forgets the oldest of this space.
    pub(super) fn remember(&mut self, number: SpaceNo, id: LeaseId, end: End, now_ms: u64, most: usize) {
        let before = self.get(number).ended.oldest_ms();
        self.get_mut(number).ended.remember(id, end, now_ms, most);
        self.note_oldest(number, before);
    }

    /// Forgets ended leases that were remembered for their full time, the oldest first, and no more than `at_most`.
    pub(crate) fn forget(&mut self, now_ms: u64, at_most: usize) {
        let mut left = at_most;
        while left > 0
            && let Some((oldest_ms, name)) = self.oldest.first()
            && Ended::is_over(*oldest_ms, now_ms)
        {
            let number = self.number_of(name.as_ref()).expect("who has ended leases has a space");
            let before = Some(*oldest_ms);
            left -= self.get_mut(number).ended.forget_alike(left);
            self.note_oldest(number, before);
        }
    }

    /// How many ended leases are remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.all.iter().map(|space| space.ended.len()).sum()
    }

    /// Keeps `oldest` in step, and closes a space that has nothing any more.
    pub(super) fn note_oldest(&mut self, number: SpaceNo, before: Option<u64>) {
        let now = self.get(number).ended.oldest_ms();
        if before != now {
            let name = self.name(number).cloned();
            if let Some(before) = before {
                self.oldest.remove(&(before, name.clone()));
            }
            if let Some(now) = now {
                self.oldest.insert((now, name));
            }
        }
        self.close_if_empty(number);
    }

    fn close_if_empty(&mut self, number: SpaceNo) {
        let space = self.get(number);
        if space.leases() + space.ended.len() == 0
            && let Some(name) = self.names[usize::from(number.0)].take()
        {
            self.by_name.remove(&name);
            *self.get_mut(number) = Space::default();
            self.free.push(number);
        }
    }

    /// Takes a lease off its space, before it is remembered as ended.
    pub(super) fn remove(&mut self, lease: &Lease, id_at: impl Fn(Slot) -> LeaseId) {
        let space = self.get_mut(lease.space);
        space.by_id.remove(lease.id, id_at);
        space.waiting -= usize::from(lease.waits());
        space.bytes -= lease.bytes(lease.waits());
    }
}
