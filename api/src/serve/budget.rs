//! Memory that many connections share. What is held for longest is given up first: that of the slowest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A bound on the bytes that all connections hold together.
pub(super) struct Budget<T> {
    most: usize,
    /// What happens to the owner of a share that is taken away.
    take_away: fn(&T),
    shares: Mutex<Shares<T>>,
}

struct Shares<T> {
    held: usize,
    next: u64,
    /// By age.
    all: BTreeMap<u64, (usize, Arc<T>)>,
}

/// What one connection holds, until this is dropped.
pub(super) struct Share<T> {
    budget: Arc<Budget<T>>,
    number: u64,
}

impl<T> Budget<T> {
    pub(super) fn new(most: usize, take_away: fn(&T)) -> Arc<Self> {
        Arc::new(Self {
            most,
            take_away,
            shares: Mutex::new(Shares { held: 0, next: 0, all: BTreeMap::new() }),
        })
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
        self.shares.lock().expect("nothing that panics is done while it is locked")
    }
}

impl<T> Share<T> {
    /// Adds `bytes` to the share. Where that exceeds the bound, the oldest shares are taken away.
    pub(super) fn grow(&self, bytes: usize) {
        let mut shares = self.budget.shares();
        let Some((held, _)) = shares.all.get_mut(&self.number) else { return };
        *held += bytes;
        shares.held += bytes;
        while shares.held > self.budget.most
            && let Some((_, (held, loser))) = shares.all.pop_first()
        {
            shares.held -= held;
            // Locked, as the share is the loser's own until that is told: else it might be told of another request.
            (self.budget.take_away)(&loser);
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
