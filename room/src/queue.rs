//! Who waits, by owner.
//!
//! Where requests of all clients wait for one thing, an owner of a thousand of them must not delay another.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use crate::Owner;

/// The fewest pushes between two searches for waiters that have gone.
const MIN_PUSHES: usize = 64;

/// What waits in a queue.
pub trait Waits {
    /// Whether nobody needs it any more: it may be removed.
    fn has_gone(&self) -> bool;
}

impl<T> Waits for oneshot::Sender<T> {
    fn has_gone(&self) -> bool {
        self.is_closed()
    }
}

/// Waiters. Their owners take turns, however many waiters each has; those of one are in order.
pub struct Queue<O, T> {
    /// Those with waiters, in the order of their next turns.
    owners: VecDeque<O>,
    /// None is empty.
    waiting: HashMap<O, VecDeque<T>>,
    /// After as many pushes, those that have gone are removed. It looks at each waiter, and there are as many pushes before it as it
    /// left waiters the last time: so a push costs little, and no more have gone than are here.
    pushes_left: usize,
}

impl<O, T> Default for Queue<O, T> {
    fn default() -> Self {
        Self { owners: VecDeque::new(), waiting: HashMap::new(), pushes_left: MIN_PUSHES }
    }
}

impl<O: Owner, T: Waits> Queue<O, T> {
    /// Whether nothing is here, gone or not.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Adds a waiter, as the last of its owner.
    pub fn push(&mut self, owner: O, waiter: T) {
        self.pushes_left -= 1;
        if self.pushes_left == 0 {
            self.remove_gone();
        }
        let own = self.waiting.entry(owner.clone()).or_default();
        if own.is_empty() {
            self.owners.push_back(owner);
        }
        own.push_back(waiter);
    }

    /// Removes the next waiter, and those that have gone before it: they take no turn.
    pub fn pop(&mut self) -> Option<T> {
        while let Some(owner) = self.owners.pop_front() {
            let Some(own) = self.waiting.get_mut(&owner) else { continue };
            let next = std::iter::from_fn(|| own.pop_front()).find(|waiter| !waiter.has_gone());
            if own.is_empty() {
                self.waiting.remove(&owner);
            } else {
                self.owners.push_back(owner);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    fn remove_gone(&mut self) {
        self.waiting.retain(|_, own| {
            own.retain(|waiter| !waiter.has_gone());
            !own.is_empty()
        });
        self.owners.retain(|owner| self.waiting.contains_key(owner));
        self.pushes_left = self.waiting.values().map(VecDeque::len).sum::<usize>().max(MIN_PUSHES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With whether it has gone.
    struct Waiter(&'static str, bool);

    impl Waits for Waiter {
        fn has_gone(&self) -> bool {
            self.1
        }
    }

    #[test]
    fn owners_take_turns_and_what_has_gone_takes_none() {
        let here = |name| Waiter(name, false);
        let mut queue = Queue::default();
        for (name, waiter) in [
            ('a', here("a1")),
            ('a', Waiter("gone", true)),
            ('a', here("a2")),
            ('b', Waiter("gone", true)),
            ('a', here("a3")),
            ('c', here("c1")),
            ('c', here("c2")),
            ('b', here("b1")),
        ] {
            queue.push(name, waiter);
        }
        let names: Vec<_> = std::iter::from_fn(|| queue.pop().map(|waiter| waiter.0)).collect();
        assert_eq!(names, ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert!(queue.is_empty() && queue.waiting.is_empty());
    }

    /// Each has an owner of its own: a host has many addresses.
    #[test]
    fn those_that_have_gone_are_removed_although_no_turn_comes() {
        let mut queue = Queue::default();
        for number in 0..10_000 {
            queue.push(number, Waiter("gone", true));
        }
        assert!(queue.waiting.len() <= MIN_PUSHES && queue.owners.len() <= MIN_PUSHES);
        queue.push(0, Waiter("here", false));
        assert_eq!(queue.pop().map(|waiter| waiter.0), Some("here"));
    }
}
