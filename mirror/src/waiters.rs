//! Responses that wait until their fences are in Redis (`before-answer`).
//!
//! A fence is often in Redis before its response begins to wait here, so recent writes are remembered. If that does not
//! help (the write is too old, or Redis lost it), the key is written again.

use std::collections::HashMap;
use std::mem::take;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use ringfence_wire::{Key, Revision};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// Up to twice as many writes are remembered.
const REMEMBERED: usize = 50_000;
/// How long to wait for a write that should be in flight before the key is written again.
const PATIENCE: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    inner: Mutex<Inner>,
    rewrite_wanted: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    is_publishing: bool,
    /// Recent writes: the revision of each key. The older half is dropped when the newer one is full.
    newer: HashMap<Key, Revision>,
    older: HashMap<Key, Revision>,
    waiting: HashMap<Key, Vec<(Revision, oneshot::Sender<()>)>>,
    /// Keys to write again.
    rewrites: Vec<Key>,
}

impl Waiters {
    pub(crate) fn start(&self) {
        self.lock().is_publishing = true;
    }

    /// Publishing has ended: every wait returns false.
    pub(crate) fn stop(&self) {
        *self.lock() = Inner::default();
    }

    /// Redis may have lost what was written.
    pub(crate) fn forget_written(&self) {
        let mut inner = self.lock();
        inner.newer.clear();
        inner.older.clear();
    }

    /// From now on a reader sees `key` at this revision or a later one.
    pub(crate) fn written(&self, key: &Key, revision: Revision, remember: bool) {
        let mut inner = self.lock();
        if remember {
            if inner.newer.len() >= REMEMBERED {
                inner.older = take(&mut inner.newer);
            }
            let written = inner.newer.entry(key.clone()).or_insert(revision);
            *written = revision.max(*written);
        }
        if let Some(waiting) = inner.waiting.get_mut(key) {
            for (_, waiter) in waiting.extract_if(.., |(wanted, _)| *wanted <= revision) {
                let _ = waiter.send(());
            }
        }
    }

    /// Waits until a reader sees all `keys` at `revision` or later. False after `within`, or if nothing is published.
    pub(crate) async fn wait(&self, keys: &[Key], revision: Revision, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        // Dropped after the receivers, however this ends.
        let _leave = Leave { waiters: self, keys };
        let Some(mut receivers) = self.enter(keys, revision) else { return false };
        if let Ok(written) = timeout(PATIENCE.min(within), all_written(&mut receivers)).await {
            return written;
        }
        self.lock().rewrites.extend(receivers.iter().map(|(key, _)| key.clone()));
        self.rewrite_wanted.notify_one();
        timeout_at(deadline, all_written(&mut receivers)).await.unwrap_or(false)
    }

    /// A channel for each key that is not written yet; `None` if nothing is published.
    fn enter(&self, keys: &[Key], revision: Revision) -> Option<Vec<(Key, oneshot::Receiver<()>)>> {
        let inner = &mut *self.lock();
        if !inner.is_publishing {
            return None;
        }
        let mut receivers = Vec::new();
        for key in keys {
            let written =
                [&inner.newer, &inner.older].into_iter().filter_map(|written| written.get(key)).max();
            if written.is_none_or(|at| *at < revision) {
                let (sender, receiver) = oneshot::channel();
                inner.waiting.entry(key.clone()).or_default().push((revision, sender));
                receivers.push((key.clone(), receiver));
            }
        }
        Some(receivers)
    }

    /// Nothing can be written for now.
    pub(crate) fn clear_rewrites(&self) {
        self.lock().rewrites.clear();
    }

    /// The keys to write again, as soon as there are any.
    pub(crate) async fn rewrites(&self) -> Vec<Key> {
        loop {
            let rewrites = take(&mut self.lock().rewrites);
            if !rewrites.is_empty() {
                return rewrites;
            }
            self.rewrite_wanted.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the waiters are locked")
    }
}

/// Waits for all, and removes each when it is written. False if one never will be.
async fn all_written(receivers: &mut Vec<(Key, oneshot::Receiver<()>)>) -> bool {
    while let Some((_, receiver)) = receivers.last_mut() {
        if receiver.await.is_err() {
            return false;
        }
        receivers.pop();
    }
    true
}

/// Removes the senders of a waiter that has left.
struct Leave<'a> {
    waiters: &'a Waiters,
    keys: &'a [Key],
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut inner = self.waiters.lock();
        for key in self.keys {
            if let Some(waiting) = inner.waiting.get_mut(key) {
                waiting.retain(|(_, waiter)| !waiter.is_closed());
                if waiting.is_empty() {
                    inner.waiting.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn keys() -> [Key; 2] {
        ["a", "b"].map(|key| Key::new(key).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_all_its_keys_at_its_revision() {
        let waiters = Waiters::default();
        let [a, b] = keys();
        assert!(!waiters.wait(&keys(), Revision(5), LONG).await, "nothing is published");
        waiters.start();
        waiters.written(&a, Revision(5), true);
        waiters.written(&b, Revision(4), true);
        assert!(!waiters.wait(&keys(), Revision(5), Duration::from_millis(10)).await, "4 is before 5");
        assert!(waiters.lock().waiting.is_empty(), "a waiter that left is removed");
        let keys = keys();
        let (written, ()) = tokio::join!(waiters.wait(&keys, Revision(5), LONG), async {
            waiters.written(&b, Revision(6), true);
        });
        assert!(written);
        assert!(waiters.wait(&keys, Revision(5), Duration::from_millis(1)).await, "both are remembered");
        waiters.forget_written();
        assert!(!waiters.wait(&keys, Revision(5), Duration::from_millis(1)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_not_known_to_be_written_is_written_again() {
        let waiters = Waiters::default();
        waiters.start();
        let keys = keys();
        let (written, ()) = tokio::join!(waiters.wait(&keys, Revision(5), LONG), async {
            for key in waiters.rewrites().await {
                waiters.written(&key, Revision(9), false);
            }
        });
        assert!(written);
    }

    #[tokio::test(start_paused = true)]
    async fn rewrites_can_be_cleared_while_redis_is_away() {
        let waiters = Waiters::default();
        waiters.start();
        assert!(!waiters.wait(&keys(), Revision(5), 2 * PATIENCE).await);
        assert_eq!(waiters.lock().rewrites.len(), 2);
        waiters.clear_rewrites();
        assert!(waiters.lock().rewrites.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn every_wait_ends_when_publishing_ends() {
        let waiters = Waiters::default();
        waiters.start();
        let keys = keys();
        let (written, ()) = tokio::join!(waiters.wait(&keys, Revision(5), LONG), async { waiters.stop() });
        assert!(!written);
        assert!(waiters.lock().waiting.is_empty());
    }
}
