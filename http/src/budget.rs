//! A memory budget that all connections share. If it is exceeded, the oldest shares are revoked first: the slowest clients
//! hold them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A bound on the bytes that all connections hold together.
pub(super) struct Budget<T> {
    max: usize,
    /// Called with the owner of a share that is revoked.
    revoke: fn(&T),
    shares: Mutex<Shares<T>>,
}

struct Shares<T> {
    held: usize,
    next: u64,
    /// Oldest first.
    all: BTreeMap<u64, (usize, Arc<T>)>,
}

/// The bytes that one connection holds, until this is dropped.
pub(super) struct Share<T> {
    budget: Arc<Budget<T>>,
    number: u64,
}

impl<T> Budget<T> {
    pub(super) fn new(max: usize, revoke: fn(&T)) -> Arc<Self> {
        let shares = Mutex::new(Shares { held: 0, next: 0, all: BTreeMap::new() });
        Arc::new(Self { max, revoke, shares })
    }

    /// A share of no bytes.
    pub(super) fn share(self: &Arc<Self>, owner: &Arc<T>) -> Share<T> {
        let mut shares = self.shares();
        let number = shares.next;
        shares.next += 1;
        shares.all.insert(number, (0, Arc::clone(owner)));
        Share { budget: Arc::clone(self), number }
    }

    fn shares(&self) -> MutexGuard<'_, Shares<T>> {
        self.shares.lock().expect("nothing panics while the shares are locked")
    }
}

impl<T> Share<T> {
    /// Adds `bytes` to the share, and revokes the oldest shares while the budget is exceeded.
    pub(super) fn grow(&self, bytes: usize) {
        let mut shares = self.budget.shares();
        let Some((held, _)) = shares.all.get_mut(&self.number) else { return };
        *held += bytes;
        shares.held += bytes;
        while shares.held > self.budget.max
            && let Some((_, (held, owner))) = shares.all.pop_first()
        {
            shares.held -= held;
            // Under the lock, so that the owner cannot drop the share and begin another request, which would be hit instead.
            (self.budget.revoke)(&owner);
        }
    }
}

impl<T> Drop for Share<T> {
    fn drop(&mut self) {
        let mut shares = self.budget.shares();
        if let Some((held, _)) = shares.all.remove(&self.number) {
            shares.held -= held;
        }
    }
}
