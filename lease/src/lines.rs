use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound::{Excluded, Included, Unbounded};

use ringfence_wire::{Key, Mode, Revision};

use crate::line::{Claim, Line};
use crate::slots::Slot;

/// The line of every key that somebody holds or waits for.
#[derive(Debug, Default)]
pub(crate) struct Lines(BTreeMap<Key, Line>);

impl Lines {
    pub(crate) fn get(&self, key: &Key) -> Option<&Line> {
        self.0.get(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The lines of the keys that start with `prefix` and come after `after`, in the order of their bytes.
    pub(crate) fn range(&self, prefix: &str, after: Option<&str>) -> impl Iterator<Item = (&Key, &Line)> {
        let from = match after {
            Some(after) if after >= prefix => Excluded(after),
            _ => Included(prefix),
        };
        self.0.range::<str, _>((from, Unbounded)).take_while(move |(key, _)| key.as_str().starts_with(prefix))
    }

    /// Whether a newcomer fits `key`, which then has its text in common with whoever uses it already.
    pub(crate) fn fits(&self, key: &mut Key, mode: Mode) -> bool {
        self.share_text(key).is_none_or(|line| line.fits(mode))
    }

    /// Makes `key` have its text in common with whoever uses it already, and finds its line.
    pub(crate) fn share_text(&self, key: &mut Key) -> Option<&Line> {
        let (shared, line) = self.0.get_key_value(key)?;
        *key = shared.clone();
        Some(line)
    }

    /// A newcomer that fits holds `key`.
    pub(crate) fn hold(&mut self, key: &Key, claim: Claim) {
        match self.0.entry(key.clone()) {
            Entry::Vacant(vacant) => drop(vacant.insert(Line::Sole(claim))),
            Entry::Occupied(line) => line.into_mut().hold(claim),
        }
    }

    /// Each of these holds its key alone, as most do: much faster than one by one. Tells whether it was so.
    pub(crate) fn hold_alone(&mut self, holders: Vec<(Key, Claim)>) -> bool {
        let keys = self.0.len() + holders.len();
        self.0.append(&mut holders.into_iter().map(|(key, claim)| (key, Line::Sole(claim))).collect());
        self.0.len() == keys
    }

    /// A newcomer joins the queue of `key`; tells whether it fits there.
    pub(crate) fn queue(&mut self, key: &Key, claim: Claim) -> bool {
        self.0.entry(key.clone()).or_insert_with(Line::nobody).queue(claim)
    }

    /// The waiter at `place`, which fits, now holds `key` with `token`.
    pub(crate) fn promote(&mut self, key: &Key, place: Revision, token: Revision) {
        if let Some(line) = self.0.get_mut(key) {
            line.promote(place, token);
        }
    }

    /// Takes the holder with this token or the waiter at this place out. The waiters that come to fit `key` are
    /// added to `fitting`.
    pub(crate) fn remove(&mut self, key: &Key, number: Revision, fitting: &mut Vec<Slot>) {
        if let Entry::Occupied(mut line) = self.0.entry(key.clone())
            && !line.get_mut().remove(number, fitting)
        {
            line.remove();
        }
    }
}
