//! A queue whose owners take turns.
//!
//! Where requests of all clients wait for one thing, whoever has a thousand of them must not delay another. So the owners of what
//! waits take turns, however much each of them has. Where room is bounded, an owner [may have](Queue::may_have) as much as it leaves
//! free: one alone gets half, and the next one always finds some.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use tokio::sync::oneshot;

/// The fewest steps between two searches for waiters that have gone.
const MIN_STEPS: usize = 64;

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
#[derive(Debug)]
pub struct Queue<K, T> {
    /// Those with waiters, in the order of their next turns.
    owners: VecDeque<K>,
    /// None is empty.
    waiting: HashMap<K, VecDeque<T>>,
    /// How many wait, with those that have gone and are still here.
    len: usize,
    /// So many steps are left until those that have gone are removed. A search costs a look at each waiter, and there were as many
    /// steps before it. So a step costs little, and as many have gone as are here, at most.
    steps_left: usize,
}

impl<K, T> Default for Queue<K, T> {
    fn default() -> Self {
        Self { owners: VecDeque::new(), waiting: HashMap::new(), len: 0, steps_left: MIN_STEPS }
    }
}

impl<K: Clone + Eq + Hash, T: Waits> Queue<K, T> {
    /// Whether nothing is here, gone or not.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Whether `owner` may have one more waiter, where there is room for `max` in all: fewer of them are its own than are free.
    pub fn may_have(&mut self, owner: &K, max: usize) -> bool {
        self.step();
        self.waiting.get(owner).map_or(0, VecDeque::len) + self.len < max
    }

    /// Adds a waiter, as the last of its owner.
    pub fn push(&mut self, owner: K, waiter: T) {
        self.step();
        let own = self.waiting.entry(owner.clone()).or_default();
        if own.is_empty() {
            self.owners.push_back(owner);
        }
        own.push_back(waiter);
        self.len += 1;
    }

    /// Removes the next waiter.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_if(|_| true)
    }

    /// Removes the next waiter if it `fits`; if not, it stays the next one.
    pub fn pop_if(&mut self, fits: impl FnOnce(&T) -> bool) -> Option<T> {
        while let Some(own) = self.waiting.get_mut(self.owners.front()?) {
            let next = own.pop_front();
            self.len -= usize::from(next.is_some());
            match next {
                None => self.end_turn(),
                Some(waiter) if waiter.has_gone() => {}
                Some(waiter) if !fits(&waiter) => {
                    own.push_front(waiter);
                    self.len += 1;
                    return None;
                }
                Some(waiter) => {
                    self.end_turn();
                    return Some(waiter);
                }
            }
        }
        None
    }

    /// The next owner is next.
    fn end_turn(&mut self) {
        let Some(owner) = self.owners.pop_front() else { return };
        if self.waiting.get(&owner).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&owner);
        } else {
            self.owners.push_back(owner);
        }
    }

    fn step(&mut self) {
        self.steps_left -= 1;
        if self.steps_left > 0 {
            return;
        }
        self.waiting.retain(|_, own| {
            own.retain(|waiter| !waiter.has_gone());
            !own.is_empty()
        });
        self.owners.retain(|owner| self.waiting.contains_key(owner));
        self.len = self.waiting.values().map(VecDeque::len).sum();
        self.steps_left = self.len.max(MIN_STEPS);
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

    fn names(mut queue: Queue<char, Waiter>) -> Vec<&'static str> {
        let names = std::iter::from_fn(|| queue.pop().map(|waiter| waiter.0)).collect();
        assert!(queue.is_empty() && queue.len == 0 && queue.waiting.is_empty());
        names
    }

    fn of(waiters: impl IntoIterator<Item = (char, Waiter)>) -> Queue<char, Waiter> {
        let mut queue = Queue::default();
        waiters.into_iter().for_each(|(owner, waiter)| queue.push(owner, waiter));
        queue
    }

    #[test]
    fn owners_take_turns_and_what_has_gone_takes_none() {
        let here = |name| Waiter(name, false);
        let queue = of([
            ('a', here("a1")),
            ('a', Waiter("gone", true)),
            ('a', here("a2")),
            ('b', Waiter("gone", true)),
            ('a', here("a3")),
            ('c', here("c1")),
            ('c', here("c2")),
            ('b', here("b1")),
        ]);
        assert_eq!(names(queue), ["a1", "b1", "c1", "a2", "c2", "a3"]);
    }

    #[test]
    fn what_does_not_fit_stays_the_next() {
        let mut queue = of([('a', Waiter("a", false)), ('b', Waiter("b", false))]);
        assert!(queue.pop_if(|waiter| waiter.0 == "b").is_none());
        assert_eq!(names(queue), ["a", "b"]);
    }

    #[test]
    fn an_owner_leaves_as_much_as_it_has() {
        let mut queue = Queue::default();
        let mut fill = |owner| {
            let mut had = 0;
            while queue.may_have(&owner, 80) {
                queue.push(owner, Waiter("", false));
                had += 1;
            }
            had
        };
        assert_eq!(['a', 'a', 'b', 'c', 'd'].map(&mut fill), [40, 0, 20, 10, 5]);
    }

    /// Each has an owner of its own: a host has many addresses.
    #[test]
    fn those_that_have_gone_are_removed_although_no_turn_comes() {
        let mut queue = Queue::default();
        for owner in 0..10_000 {
            queue.push(owner, Waiter("gone", true));
        }
        assert!(queue.waiting.len() <= MIN_STEPS && queue.owners.len() <= MIN_STEPS, "{}", queue.len);
        queue.push(0, Waiter("here", false));
        while queue.len > 1 {
            assert!(queue.may_have(&1, 10_000));
        }
        assert_eq!(queue.pop().unwrap().0, "here");
    }
}
