use std::cmp::Ordering::{self, Greater, Less};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use ringfence_wire::{Key, Mode, Revision};

use crate::lease::Lease;
use crate::line::{Claim, Crowd, Line};
use crate::slots::{Slot, Slots};
use crate::sorted::Sorted;
use crate::steps::step;

/// The line of every key that somebody holds or waits for.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// With whoever holds it while nobody else does and nobody waits, as it is with most keys.
    keys: Sorted<(Key, Option<Slot>)>,
    /// The lines of the other keys.
    crowds: BTreeMap<Key, Crowd>,
    /// Where lines lag: by the place of the waiter that is next, so that first come is first served over all keys.
    lags: BTreeSet<(Revision, Key)>,
}

impl Lines {
    pub(crate) fn get(&self, key: &Key, leases: &Slots<Lease>) -> Option<Line<'_>> {
        let at = self.keys.search(order(key)).ok()?;
        let (key, sole) = self.keys.get(at);
        self.line(key, *sole, leases)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The lines of the keys that start with `prefix` and come after `after`, in the order of their bytes.
    pub(crate) fn range<'a>(
        &'a self,
        prefix: &str,
        after: Option<&str>,
        leases: &'a Slots<Lease>,
    ) -> impl Iterator<Item = (&'a Key, Line<'a>)> {
        let is_before = |key: &Key| key.as_str() < prefix || after.is_some_and(|after| key.as_str() <= after);
        let from = self.keys.search(|(key, _)| if is_before(key) { Less } else { Greater });
        let keys = self.keys.iter_from(from.unwrap_or_else(|from| from));
        keys.take_while(move |(key, _)| key.as_str().starts_with(prefix))
            .filter_map(|(key, sole)| Some((key, self.line(key, *sole, leases)?)))
    }

    /// Whether a newcomer fits `key`, which then has its text in common with whoever uses it already.
    pub(crate) fn fits(&self, key: &mut Key, mode: Mode, leases: &Slots<Lease>) -> bool {
        let Some(sole) = self.share_text(key) else { return true };
        self.line(key, sole, leases).is_none_or(|line| line.fits(mode))
    }

    /// Makes `key` have its text in common with whoever uses it already. Gives its sole holder, if it is a line of one.
    pub(crate) fn share_text(&self, key: &mut Key) -> Option<Option<Slot>> {
        let at = self.keys.search(order(key)).ok()?;
        let (shared, sole) = self.keys.get(at);
        *key = shared.clone();
        Some(*sole)
    }

    /// A newcomer that fits holds `key`.
    pub(crate) fn hold(&mut self, key: &Key, claim: Claim, leases: &Slots<Lease>) {
        match self.keys.search(order(key)) {
            Err(at) => self.keys.insert(at, (key.clone(), Some(claim.slot))),
            Ok(_) => self.crowd(key, leases).hold(claim),
        }
    }

    /// Each of these holds its key alone, as most do: much faster than one by one. Tells whether it was so.
    pub(crate) fn hold_alone(&mut self, holders: Vec<(Key, Slot)>) -> bool {
        let holders = holders.into_iter().map(|(key, slot)| (key, Some(slot)));
        let mut keys: Vec<_> = mem::take(&mut self.keys).into_iter().chain(holders).collect();
        keys.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let are_alone = keys.is_sorted_by(|(one, _), (next, _)| one < next);
        self.keys = Sorted::of(keys);
        are_alone
    }

    /// A newcomer joins the queue of `key`; tells whether it fits there.
    pub(crate) fn queue(&mut self, key: &Key, claim: Claim, leases: &Slots<Lease>) -> bool {
        self.crowd(key, leases).queue(claim)
    }

    /// The waiter at `place`, which fits, now holds `key` with `token`.
    pub(crate) fn promote(&mut self, key: &Key, place: Revision, token: Revision) {
        step();
        if let Some(crowd) = self.crowds.get_mut(key) {
            crowd.promote(place, token);
            self.settle(key);
        }
    }

    /// Takes the lease in `slot` out, the holder with this token or the waiter at this place. If a waiter comes to fit
    /// `key` by that, the line lags.
    pub(crate) fn remove(&mut self, key: &Key, slot: Slot, number: Revision) {
        step();
        let Ok(at) = self.keys.search(order(key)) else { return };
        if self.keys.get(at).1 == Some(slot) {
            self.keys.remove(at);
        } else if let Some(crowd) = self.crowds.get_mut(key) {
            crowd.remove(number);
            self.note_lag(key);
            self.settle(key);
        }
    }

    /// The first of all waiters that fit a key and were not passed there yet: it is passed now.
    pub(crate) fn pass_first(&mut self) -> Option<Slot> {
        let (_, key) = self.lags.pop_first()?;
        step();
        let crowd = self.crowds.get_mut(&key)?;
        crowd.note_lag(None);
        let passed = crowd.advance();
        self.note_lag(&key);
        passed
    }

    /// Where lines lag, in the order of the places.
    pub(crate) fn lags(&self) -> &BTreeSet<(Revision, Key)> {
        &self.lags
    }

    /// The line of `key`, whose waiters are still to come, is going to lag at this place. Tells whether that was new.
    pub(crate) fn restore_lag(&mut self, key: &Key, place: Revision, leases: &Slots<Lease>) -> bool {
        let crowd = self.crowd(key, leases);
        let is_new = crowd.lag().0.is_none();
        crowd.note_lag(Some(place));
        self.lags.insert((place, key.clone()));
        is_new
    }

    /// Whether the lines lag where that was noted.
    pub(crate) fn lag_as_noted(&self) -> bool {
        self.lags.iter().filter_map(|(_, key)| self.crowds.get(key)).all(|crowd| {
            let (noted, is) = crowd.lag();
            noted == is
        })
    }

    fn line<'a>(&'a self, key: &Key, sole: Option<Slot>, leases: &Slots<Lease>) -> Option<Line<'a>> {
        match sole {
            Some(slot) => {
                let holder = leases.get(slot);
                let mode = holder.mode_on(key)?;
                Some(Line::Sole(Claim { number: holder.number, mode, slot }))
            }
            None => self.crowds.get(key).map(Line::Crowd),
        }
    }

    /// The crowd at `key`, made of whoever holds it or of nobody.
    fn crowd(&mut self, key: &Key, leases: &Slots<Lease>) -> &mut Crowd {
        let at = self.keys.search(order(key)).unwrap_or_else(|at| {
            self.keys.insert(at, (key.clone(), None));
            self.keys.search(order(key)).expect("it was put in just now")
        });
        let sole = self.keys.get_mut(at).1.take();
        let holder = sole.and_then(|slot| self.line(key, Some(slot), leases)?.newest());
        let crowd = self.crowds.entry(key.clone()).or_default();
        if let Some(holder) = holder {
            crowd.hold(holder);
        }
        crowd
    }

    /// The line of `key` has changed so that it may have come to lag, or does so no more.
    fn note_lag(&mut self, key: &Key) {
        let Some(crowd) = self.crowds.get_mut(key) else { return };
        let (noted, is) = crowd.lag();
        if noted == is {
            return;
        }
        crowd.note_lag(is);
        if let Some(place) = noted {
            self.lags.remove(&(place, key.clone()));
        }
        if let Some(place) = is {
            self.lags.insert((place, key.clone()));
        }
    }

    /// A crowd of one holder, or of nobody, needs its memory no more.
    fn settle(&mut self, key: &Key) {
        let Some(crowd) = self.crowds.get(key) else { return };
        let sole = crowd.sole();
        let is_empty = crowd.is_empty();
        if let Ok(at) = self.keys.search(order(key))
            && (is_empty || sole.is_some())
        {
            self.crowds.remove(key);
            if is_empty {
                self.keys.remove(at);
            } else {
                self.keys.get_mut(at).1 = sole;
            }
        }
    }
}

fn order(sought: &Key) -> impl FnMut(&(Key, Option<Slot>)) -> Ordering {
    |(key, _)| key.cmp(sought)
}
