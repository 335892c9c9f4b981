//! The keys in memory, bounded in number.
//!
//! A key is inserted with a fence that was asked for **after** a lookup missed; a [`Miss`] stands for that lookup.
//! There are two generations. A used key moves to the newer one; when that is full, the older one is evicted and the newer one
//! becomes the older. So a key stays at least until as many others were used as fit in a generation.
//!
//! After an eviction, an answer to an earlier question may be too old: a newer holder may have raised the number in
//! between. Such an answer is refused.
//!
//! A key in use is never evicted: two holders would each have a lock of their own, and write at the same time.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_wire::Key;

const MAX_SHARDS: usize = 64;
/// Keys in a shard below which a cache has fewer shards.
const SHARD_ROOM: usize = 1_024;

/// Keys, each with its `L`: a lock around its number.
#[derive(Debug)]
pub(crate) struct Cache<L> {
    hasher: RandomState,
    shards: Box<[Mutex<Shard<L>>]>,
    /// The size of a generation of a shard.
    room: usize,
}

#[derive(Debug)]
struct Shard<L> {
    newer: HashMap<Key, Arc<L>>,
    older: HashMap<Key, Arc<L>>,
    evictions: u64,
}

/// A lookup that found nothing: the number of evictions at that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss(u64);

impl<L> Cache<L> {
    /// A cache of about this many keys, besides those in use.
    pub(crate) fn new(max_keys: usize) -> Self {
        let shards = (max_keys / SHARD_ROOM).clamp(1, MAX_SHARDS);
        let shard = || Mutex::new(Shard { newer: HashMap::new(), older: HashMap::new(), evictions: 0 });
        Self {
            hasher: RandomState::new(),
            shards: std::iter::repeat_with(shard).take(shards).collect(),
            room: (max_keys / shards / 2).max(1),
        }
    }

    /// The key's lock. While the lock is in use, the key is not evicted.
    pub(crate) fn get(&self, key: &Key) -> Result<Arc<L>, Miss> {
        let mut shard = self.shard(key);
        shard.get(key, self.room).ok_or(Miss(shard.evictions))
    }

    /// Inserts a lock made from an answer to a question asked after `miss`. If another answer came first, that one
    /// stands. If this one is too old, nothing changes.
    pub(crate) fn insert(&self, key: &Key, miss: Miss, lock: L) -> Result<Arc<L>, Miss> {
        let mut shard = self.shard(key);
        if let Some(lock) = shard.get(key, self.room) {
            return Ok(lock);
        }
        // A key inserted since the miss was in the newer generation then: only a second eviction can have removed it.
        if shard.evictions > miss.0 + 1 {
            return Err(Miss(shard.evictions));
        }
        Ok(shard.insert(key.clone(), Arc::new(lock), self.room))
    }

    pub(crate) fn len(&self) -> usize {
        let len = |shard: &Mutex<Shard<L>>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.newer.len() + shard.older.len()
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
        if let Some(lock) = self.newer.get(key) {
            return Some(lock.clone());
        }
        let (key, lock) = self.older.remove_entry(key)?;
        Some(self.insert(key, lock, room))
    }

    /// Inserts a key that is in neither generation.
    fn insert(&mut self, key: Key, lock: Arc<L>, room: usize) -> Arc<L> {
        if self.newer.len() >= room {
            let newer = std::mem::take(&mut self.newer);
            let mut evicted = std::mem::replace(&mut self.older, newer);
            evicted.retain(|_, lock| Arc::strong_count(lock) > 1);
            self.older.extend(evicted);
            self.evictions += 1;
        }
        self.newer.insert(key, lock.clone());
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(&format!("key/{number}")).unwrap()
    }

    /// Inserts a missing key. Its lock is only its number.
    fn insert(cache: &Cache<usize>, number: usize) -> Arc<usize> {
        let miss = cache.get(&key(number)).unwrap_err();
        cache.insert(&key(number), miss, number).unwrap()
    }

    #[test]
    fn keys_that_are_not_used_again_are_evicted() {
        let cache = Cache::new(8);
        for number in 0..1_000 {
            insert(&cache, number);
            assert!(cache.get(&key(0)).is_ok(), "the one in use stays");
            assert!(cache.len() <= 8, "{}", cache.len());
        }
        assert!(cache.get(&key(500)).is_err());
        assert!(cache.get(&key(999)).is_ok());
    }

    #[test]
    fn a_key_in_use_is_not_evicted() {
        let cache = Cache::new(8);
        let lock = insert(&cache, 0);
        for number in 1..1_000 {
            insert(&cache, number);
        }
        assert!(Arc::ptr_eq(&lock, &cache.get(&key(0)).unwrap()));
        drop(lock);
        for number in 1_000..1_100 {
            insert(&cache, number);
        }
        assert!(cache.get(&key(0)).is_err());
    }

    #[test]
    fn an_answer_from_before_an_eviction_is_refused() {
        let cache = Cache::new(8);
        let early = cache.get(&key(0)).unwrap_err();
        insert(&cache, 0);
        let mut others = 1..;
        while cache.contains(&key(0)) {
            insert(&cache, others.next().unwrap());
        }
        let miss = cache.insert(&key(0), early, 7).unwrap_err();
        assert_eq!(*cache.insert(&key(0), miss, 8).unwrap(), 8);
    }

    #[test]
    fn an_answer_is_accepted_after_other_keys_were_inserted() {
        let cache = Cache::new(8);
        let miss = cache.get(&key(0)).unwrap_err();
        for number in 1..=5 {
            insert(&cache, number);
        }
        assert_eq!(*cache.insert(&key(0), miss, 7).unwrap(), 7);
        assert_eq!(*cache.insert(&key(0), miss, 8).unwrap(), 7, "the first answer stands");
    }

    impl<L> Cache<L> {
        fn contains(&self, key: &Key) -> bool {
            let shard = self.shard(key);
            shard.newer.contains_key(key) || shard.older.contains_key(key)
        }
    }
}
