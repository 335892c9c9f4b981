use ringfence_wire::{Key, LeaseId, Mode, PrincipalName, Revision};

use super::deadlines::Deadlines;
use super::ended::{Ended, EndedLease};
use super::fifo::Fifo;
use super::ids::Ids;
use super::queue::Claimant;
use super::slots::Slot;
use super::{Store, spaces};
use crate::Value;
use crate::lease::Lease;
use crate::owner::SpaceNo;
use crate::requests::Requests;

/// Builds a store from the leases of a snapshot, and says what contradicts what. Indexes are built at the end, those by
/// key and deadline from sorted lists: to insert a million leases one by one takes several times as long.
#[derive(Default)]
pub(crate) struct Loader {
    store: Store,
    /// Whose leases are being added.
    space: SpaceNo,
    /// Their ids, and those of its ended leases.
    ids: Vec<(LeaseId, Slot)>,
    ended: Fifo<EndedLease>,
    /// The exclusive holders. Shared ones are among the locks already: leases on the same key share its text from the
    /// start.
    exclusive: Vec<(Key, Slot)>,
    ready: Vec<(Revision, Key)>,
}

const CONFLICT: &str = "two leases that are not compatible hold a key";
const ONE_CHANGE: &str = "two leases were made by one change";

type Checked<T = ()> = Result<T, &'static str>;

impl Loader {
    /// What is added from now on is of the owner that is next by name.
    pub(crate) fn owner(&mut self, name: PrincipalName) -> Checked {
        self.finish_space()?;
        if self.store.spaces.name(self.space).is_some_and(|last| *last >= name) {
            return Err("the owners are not in the order of their names");
        }
        self.space = self.store.spaces.open(Some(&name)).ok_or("it has too many owners")?;
        Ok(())
    }

    /// Builds the indexes of the space whose leases were added.
    fn finish_space(&mut self) -> Checked {
        if self.has_an_ended_lease() {
            return Err("a lease is both active and ended");
        }
        let (ids, ended) = (std::mem::take(&mut self.ids), std::mem::take(&mut self.ended));
        if self.space != SpaceNo::default() && ids.is_empty() && ended.len() == 0 {
            return Err("an owner has nothing");
        }
        let leases = || ids.iter().map(|(_, slot)| self.store.leases.get(*slot));
        let waiting = leases().filter(|lease| lease.waits()).count();
        let bytes = leases().map(|lease| lease.bytes(lease.waits())).sum();
        let id_at = |slot| self.store.leases.get(slot).id;
        let by_id = Ids::of(ids.len(), ids.into_iter(), id_at).ok_or("two leases have one id")?;
        let ended = Ended::restore(ended).ok_or("a lease ended twice")?;
        *self.store.spaces.get_mut(self.space) = spaces::Space { by_id, waiting, bytes, ended };
        self.store.spaces.note_oldest(self.space, None);
        Ok(())
    }

    /// Adds the next lease by id. Shared holders are among the locks then; exclusive ones and waiters are with [`Self::finish`].
    pub(crate) fn lease(&mut self, mut lease: Lease) -> Checked {
        lease.space = self.space;
        let (id, number) = (lease.id, lease.number);
        if self.ids.last().is_some_and(|&(last, _)| last >= id) {
            return Err("the leases are not in the order of their ids");
        }
        let Store { leases, locks, bytes, .. } = &mut self.store;
        let waits = lease.waits();
        let shared = lease.keys.iter_mut().filter(|(_, mode)| !waits && *mode != Mode::Exclusive);
        for (key, mode) in shared {
            if !locks.share_text_and_fits(key, *mode, leases) {
                return Err(CONFLICT);
            }
        }
        *bytes += lease.bytes(waits);
        let slot = leases.insert(lease);
        self.ids.push((id, slot));
        for &(ref key, mode) in leases.get(slot).keys.iter().filter(|_| !waits) {
            if mode == Mode::Exclusive {
                self.exclusive.push((key.clone(), slot));
            } else {
                locks.hold(key, Claimant { number, mode, slot }, leases);
            }
        }
        Ok(())
    }

