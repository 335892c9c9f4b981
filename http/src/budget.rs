//! A memory budget that all connections share. If it is exceeded, the owner that holds most loses its oldest shares: its slowest clients
//! hold them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::owner::Owner;

/// A bound on the bytes that all connections hold together.
pub(super) struct Budget<T> {
    max: usize,
    /// Called with the holder of a share that is revoked.
    revoke: fn(&T),
    shares: Mutex<Shares<T>>,
}

struct Shares<T> {
    held: usize,
    next: u64,
    owners: HashMap<Owner, Owned<T>>,
    /// How much each of the owners holds.
    by_held: BTreeSet<(usize, Owner)>,
}

/// The shares of one owner.
struct Owned<T> {
    held: usize,
    /// Oldest first.
    shares: BTreeMap<u64, (usize, Arc<T>)>,
}

/// The bytes that one connection holds, until this is dropped.
pub struct Share<T> {
    budget: Arc<Budget<T>>,
    owner: Owner,
    number: u64,
}

impl<T> Budget<T> {
    pub(super) fn new(max: usize, revoke: fn(&T)) -> Arc<Self> {
        let shares = Shares { held: 0, next: 0, owners: HashMap::new(), by_held: BTreeSet::new() };
        Arc::new(Self { max, revoke, shares: Mutex::new(shares) })
    }

    /// A share of no bytes, which counts as its `owner`'s.
    pub(super) fn share(self: &Arc<Self>, owner: Owner, holder: &Arc<T>) -> Share<T> {
        let mut shares = self.shares();
        let number = shares.next;
        shares.next += 1;
        let own = shares.owners.entry(owner.clone()).or_insert_with(Owned::new);
        own.shares.insert(number, (0, Arc::clone(holder)));
        Share { budget: Arc::clone(self), owner, number }
    }

    fn shares(&self) -> MutexGuard<'_, Shares<T>> {
        self.shares.lock().expect("nothing panics while the shares are locked")
    }
}

impl<T> Owned<T> {
    fn new() -> Self {
        Self { held: 0, shares: BTreeMap::new() }
    }
}

impl<T> Shares<T> {
    /// Adds `bytes` to a share, if it was not revoked.
    fn grow(&mut self, owner: &Owner, number: u64, bytes: usize) {
        let Some(own) = self.owners.get_mut(owner) else { return };
        let Some((held, _)) = own.shares.get_mut(&number) else { return };
        *held += bytes;
        self.by_held.remove(&(own.held, owner.clone()));
        own.held += bytes;
        self.by_held.insert((own.held, owner.clone()));
        self.held += bytes;
    }

    fn remove(&mut self, owner: &Owner, number: u64) -> Option<Arc<T>> {
        let own = self.owners.get_mut(owner)?;
        let (bytes, holder) = own.shares.remove(&number)?;
        self.by_held.remove(&(own.held, owner.clone()));
        own.held -= bytes;
        self.held -= bytes;
        if own.shares.is_empty() {
            self.owners.remove(owner);
        } else {
            self.by_held.insert((own.held, owner.clone()));
        }
        Some(holder)
    }

    /// Removes the oldest share of the owner that holds most.
    fn remove_one(&mut self) -> Option<Arc<T>> {
        let (_, owner) = self.by_held.last()?.clone();
        let number = *self.owners.get(&owner)?.shares.first_key_value()?.0;
        self.remove(&owner, number)
    }
}

impl<T> Share<T> {
    /// Adds `bytes` to the share, and revokes shares while the budget is exceeded.
    pub(super) fn grow(&self, bytes: usize) {
        let mut shares = self.budget.shares();
        shares.grow(&self.owner, self.number, bytes);
        while shares.held > self.budget.max
            && let Some(holder) = shares.remove_one()
        {
            // Under the lock, so that the holder cannot drop the share and begin another request, which would be hit instead.
            (self.budget.revoke)(&holder);
        }
    }
}

impl<T> Drop for Share<T> {
    fn drop(&mut self) {
        self.budget.shares().remove(&self.owner, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    fn revoke(holder: &AtomicBool) {
        holder.store(true, Relaxed);
    }

    #[test]
    fn the_owner_that_holds_most_loses_its_oldest_shares_first() {
        let budget = Budget::new(100, revoke);
        let share = |owner: &str, bytes| {
            let holder = Arc::new(AtomicBool::new(false));
            let share = budget.share(Owner::Principal(owner.into()), &holder);
            share.grow(bytes);
            (holder, share)
        };
        let few = share("few", 30);
        let many: Vec<_> = (0..5).map(|_| share("many", 20)).collect();
        let revoked: Vec<_> = many.iter().map(|(holder, _)| holder.load(Relaxed)).collect();
        assert_eq!(revoked, [true, true, false, false, false]);
        assert!(!few.0.load(Relaxed));
        few.1.grow(40);
        assert!(few.0.load(Relaxed), "it holds most now");
        drop((few, many));
        let shares = budget.shares();
        assert!(shares.held == 0 && shares.owners.is_empty() && shares.by_held.is_empty());
    }
}
