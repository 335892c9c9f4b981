//! Answers that wait until their fences stand in Redis (`before-answer`).
//!
//! A grant is often written before its answer comes here to wait, so what was written lately is remembered. Where that
//! does not help (it was too long ago, or Redis was lost meanwhile) the key is written again.

use std::collections::HashMap;
use std::mem::take;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use ringfence_wire::{Key, Revision};
use tokio::sync::{Notify, oneshot};
use tokio::time::{timeout, timeout_at};

/// So many writes are remembered, and at most as many again.
const REMEMBERED: usize = 50_000;
/// How long a write that must be under way is waited for before the key is written again.
const PATIENCE: Duration = Duration::from_millis(50);

/// Who waits for what.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    inner: Mutex<Inner>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Whether anything is published at all.
    is_open: bool,
    /// The revision at which a key was written lately; the older half is forgotten from time to time.
    written: HashMap<Key, Revision>,
    written_before: HashMap<Key, Revision>,
    waiting: HashMap<Key, Vec<(Revision, oneshot::Sender<()>)>>,
    /// What is to be written again.
    asked: Vec<Key>,
}

impl Answers {
    pub(crate) fn open(&self) {
        self.lock().is_open = true;
    }

    /// Nobody publishes any more: those who wait are told that they wait in vain.
    pub(crate) fn close(&self) {
        *self.lock() = Inner::default();
    }

    /// What was written may be lost.
    pub(crate) fn forget(&self) {
        let mut inner = self.lock();
        inner.written.clear();
        inner.written_before.clear();
    }

    /// A reader sees `key` as of this revision from now on, or as of a later one.
    pub(crate) fn stands(&self, key: &Key, revision: Revision, remember: bool) {
        let mut inner = self.lock();
        if remember {
            if inner.written.len() >= REMEMBERED {
                inner.written_before = take(&mut inner.written);
            }
            let written = inner.written.entry(key.clone()).or_insert(revision);
            *written = revision.max(*written);
        }
        if let Some(waiting) = inner.waiting.get_mut(key) {
            for (_, waiter) in waiting.extract_if(.., |(wanted, _)| *wanted <= revision) {
                let _ = waiter.send(());
            }
        }
    }

    /// Waits until all `keys` stand as of `revision` or later; tells whether they do.
    pub(crate) async fn wait(&self, keys: &[Key], revision: Revision, within: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + within;
        // Dropped after the receivers, however this ends.
        let _leave = Leave { answers: self, keys };
        let Some(mut receivers) = self.enter(keys, revision) else { return false };
        let under_way = timeout(PATIENCE.min(within), all(&mut receivers)).await;
        if let Ok(all_stand) = under_way {
            return all_stand;
        }
        self.ask(receivers.iter().map(|(key, _)| key.clone()));
        timeout_at(deadline, all(&mut receivers)).await.unwrap_or(false)
    }

    /// A channel for each key that is still to be written; `None` where nobody publishes.
    fn enter(&self, keys: &[Key], revision: Revision) -> Option<Vec<(Key, oneshot::Receiver<()>)>> {
        let mut inner = self.lock();
        if !inner.is_open {
            return None;
        }
        let mut receivers = Vec::new();
        for key in keys {
            let stands = [&inner.written, &inner.written_before]
                .into_iter()
                .any(|written| written.get(key).is_some_and(|at| *at >= revision));
            if !stands {
                let (sender, receiver) = oneshot::channel();
                inner.waiting.entry(key.clone()).or_default().push((revision, sender));
                receivers.push((key.clone(), receiver));
            }
        }
        Some(receivers)
    }

    fn ask(&self, keys: impl Iterator<Item = Key>) {
        self.lock().asked.extend(keys);
        self.asked.notify_one();
    }

    /// Nothing is written for now: what is to be written again need not be remembered.
    pub(crate) fn forget_asked(&self) {
        self.lock().asked.clear();
    }

    /// The keys that are to be written again, as soon as there are any.
    pub(crate) async fn asked(&self) -> Vec<Key> {
        loop {
            let asked = take(&mut self.lock().asked);
            if !asked.is_empty() {
                return asked;
            }
            self.asked.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the answers are locked")
    }
}

/// Waits for all; those that were told are taken out. False where one never will be.
async fn all(receivers: &mut Vec<(Key, oneshot::Receiver<()>)>) -> bool {
    while let Some((_, receiver)) = receivers.last_mut() {
        if receiver.await.is_err() {
            return false;
        }
        receivers.pop();
    }
    true
}

/// Takes those out who do not wait any more.
struct Leave<'a> {
    answers: &'a Answers,
    keys: &'a [Key],
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut inner = self.answers.lock();
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
        let answers = Answers::default();
        let [a, b] = keys();
        assert!(!answers.wait(&keys(), Revision(5), LONG).await, "nobody publishes");
        answers.open();
        answers.stands(&a, Revision(5), true);
        answers.stands(&b, Revision(4), true);
        assert!(!answers.wait(&keys(), Revision(5), Duration::from_millis(10)).await, "4 is before 5");
        assert!(answers.lock().waiting.is_empty(), "whoever left is forgotten");
        let keys = keys();
        let (waited, ()) = tokio::join!(answers.wait(&keys, Revision(5), LONG), async {
            answers.stands(&b, Revision(6), true);
        });
        assert!(waited);
        assert!(answers.wait(&keys, Revision(5), Duration::from_millis(1)).await, "both are remembered");
        answers.forget();
        assert!(!answers.wait(&keys, Revision(5), Duration::from_millis(1)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_known_to_stand_is_written_again() {
        let answers = Answers::default();
        answers.open();
        let keys = keys();
        let (waited, ()) = tokio::join!(answers.wait(&keys, Revision(5), LONG), async {
            for key in answers.asked().await {
                answers.stands(&key, Revision(9), false);
            }
        });
        assert!(waited);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_can_write_is_not_kept() {
        let answers = Answers::default();
        answers.open();
        assert!(!answers.wait(&keys(), Revision(5), 2 * PATIENCE).await);
        assert_eq!(answers.lock().asked.len(), 2);
        answers.forget_asked();
        assert!(answers.lock().asked.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_when_publishing_ends_is_told() {
        let answers = Answers::default();
        answers.open();
        let keys = keys();
        let (waited, ()) = tokio::join!(answers.wait(&keys, Revision(5), LONG), async { answers.close() });
        assert!(!waited);
        assert!(answers.lock().waiting.is_empty());
    }
}
