//! The keys that a guard in memory knows, and no more of them than it has room for.
//!
//! A key gets in with a fence that was asked for **after** it was found to be unknown; that question is what a
//! [`Since`] stands for. Two generations make room: what is used is in the younger one, and when that is full the older one
//! is let go of and the younger one becomes the older. So a key stays at least until as many others were used as
//! a generation has room for.
//!
//! A key that was let go of is unknown again. An answer to a question from before that would be too old: in between, a
//! newer holder may have raised the number that was let go of. Such an answer is not taken.
//!
//! A key in use is never let go of: two holders would each have a lock of its own, and write at the same time.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_wire::Key;

const MOST_SHARDS: usize = 64;
/// A table with room for fewer keys than this in each shard has fewer shards.
const SHARD_ROOM: usize = 1_024;

/// The known keys, each with its `L`: a lock around its number.
#[derive(Debug)]
pub(crate) struct Known<L> {
    hasher: RandomState,
    shards: Box<[Mutex<Shard<L>>]>,
    /// How many keys a generation of a shard has room for.
    room: usize,
}

#[derive(Debug)]
struct Shard<L> {
    young: HashMap<Key, Arc<L>>,
    old: HashMap<Key, Arc<L>>,
    /// How often a generation was let go of.
    let_go: u64,
}

/// When a key was found to be unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since(u64);

impl<L> Known<L> {
    /// With room for about this many keys, besides those in use.
    pub(crate) fn new(most_keys: usize) -> Self {
        let shards = (most_keys / SHARD_ROOM).clamp(1, MOST_SHARDS);
        let shard = || Mutex::new(Shard { young: HashMap::new(), old: HashMap::new(), let_go: 0 });
        Self {
            hasher: RandomState::new(),
            shards: std::iter::repeat_with(shard).take(shards).collect(),
            room: (most_keys / shards / 2).max(1),
        }
    }

    /// The key's lock. While that is in use, the key is known.
    pub(crate) fn get(&self, key: &Key) -> Result<Arc<L>, Since> {
        let mut shard = self.shard(key);
        shard.get(key, self.room).ok_or(Since(shard.let_go))
    }

    /// Makes the key known by an answer to a question that was put after `since`; an answer that came too late to be
    /// believed changes nothing. Where another answer came first, that one stands.
    pub(crate) fn learn(&self, key: &Key, since: Since, lock: L) -> Result<Arc<L>, Since> {
        let mut shard = self.shard(key);
        if let Some(lock) = shard.get(key, self.room) {
            return Ok(lock);
        }
        // Had it been learnt since, it was among the young then: it is let go of with the second generation from there.
        if shard.let_go > since.0 + 1 {
            return Err(Since(shard.let_go));
        }
        Ok(shard.keep(key.clone(), Arc::new(lock), self.room))
    }

    /// How many keys are known.
    pub(crate) fn len(&self) -> usize {
        let len = |shard: &Mutex<Shard<L>>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.young.len() + shard.old.len()
        };
        self.shards.iter().map(len).sum()
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard<L>> {
        let index = match self.shards.len() {
            1 => 0,
            // The upper half: the maps, which have other seeds, use all bits of theirs.
            shards => (self.hasher.hash_one(key) >> 32) as usize % shards,
        };
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L> Shard<L> {
    fn get(&mut self, key: &Key, room: usize) -> Option<Arc<L>> {
        if let Some(lock) = self.young.get(key) {
            return Some(lock.clone());
        }
        let (key, lock) = self.old.remove_entry(key)?;
        Some(self.keep(key, lock, room))
    }

    /// Puts a key that is in neither generation among the young.
    fn keep(&mut self, key: Key, lock: Arc<L>, room: usize) -> Arc<L> {
        if self.young.len() >= room {
            let young = std::mem::take(&mut self.young);
            let mut let_go = std::mem::replace(&mut self.old, young);
            let_go.retain(|_, lock| Arc::strong_count(lock) > 1);
            self.old.extend(let_go);
            self.let_go += 1;
        }
        self.young.insert(key, lock.clone());
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(&format!("key/{number}")).unwrap()
    }

    /// Makes a key known that was not; its lock is only its number.
    fn learn(known: &Known<usize>, number: usize) -> Arc<usize> {
        let since = known.get(&key(number)).unwrap_err();
        known.learn(&key(number), since, number).unwrap()
    }

    #[test]
    fn keys_that_are_not_used_again_are_let_go_of() {
        let known = Known::new(8);
        for number in 0..1_000 {
            learn(&known, number);
            assert!(known.get(&key(0)).is_ok(), "the one in use stays");
            assert!(known.len() <= 8, "{}", known.len());
        }
        assert!(known.get(&key(500)).is_err());
        assert!(known.get(&key(999)).is_ok());
    }

    #[test]
    fn a_key_whose_lock_is_held_on_to_keeps_it() {
        let known = Known::new(8);
        let lock = learn(&known, 0);
        for number in 1..1_000 {
            learn(&known, number);
        }
        assert!(Arc::ptr_eq(&lock, &known.get(&key(0)).unwrap()));
        drop(lock);
        for number in 1_000..1_100 {
            learn(&known, number);
        }
        assert!(known.get(&key(0)).is_err());
    }

    #[test]
    fn an_answer_that_the_key_may_have_outlived_is_not_taken() {
        let known = Known::new(8);
        let early = known.get(&key(0)).unwrap_err();
        learn(&known, 0);
        let mut others = 1..;
        while known.get_without_use(&key(0)) {
            learn(&known, others.next().unwrap());
        }
        let since = known.learn(&key(0), early, 7).unwrap_err();
        assert_eq!(*known.learn(&key(0), since, 8).unwrap(), 8);
    }

    #[test]
    fn an_answer_is_taken_though_other_keys_came_meanwhile() {
        let known = Known::new(8);
        let since = known.get(&key(0)).unwrap_err();
        for number in 1..=5 {
            learn(&known, number);
        }
        assert_eq!(*known.learn(&key(0), since, 7).unwrap(), 7);
        assert_eq!(*known.learn(&key(0), since, 8).unwrap(), 7, "the first answer stands");
    }

    impl<L> Known<L> {
        fn get_without_use(&self, key: &Key) -> bool {
            let shard = self.shard(key);
            shard.young.contains_key(key) || shard.old.contains_key(key)
        }
    }
}
