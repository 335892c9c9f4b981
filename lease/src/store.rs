//! Every lease, and every way to find one. No rule knows the collections behind [`Store`], so each can be replaced without touching one.
//! Only the frozen table, which is written to snapshots, shares two of them.
//!
//! ```text
//!   spaces           owner, id ----------------.
//!   locks            key: holders and queue ---+--> slot --> Lease
//!   live, waiting    (deadline, number) -------'
//!
//!   spaces           owner, id: how the lease ended, for 60 s
//! ```
//!
//! Everything about a lease is stored once, in its slot. An index has the number of the slot, and a few bits that make
//! most reads of the lease unnecessary. A key that one lease holds alone has no queue of its own.
//!
//! **Cost.** Every method takes O(log n) for each key of the leases that it changes, and no collection ever copies more
//! than a small part of itself at once.

use std::collections::BTreeSet;

use ringfence_wire::{Key, LeaseId, PrincipalName, Revision};

use crate::keys::Keys;
use crate::lease::Lease;
use crate::owner::SpaceNo;

mod deadlines;
mod ended;
mod fifo;
mod ids;
mod load;
mod locks;
mod modes;
mod queue;
mod slots;
mod sorted;
mod spaces;

pub(crate) use ended::{End, EndedLease};
pub(crate) use fifo::Fifo;
pub(crate) use load::Loader;
pub(crate) use queue::Lock;
pub(crate) use slots::{Chunks, Slot};
pub(crate) use spaces::{Known, Spaces};

use deadlines::Deadlines;
use locks::Locks;
use queue::Claimant;
use slots::Slots;

/// The live and the waiting leases. Its methods keep all indexes in step.
#[derive(Debug, Default)]
pub(crate) struct Store {
    leases: Slots<Lease>,
    spaces: Spaces,
    /// The live leases by deadline.
    live: Deadlines<Slot>,
    /// The waiters by deadline.
    waiting: Deadlines<Slot>,
    locks: Locks,
    /// About how many bytes all leases take.
    bytes: u64,
}

impl Store {
    /// How many leases are live.
    pub(crate) fn live(&self) -> usize {
        self.live.len()
    }

    /// How many leases wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many keys are held or waited for.
    pub(crate) fn keys(&self) -> usize {
        self.locks.len()
    }

    pub(crate) fn get(&self, slot: Slot) -> &Lease {
        self.leases.get(slot)
    }