    /// Sets the requests of the lease that was added last.
    pub(crate) fn requests(&mut self, requests: Requests) -> Checked {
        let last = self.ids.last().map(|&(_, slot)| self.store.leases.get_mut(slot));
        let waiter = last.and_then(|lease| Some((lease.deadline_ms, lease.wait_mut()?)));
        match waiter {
            Some((deadline_ms, wait))
                if requests.is_possible() && requests.until_ms() == Some(deadline_ms) =>
            {
                wait.requests = requests;
                Ok(())
            }
            _ => Err("requests belong to a lease that does not wait, or not until then"),
        }
    }

    /// Sets the value of the lease that was added last.
    pub(crate) fn value(&mut self, value: Value) -> Checked {
        let last = self.ids.last().map(|&(_, slot)| self.store.leases.get_mut(slot));
        let may_have_one = |lease: &&mut Lease| {
            let is_exclusive = matches!(lease.keys[..], [(_, Mode::Exclusive)]);
            is_exclusive && !lease.waits() && lease.value().is_none() && lease.metadata().is_none()
        };
        let lease = last.filter(may_have_one).ok_or("a value belongs to a lease that cannot have one")?;
        let without = lease.bytes(false);
        lease.set_value(value);
        self.store.bytes += lease.bytes(false) - without;
        Ok(())
    }

    /// Adds the ended lease that is next by time.
    pub(crate) fn ended(&mut self, lease: EndedLease) -> Checked {
        if self.ended.back().is_some_and(|latest| lease.ended_ms < latest.ended_ms) {
            return Err("the ended leases are not in the order of their ends");
        }
        self.ended.push_back(lease);
        Ok(())
    }

    /// Adds that the waiter at `place`, which is next by place, fits `key` and is not admitted there yet.
    pub(crate) fn ready(&mut self, place: Revision, key: Key) -> Checked {
        if self.ready.last().is_some_and(|(last, last_key)| (*last, last_key) >= (place, &key)) {
            return Err("the ready keys are not in the order of their places");
        }
        self.ready.push((place, key));
        Ok(())
    }

    /// The store of all that was added, at `now_ms`.
    pub(crate) fn finish(mut self, now_ms: u64) -> Checked<Store> {
        self.finish_space()?;
        let Self { mut store, exclusive, ready, .. } = self;
        if !store.locks.hold_all(exclusive) {
            return Err(CONFLICT);
        }
        let all = store.leases.iter();
        let mut by_number: Vec<_> = all.map(|(slot, lease)| (lease.number, slot, lease.waits())).collect();
        by_number.sort_unstable_by_key(|&(number, ..)| number);
        if !by_number.is_sorted_by(|(one, ..), (next, ..)| one < next) {
            return Err(ONE_CHANGE);
        }
        let live = store.leases.iter().filter(|(_, lease)| !lease.waits());
        store.live = Deadlines::of(live.map(|(slot, lease)| (lease.deadline(), slot))).ok_or(ONE_CHANGE)?;
        for (place, key) in &ready {
            if !store.locks.restore_ready(key, *place, &store.leases) {
                return Err("a key is ready twice");
            }
        }
        for (_, slot, _) in by_number.into_iter().filter(|&(.., waits)| waits) {
            store.restore_waiter(slot, now_ms)?;
        }
        if !store.locks.is_ready_as_restored(&store.leases) {
            return Err("a key is not ready as it must be");
        }
        Ok(store)
    }

    /// Walks both lists in order: a search for each id takes longer than all the rest.
    fn has_an_ended_lease(&self) -> bool {
        let mut ended: Vec<LeaseId> = self.ended.iter().map(|ended| ended.id).collect();
        ended.sort_unstable();
        let mut ended = ended.into_iter().peekable();
        self.ids.iter().any(|&(id, _)| {
            while ended.next_if(|ended| *ended < id).is_some() {}
            ended.peek() == Some(&id)
        })
    }
}

impl Store {
    /// Puts a waiter at the tail of its queues. Waiters must come by place.
    fn restore_waiter(&mut self, slot: Slot, now_ms: u64) -> Checked {
        for (key, _) in self.leases.get_mut(slot).keys.iter_mut() {
            self.locks.share_text(key);
        }
        self.schedule(slot);
        self.enter(slot);
        let waiter = self.leases.get(slot);
        if waiter.is_admitted() && !waiter.is_past(now_ms) {
            return Err("a lease waits though nothing blocks it");
        }
        Ok(())
    }
}
