//! A [`MemoryGuard`](crate::MemoryGuard) for async writes: to a disk, a device, another server.
//!
//! **Dropping a future must not let the next holder in early.** A caller gives up (a timeout, a `select!`, a client that
//! disconnects), and a write that it had begun may still land. So a write is a task of its own, which keeps the key
//! until it has ended, whether or not anybody waits for it. A call dropped before its write began does nothing.
//!
//! When the write ends, it must be done, or certain never to happen. A write that gave up waiting for something, or left a
//! task behind, is not covered. One that never ends blocks its key for ever.
//!
//! All claims on one key take turns, first come, first served.

use std::fmt::Display;
use std::panic::resume_unwind;
use std::sync::Arc;

use ringfence_wire::{Key, Token};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::cache::Cache;
use crate::{Admission, Claim, ClaimError, High};

/// The numbers of many keys, for async code within a tokio runtime.
#[derive(Debug)]
pub struct AsyncGuard {
    cache: Cache<Mutex<High>>,
}

/// A key whose number is known. The guard does not forget a key while one exists for it: do not collect them.
#[derive(Debug)]
pub struct AsyncGuardedKey {
    high: Arc<Mutex<High>>,
}

/// Why the number of a key is unknown. Nothing is accepted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError<E: Display> {
    /// The cluster could not be asked.
    #[error("{0}")]
    Unanswered(E),
    /// Its answer cannot be a fence.
    #[error("the answer was no fence: {0}")]
    NoFence(ClaimError),
}

/// The runtime was shut down during a write: it may or may not have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted: the write may or may not have been done")]
pub struct Interrupted;

impl AsyncGuard {
    /// An empty guard. It forgets the least recently used keys beyond about `max_keys`.
    pub fn new(max_keys: usize) -> Self {
        Self { cache: Cache::new(max_keys) }
    }

    /// The key. If its number is unknown, `ask` gets the key's fence from the cluster, by a linearizable read that begins
    /// when it is called (`GET /v1/keys/{key}`).
    pub async fn key_or_ask<E: Display, F: Future<Output = Result<Token, E>>>(
        &self,
        key: &Key,
        ask: impl Fn(Key) -> F,
    ) -> Result<AsyncGuardedKey, FenceError<E>> {
        let mut found = self.cache.get(key);
        loop {
            match found {
                Ok(high) => return Ok(AsyncGuardedKey { high }),
                Err(miss) => {
                    let fence = ask(key.clone()).await.map_err(FenceError::Unanswered)?;
                    let high = High::reset(fence).map_err(FenceError::NoFence)?;
                    found = self.cache.insert(key, miss, Mutex::new(high));
                }
            }
        }
    }
}

impl AsyncGuardedKey {
    /// Shuts out every holder below the claim's fence. Call it before the first read. It waits for a write in progress.
    pub async fn touch(&self, claim: Claim) -> Admission {
        self.high.lock().await.admit(claim)
    }

    /// Runs `write` to its end as a task of its own, unless the token is dead. Nobody else touches or writes under the key
    /// meanwhile, even if this call is dropped. A panic of `write` propagates. It must not use the same key.
    pub async fn write<F, T>(
        &self,
        claim: Claim,
        write: impl FnOnce() -> F,
    ) -> Result<Admission<T>, Interrupted>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let mut high: OwnedMutexGuard<High> = Arc::clone(&self.high).lock_owned().await;
        if let Admission::Stale { high } = high.admit(claim) {
            return Ok(Admission::Stale { high });
        }
        let write = write();
        let running = tokio::spawn(async move {
            let result = write.await;
            drop(high);
            result
        });
        match running.await {
            Ok(result) => Ok(Admission::Accepted(result)),
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(Interrupted),
            },
        }
    }

    /// The number.
    pub async fn high(&self) -> Token {
        self.high.lock().await.token()
    }

    /// Sets the number, down as well, to a fence of the key from the cluster.
    pub async fn reset(&self, fence: Token) -> Result<(), ClaimError> {
        let high = High::reset(fence)?;
        *self.high.lock().await = high;
        Ok(())
    }
}
