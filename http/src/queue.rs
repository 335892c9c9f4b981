//! Who waits, by owner.

use std::collections::{HashMap, VecDeque};

use crate::owner::Owner;

/// Waiters. Their owners take turns, however many waiters each has; those of one are in order.
pub(super) struct Queue<T> {
    /// In the order of the next turns.
    owners: VecDeque<Owner>,
    waiting: HashMap<Owner, VecDeque<T>>,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { owners: VecDeque::new(), waiting: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(super) fn push(&mut self, owner: Owner, waiter: T) {
        let own = self.waiting.entry(owner.clone()).or_default();
        if own.is_empty() {
            self.owners.push_back(owner);
        }
        own.push_back(waiter);
    }

    /// Removes the next waiter, and those of its owner before it that have gone.
    pub(super) fn pop(&mut self, has_gone: impl Fn(&T) -> bool) -> Option<T> {
        let owner = self.owners.pop_front()?;
        let own = self.waiting.get_mut(&owner)?;
        let mut waiter = own.pop_front();
        while waiter.as_ref().is_some_and(&has_gone) && !own.is_empty() {
            waiter = own.pop_front();
        }
        if own.is_empty() {
            self.waiting.remove(&owner);
        } else {
            self.owners.push_back(owner);
        }
        waiter
    }
}
