use std::cmp::Ordering::{self, Greater, Less};
use std::collections::BTreeSet;
use std::mem;

use ringfence_wire::{Key, Mode, Revision};

use super::queue::{Claimant, Lock, Queue};
use super::slots::{Slot, Slots};
use super::sorted::{At, Sorted};
use crate::lease::Lease;
use crate::steps::step;

/// Who holds each key and who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    keys: Sorted<(Key, State)>,
    queues: Slots<Queue>,
    /// The keys whose queue is ready, by the place of the waiter: over all keys, first come is first served.
    ready: BTreeSet<(Revision, Key)>,
}

/// A key that is held or waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// This lease holds it, and nobody else does or waits: all that a queue would say stands in the lease.
    Sole(Slot),
    /// Anything else: its place in `queues`.
    Queue(Slot),
}

impl Locks {
    pub(crate) fn get(&self, key: &Key, leases: &Slots<Lease>) -> Option<Lock<'_>> {
        let at = self.keys.search(order(key)).ok()?;
        self.lock(self.keys.get(at), leases)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The locks of the keys that start with `prefix` and come after `after`, in byte order.
    pub(crate) fn range<'a>(
        &'a self,
        prefix: &str,
        after: Option<&str>,
        leases: &'a Slots<Lease>,
    ) -> impl Iterator<Item = (&'a Key, Lock<'a>)> {
        let is_before = |key: &Key| key.as_str() < prefix || after.is_some_and(|after| key.as_str() <= after);
        let from = self.keys.search(|(key, _)| if is_before(key) { Less } else { Greater });
        let keys = self.keys.iter_from(from.unwrap_or_else(|from| from));
        keys.take_while(move |(key, _)| key.as_str().starts_with(prefix))
            .filter_map(|entry| Some((&entry.0, self.lock(entry, leases)?)))
    }

    /// Whether a newcomer fits `key`, which from now on shares its text with the leases that use it already.
    pub(crate) fn share_text_and_fits(&self, key: &mut Key, mode: Mode, leases: &Slots<Lease>) -> bool {
        let entry = self.share_text(key);
        entry.and_then(|entry| self.lock(entry, leases)).is_none_or(|lock| lock.fits(mode))
    }

    /// Lets `key` share its text with the leases that use it already.
    pub(super) fn share_text(&self, key: &mut Key) -> Option<&(Key, State)> {
        let at = self.keys.search(order(key)).ok()?;
        let entry = self.keys.get(at);
        *key = entry.0.clone();
        Some(entry)
    }

    /// Adds a holder that fits.
    pub(crate) fn hold(&mut self, key: &Key, holder: Claimant, leases: &Slots<Lease>) {
        match self.keys.search(order(key)) {
            Err(at) => self.keys.insert(at, (key.clone(), State::Sole(holder.slot))),
            Ok(_) => self.queue_of(key, leases).hold(holder),
        }
    }

    /// Adds exclusive holders, much faster than one by one. Returns whether each has its key to itself.
    pub(crate) fn hold_all(&mut self, holders: Vec<(Key, Slot)>) -> bool {
        let holders = holders.into_iter().map(|(key, slot)| (key, State::Sole(slot)));
        let mut keys: Vec<_> = mem::take(&mut self.keys).into_iter().chain(holders).collect();
        keys.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let is_unique = keys.is_sorted_by(|(one, _), (next, _)| one < next);
        self.keys = Sorted::of(keys);
        is_unique
    }

    /// Adds a waiter, and returns whether it fits.
    pub(crate) fn enqueue(&mut self, key: &Key, waiter: Claimant, leases: &Slots<Lease>) -> bool {
        self.queue_of(key, leases).enqueue(waiter)
    }

    /// Makes the waiter at `place`, which is admitted, a holder.
    pub(crate) fn grant(&mut self, key: &Key, place: Revision, token: Revision) {
        step();
        if let Ok(at) = self.keys.search(order(key)) {
            self.change(key, at, |queue| queue.grant(place, token));
        }
    }

    /// Removes the lease in `slot`: the holder with this token, or the waiter at this place.
    pub(crate) fn remove(&mut self, key: &Key, slot: Slot, number: Revision) {
        step();
        let Ok(at) = self.keys.search(order(key)) else { return };
        match self.keys.get(at).1 {
            State::Sole(holder) if holder == slot => _ = self.keys.remove(at),
            _ => self.change(key, at, |queue| queue.remove(number)),
        }
    }

    /// Admits the first waiter of all queues that are ready.
    pub(crate) fn admit_next(&mut self) -> Option<Slot> {
        let (_, key) = self.ready.first()?.clone();
        step();
        let at = self.keys.search(order(&key)).ok()?;
        let mut admitted = None;
        self.change(&key, at, |queue| admitted = queue.admit());
        admitted
    }

    pub(crate) fn ready(&self) -> &BTreeSet<(Revision, Key)> {
        &self.ready
    }

    /// Restores that the queue of `key` is ready at this place, before its waiters are added. Returns whether that was new.
    pub(crate) fn restore_ready(&mut self, key: &Key, place: Revision, leases: &Slots<Lease>) -> bool {
        let queue = self.queue_of(key, leases);
        let is_new = queue.ready().0.is_none();
        queue.set_ready(Some(place));
        self.ready.insert((place, key.clone()));
        is_new
    }

    /// Whether the queues that were restored as ready are so.
    pub(crate) fn is_ready_as_restored(&self, leases: &Slots<Lease>) -> bool {
        let locks = self.ready.iter().filter_map(|(_, key)| self.get(key, leases));
        locks.filter_map(Lock::queue).all(|queue| {
            let (noted, is) = queue.ready();
            noted == is
        })
    }

    fn lock<'a>(&'a self, (key, state): &(Key, State), leases: &Slots<Lease>) -> Option<Lock<'a>> {
        Some(match *state {
            State::Sole(slot) => Lock::Sole(sole_holder(key, slot, leases)?),
            State::Queue(slot) => Lock::Queue(self.queues.get(slot)),
        })
    }

    /// The queue of `key`. If there is none it is made, with the sole holder if there is one.
    fn queue_of(&mut self, key: &Key, leases: &Slots<Lease>) -> &mut Queue {
        let found = self.keys.search(order(key));
        let slot = match found.map(|at| self.keys.get(at).1) {
            Ok(State::Queue(slot)) => slot,
            state => {
                let mut queue = Queue::default();
                if let Ok(State::Sole(slot)) = state
                    && let Some(holder) = sole_holder(key, slot, leases)
                {
                    queue.hold(holder);
                }
                self.queues.insert(queue)
            }
        };
        match found {
            Ok(at) => self.keys.get_mut(at).1 = State::Queue(slot),
            Err(at) => self.keys.insert(at, (key.clone(), State::Queue(slot))),
        }
        self.queues.get_mut(slot)
    }

    /// Changes the queue of `key`, which is at `at`, and then what follows from it: whether it is ready, and whether it is
    /// needed.
    fn change(&mut self, key: &Key, at: At, change: impl FnOnce(&mut Queue)) {
        let State::Queue(slot) = self.keys.get(at).1 else { return };
        let queue = self.queues.get_mut(slot);
        change(queue);
        let (before, now) = queue.ready();
        let (is_empty, sole) = (queue.is_empty(), queue.sole_holder());
        if before != now {
            queue.set_ready(now);
            before.map(|place| self.ready.remove(&(place, key.clone())));
            now.map(|place| self.ready.insert((place, key.clone())));
        }
        if is_empty {
            self.keys.remove(at);
        } else if let Some(holder) = sole {
            self.keys.get_mut(at).1 = State::Sole(holder);
        }
        if is_empty || sole.is_some() {
            self.queues.take(slot);
        }
    }
}

fn sole_holder(key: &Key, slot: Slot, leases: &Slots<Lease>) -> Option<Claimant> {
    let lease = leases.get(slot);
    Some(Claimant { number: lease.number, mode: lease.mode_on(key)?, slot })
}

fn order(sought: &Key) -> impl FnMut(&(Key, State)) -> Ordering {
    |(key, _)| key.cmp(sought)
}
