//! A guard that keeps its numbers in memory, for many keys and any number of threads.
//!
//! It suits a process that is the only way to what it guards. It loses its numbers at a restart, and has room for a limited
//! number of keys. So a key is unknown at first, and nothing can accept a claim for it: only a [`GuardedKey`] does, and
//! making one from an [`UnknownKey`] takes the key's fence.
//!
//! ```text
//!  guard.key(&key) ─┬─ Ok(GuardedKey) ──────────────▶ touch, write, high, reset
//!                   └─ Err(UnknownKey) ──learn(fence)──▲
//! ```
//! **The fence must come from the cluster, by a linearizable read** that begins after the key was found unknown:
//! `GET /v1/keys/{key}`. It is not below any fence issued before, so not below the number that was
//! forgotten. A mirror, a cache or `consistency=local` can be behind that number: reject by them, never accept.
//!
//! The guard itself asks nobody: how to reach the cluster, with or without a runtime, is up to the caller.
//!
//! Here a write is done when its closure returns. For async writes there is `AsyncGuard` (feature `tokio`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_wire::{Key, Token};

use crate::cache::{Cache, Miss};
use crate::{Admission, Claim, ClaimError, High};

/// The numbers of many keys.
#[derive(Debug)]
pub struct MemoryGuard {
    cache: Cache<Mutex<High>>,
}

/// A key whose number is known. The guard does not forget a key while one exists for it: do not collect them.
#[derive(Debug)]
pub struct GuardedKey {
    high: Arc<Mutex<High>>,
}

/// A key whose number is unknown. It accepts nothing.
#[derive(Debug)]
#[must_use = "ask the cluster for the fence of the key, and let the guard learn it"]
pub struct UnknownKey<'a> {
    guard: &'a MemoryGuard,
    key: Key,
    miss: Miss,
}

impl MemoryGuard {
    /// An empty guard. It forgets the least recently used keys beyond about `max_keys`; each takes about 100 bytes and its
    /// text.
    pub fn new(max_keys: usize) -> Self {
        Self { cache: Cache::new(max_keys) }
    }

    /// The key, if its number is known.
    pub fn key(&self, key: &Key) -> Result<GuardedKey, UnknownKey<'_>> {
        let unknown = |miss| UnknownKey { guard: self, key: key.clone(), miss };
        self.cache.get(key).map(|high| GuardedKey { high }).map_err(unknown)
    }

    /// The key. If its number is unknown, `ask` gets the key's fence from the cluster. An answer that cannot be a fence
    /// is an error.
    pub fn key_or_ask<E: From<ClaimError>>(
        &self,
        key: &Key,
        mut ask: impl FnMut(&Key) -> Result<Token, E>,
    ) -> Result<GuardedKey, E> {
        let mut found = self.key(key);
        loop {
            match found {
                Ok(key) => return Ok(key),
                Err(unknown) => found = unknown.learn(ask(key)?)?,
            }
        }
    }

    /// How many keys it knows.
    pub fn known_keys(&self) -> usize {
        self.cache.len()
    }
}

impl<'a> UnknownKey<'a> {
    /// Makes the key known by its fence, asked for after `self` was made, by a linearizable read. If very many keys became
    /// known meanwhile, the answer is too old and the key is still unknown: ask again. A number that cannot be a fence, as
    /// 0 for an answer without one, is an error.
    pub fn learn(self, fence: Token) -> Result<Result<GuardedKey, UnknownKey<'a>>, ClaimError> {
        let Self { guard, key, miss } = self;
        let high = High::reset(fence)?;
        Ok(match guard.cache.insert(&key, miss, Mutex::new(high)) {
            Ok(high) => Ok(GuardedKey { high }),
            Err(miss) => Err(Self { guard, key, miss }),
        })
    }
}

impl GuardedKey {
    /// Shuts out every holder below the claim's fence. Call it before the first read. It waits for a write in progress.
    pub fn touch(&self, claim: Claim) -> Admission {
        self.lock().admit(claim)
    }

    /// Calls `write`, unless the token is dead. Nobody else touches or writes under the key until it returns: the write
    /// must be complete by then, not only begun. It must not use the same key.
    pub fn write(&self, claim: Claim, write: impl FnOnce()) -> Admission {
        let mut high = self.lock();
        let admission = high.admit(claim);
        if admission.is_accepted() {
            write();
        }
        admission
    }