    /// About how many bytes all leases take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    pub(crate) fn spaces_mut(&mut self) -> &mut Spaces {
        &mut self.spaces
    }

    /// What `by` means by this id: a lease of its own or, if it never had one, a lease that nobody owns. A client that gets a
    /// name keeps the leases that it had before.
    pub(crate) fn find(&self, by: Option<&PrincipalName>, id: LeaseId) -> Known {
        let own = by.and_then(|_| self.spaces.number_of(by));
        let spaces = own.into_iter().chain([SpaceNo::default()]);
        let found = spaces.map(|number| self.spaces.get(number).find(id, |slot| self.leases.get(slot).id));
        found.into_iter().find(|found| *found != Known::Nothing).unwrap_or(Known::Nothing)
    }

    /// As [`Self::find`], if the lease is live or waits.
    pub(crate) fn active(&self, by: Option<&PrincipalName>, id: LeaseId) -> Option<(Slot, &Lease)> {
        match self.find(by, id) {
            Known::Active(slot) => Some((slot, self.leases.get(slot))),
            Known::Ended(_) | Known::Nothing => None,
        }
    }

    /// Whose the lease is.
    pub(crate) fn owner(&self, lease: &Lease) -> Option<&PrincipalName> {
        self.spaces.name(lease.space)
    }

    /// Remembers how a lease of this space ended. Of each space, `most` are remembered.
    pub(crate) fn remember(&mut self, space: SpaceNo, id: LeaseId, end: End, now_ms: u64, most: usize) {
        self.spaces.remember(space, id, end, now_ms, most);
    }

    /// Who holds `key` and who waits for it; `None` if nobody does.
    pub(crate) fn lock(&self, key: &Key) -> Option<Lock<'_>> {
        self.locks.get(key, &self.leases)
    }

    /// The locks of the keys that start with `prefix` and come after `after`, in byte order.
    pub(crate) fn locks<'a>(
        &'a self,
        prefix: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'a Key, Lock<'a>)> {
        self.locks.range(prefix, after, &self.leases)
    }

    /// Whether a newcomer fits all `keys`, which from now on share their text with the leases that use them already.
    pub(crate) fn share_text_and_fits(&self, keys: &mut Keys) -> bool {
        keys.iter_mut()
            .fold(true, |fits, (key, mode)| self.locks.share_text_and_fits(key, *mode, &self.leases) && fits)
    }

    /// The live lease, or the waiter, with the smallest deadline, if that is past.
    pub(crate) fn first_past(&self, waits: bool, now_ms: u64) -> Option<Slot> {
        let index = if waits { &self.waiting } else { &self.live };
        index.first().filter(|&slot| self.leases.get(slot).is_past(now_ms))
    }

    /// The smallest deadline of all.
    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        let first = [self.live.first(), self.waiting.first()];
        first.into_iter().flatten().map(|slot| self.leases.get(slot).deadline_ms).min()
    }

    /// Keys whose next waiter fits and is not admitted yet, by the waiter's place.
    pub(crate) fn ready(&self) -> &BTreeSet<(Revision, Key)> {
        self.locks.ready()
    }

    /// All leases at this instant, whatever changes later.
    pub(crate) fn freeze(&self) -> Chunks<Lease> {
        self.leases.freeze()
    }

    /// For each owner, nobody first and then by name: how many leases it has, and its ended ones, oldest first.
    pub(crate) fn frozen_spaces(
        &self,
    ) -> impl Iterator<Item = (SpaceNo, Option<&PrincipalName>, usize, Fifo<EndedLease>)> {
        let spaces = self.spaces.iter();
        spaces.map(|(number, name, space)| (number, name, space.leases(), space.ended.freeze()))
    }

    /// Adds a live lease, which must fit its keys, or puts a waiter at the tail of its queues.
    pub(crate) fn insert(&mut self, lease: Lease) -> Slot {
        let (id, number) = (lease.id, lease.space);
        let waits = lease.waits();
        let bytes = lease.bytes(waits);
        self.bytes += bytes;
        let slot = self.leases.insert(lease);
        let space = self.spaces.get_mut(number);
        space.waiting += usize::from(waits);
        space.bytes += bytes;
        space.by_id.insert(id, slot, |slot| self.leases.get(slot).id);
        self.schedule(slot);
        self.enter(slot);
        slot
    }

    /// Takes a lease out, which is to be remembered as ended.
    pub(crate) fn remove(&mut self, slot: Slot) -> Lease {
        self.unschedule(slot);
        self.spaces.remove(self.leases.get(slot), |slot| self.leases.get(slot).id);
        let lease = self.leases.take(slot);
        self.bytes -= lease.bytes(lease.waits());
        for (key, _) in lease.keys.iter() {
            self.locks.remove(key, slot, lease.number);
        }
        lease
    }

    /// Changes a lease, its deadline included, but neither its id, its keys nor its number.
    pub(crate) fn edit<T>(&mut self, slot: Slot, change: impl FnOnce(&mut Lease) -> T) -> T {
        self.unschedule(slot);
        let done = change(self.leases.get_mut(slot));
        self.schedule(slot);
        done
    }

    /// Admits the waiter that came first of all those that fit a key and are not admitted there yet.
    pub(crate) fn admit_next(&mut self) -> Option<Slot> {
        let slot = self.locks.admit_next()?;
        self.leases.get_mut(slot).admit();
        Some(slot)
    }

    /// Makes a waiter that is admitted on all its keys live.
    pub(crate) fn grant(&mut self, slot: Slot, token: Revision, now_ms: u64) {
        self.unschedule(slot);
        let lease = self.leases.get_mut(slot);
        for (key, _) in lease.keys.iter() {
            self.locks.grant(key, lease.number, token);
        }
        let space = self.spaces.get_mut(lease.space);
        let of_wait = lease.bytes(true) - lease.bytes(false);
        space.waiting -= 1;
        space.bytes -= of_wait;
        self.bytes -= of_wait;
        lease.grant(token, now_ms);
        self.schedule(slot);
    }

    /// Puts a lease into the locks of its keys.
    fn enter(&mut self, slot: Slot) {
        let lease = self.leases.get(slot);
        let (waits, mut blocked) = (lease.waits(), 0);
        for &(ref key, mode) in lease.keys.iter() {
            let entry = Claimant { number: lease.number, mode, slot };
            if waits {
                blocked += usize::from(!self.locks.enqueue(key, entry, &self.leases));
            } else {
                self.locks.hold(key, entry, &self.leases);
            }
        }
        if waits && let Some(wait) = self.leases.get_mut(slot).wait_mut() {
            wait.blocked = blocked;
        }
    }

    fn schedule(&mut self, slot: Slot) {
        let lease = self.leases.get(slot);
        let index = if lease.waits() { &mut self.waiting } else { &mut self.live };
        index.insert(&lease.deadline(), slot, |slot| self.leases.get(slot).deadline());
    }

    /// Takes a lease off the index of its deadline, before that, its number or its state changes.
    fn unschedule(&mut self, slot: Slot) {
        let lease = self.leases.get(slot);
        let index = if lease.waits() { &mut self.waiting } else { &mut self.live };
        index.remove(&lease.deadline(), |slot| self.leases.get(slot).deadline());
    }
}
