//! A [`MemoryGuard`](crate::MemoryGuard) for writes that wait: to a disk, a device, another server.
//!
//! **Dropping a future must not let the next holder in early.** A caller gives up (a timeout, a `select!`, a client that is
//! gone), and a write that it had begun may still land. So a write is a task of its own, which keeps the key until it has
//! ended, whether or not anybody still waits for it. A call that is dropped before its write began does nothing.
//!
//! What the write has to keep to: when it ends, it is done or certainly will not be. A write that it gave up itself, or a
//! task that it left behind, is not covered. One that never ends holds up its key for ever.
//!
//! All that shows a claim on one key takes turns, first come, first served.

use std::fmt::Display;
use std::panic::resume_unwind;
use std::sync::Arc;

use ringfence_wire::{Key, Token};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::known::Known;
use crate::{Admission, Claim, ClaimError, High};

/// The numbers of many keys, for async code: within a tokio runtime.
#[derive(Debug)]
pub struct AsyncGuard {
    known: Known<Mutex<High>>,
}

/// A key whose number is known. As long as one exists for a key, the guard does not forget it: do not collect them.
#[derive(Debug)]
pub struct AsyncGuardedKey {
    high: Arc<Mutex<High>>,
}

/// Why the number of a key is not known. Nothing is accepted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKnown<E: Display> {
    /// The cluster could not be asked.
    #[error("{0}")]
    Unanswered(E),
    /// What it answered is no fence.
    #[error("the answer was no fence: {0}")]
    NoFence(ClaimError),
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write that was rejected has not been done"]
pub enum Written<T> {
    /// It ran to its end, and this is what it gave.
    Accepted(T),
    /// Nothing was done: every token below `high` is dead.
    Stale {
        /// The number that stands with the resource.
        high: Token,
    },
    /// The runtime was shut down in the middle: it may or may not have been done.
    BrokenOff,
}

impl AsyncGuard {
    /// A guard that knows no key yet, and forgets those that were not used for longest where there are more than about
    /// `most_keys`.
    pub fn new(most_keys: usize) -> Self {
        Self { known: Known::new(most_keys) }
    }

    /// The key; if its number is unknown, `ask` gets the key's fence from the cluster, by a linearizable read that begins
    /// when it is called (`GET /v1/keys/{key}`).
    pub async fn key_or_ask<E: Display, F: Future<Output = Result<Token, E>>>(
        &self,
        key: &Key,
        ask: impl Fn(Key) -> F,
    ) -> Result<AsyncGuardedKey, NotKnown<E>> {
        let mut found = self.known.get(key);
        loop {
            found = match found {
                Ok(high) => return Ok(AsyncGuardedKey { high }),
                Err(since) => {
                    let fence = ask(key.clone()).await.map_err(NotKnown::Unanswered)?;
                    let high = High::reset(fence).map_err(NotKnown::NoFence)?;
                    self.known.learn(key, since, Mutex::new(high))
                }
            };
        }
    }
}

impl AsyncGuardedKey {
    /// Shuts out every holder below the claim's fence: to be done before the first read. It waits for a write that is under
    /// way.
    pub async fn touch(&self, claim: Claim) -> Admission {
        self.high.lock().await.admit(claim)
    }

    /// Runs `write` to its end as a task of its own, unless the token is dead. Nobody else touches or writes under the key
    /// meanwhile, also if this call is dropped. A panic of `write` is passed on. It must not use the same key.
    pub async fn write<F, T>(&self, claim: Claim, write: impl FnOnce() -> F) -> Written<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let mut high: OwnedMutexGuard<High> = Arc::clone(&self.high).lock_owned().await;
        if let Admission::Stale { high } = high.admit(claim) {
            return Written::Stale { high };
        }
        let write = write();
        let running = tokio::spawn(async move {
            let written = write.await;
            drop(high);
            written
        });
        match running.await {
            Ok(written) => Written::Accepted(written),
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Written::BrokenOff,
            },
        }
    }

    /// The number.
    pub async fn high(&self) -> Token {
        self.high.lock().await.token()
    }

    /// Sets the number, down as well, to a fence of the key that the cluster gave.
    pub async fn reset(&self, fence: Token) -> Result<(), ClaimError> {
        let new = High::reset(fence)?;
        *self.high.lock().await = new;
        Ok(())
    }
}