    /// The number.
    pub fn high(&self) -> Token {
        self.lock().token()
    }

    /// Sets the number, down as well, to a fence of the key from the cluster.
    pub fn reset(&self, fence: Token) -> Result<(), ClaimError> {
        let high = High::reset(fence)?;
        *self.lock() = high;
        Ok(())
    }

    /// A write that panicked leaves the number as raised.
    fn lock(&self) -> MutexGuard<'_, High> {
        self.high.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn exclusive(token: u64) -> Claim {
        Claim::exclusive(Token(token)).unwrap()
    }

    fn key(text: &str) -> Key {
        text.parse().unwrap()
    }

    fn known(guard: &MemoryGuard, text: &str, fence: u64) -> GuardedKey {
        guard.key_or_ask(&key(text), |_| Ok::<_, ClaimError>(Token(fence))).unwrap()
    }

    #[test]
    fn after_a_restart_nothing_is_accepted_before_the_fence_is_known() {
        let before = MemoryGuard::new(10);
        assert!(known(&before, "a", 1).touch(exclusive(5)).is_accepted());

        let after = MemoryGuard::new(10);
        let unknown = after.key(&key("a")).unwrap_err();
        for no_fence in [0, 1 << 53, u64::MAX] {
            assert!(after.key(&key("a")).unwrap_err().learn(Token(no_fence)).is_err());
            let asked = after.key_or_ask(&key("a"), |_| Ok::<_, ClaimError>(Token(no_fence)));
            assert!(asked.is_err() && after.known_keys() == 0, "{no_fence} makes nothing known");
        }
        let a = unknown.learn(Token(5)).unwrap().unwrap();
        assert_eq!(
            a.write(exclusive(2), || panic!("a dead holder writes")),
            Admission::Stale { high: Token(5) }
        );
        assert!(a.write(exclusive(5), || ()).is_accepted());
        let unanswered = after.key_or_ask(&key("b"), |_| Err(Box::<dyn Error>::from("no leader")));
        assert_eq!(unanswered.unwrap_err().to_string(), "no leader");
        assert!(after.key(&key("b")).is_err(), "a question without an answer makes nothing known");
    }

    #[test]
    fn a_forgotten_key_is_asked_for_until_the_answer_is_fresh() {
        let guard = MemoryGuard::new(8);
        let mut asked = 0;
        let a = guard.key_or_ask(&key("a"), |_| {
            asked += 1;
            // While the first question is under way, a newer holder comes, goes, and is forgotten.
            if asked == 1 {
                assert!(known(&guard, "a", 1).touch(exclusive(5)).is_accepted());
                for other in 0..100 {
                    known(&guard, &format!("other/{other}"), 1);
                }
                return Ok::<_, ClaimError>(Token(2));
            }
            Ok(Token(5))
        });
        assert_eq!((a.unwrap().touch(exclusive(2)), asked), (Admission::Stale { high: Token(5) }, 2));
    }

    #[test]
    fn a_write_that_panics_shuts_out_only_earlier_holders() {
        let guard = MemoryGuard::new(10);
        let a = known(&guard, "a", 1);
        let panics = catch_unwind(AssertUnwindSafe(|| a.write(exclusive(4), || panic!("a test"))));
        assert!(panics.is_err());
        assert_eq!(a.touch(exclusive(3)), Admission::Stale { high: Token(4) });
        assert!(a.touch(exclusive(4)).is_accepted());
    }

    #[test]
    fn an_operator_frees_a_key_that_was_shown_a_timestamp() {
        let guard = MemoryGuard::new(10);
        let a = known(&guard, "a", 4);
        assert!(a.touch(exclusive(1_790_000_000_000)).is_accepted());
        assert!(!a.touch(exclusive(6)).is_accepted());
        assert!(a.reset(Token(u64::MAX)).is_err());
        a.reset(Token(6)).unwrap();
        assert!(a.touch(exclusive(6)).is_accepted());
        assert!(!a.touch(exclusive(5)).is_accepted());
        assert_eq!(known(&guard, "a", 1).high(), Token(6));
    }
}
