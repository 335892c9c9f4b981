//! The work that remains on one master: keys to write, and keys to compare.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::take;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use ringfence_wire::Key;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Queued keys beyond this are dropped and the whole table is compared instead: a Redis that is down for hours takes no
/// more memory than this.
const MAX_QUEUED: usize = 100_000;
/// Keys to compare beyond this become a full resync.
const MAX_COMPARED: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Work {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Keys to write.
    queue: VecDeque<Marked>,
    queued: HashSet<Key>,
    /// Keys whose slots were not served here when they were to be written. They delay no others.
    deferred: HashMap<Key, Instant>,
    /// The oldest change and the size of each batch in flight.
    in_flight: Vec<(Instant, usize)>,
    comparison: Comparison,
}

/// A changed key, and when it changed.
type Marked = (Instant, Key);

/// What to compare with Redis before the slow sweep gets there.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Whether to compare the whole table and all hashes.
    pub(crate) all: bool,
    pub(crate) keys: HashSet<Key>,
}

/// Keys being written. Those not [done](Writes::done) when it is dropped are queued again: the outcome of their writes is
/// unknown.
#[derive(Debug)]
pub(crate) struct Writes<'w> {
    work: &'w Work,
    oldest: Instant,
    len: usize,
    keys: Vec<Option<Marked>>,
}

impl Work {
    /// Queues a changed key. A full queue is dropped for a resync.
    pub(crate) fn mark(&self, key: Key) {
        self.change(|inner| inner.mark(Instant::now(), key));
    }

    /// Requests a comparison of the whole table and all hashes.
    pub(crate) fn resync(&self) {
        self.change(|inner| inner.comparison.all = true);
    }

    /// Requests a comparison of one key.
    pub(crate) fn compare(&self, key: Key) {
        self.change(|Inner { comparison: Comparison { all, keys }, .. }| {
            keys.insert(key);
            if keys.len() > MAX_COMPARED {
                keys.clear();
                *all = true;
            }
        });
    }

    /// Waits until there is something to compare.
    pub(crate) async fn comparison_wanted(&self) {
        let wanted =
            |Inner { comparison: Comparison { all, keys }, .. }: &mut Inner| *all || !keys.is_empty();
        self.until(|inner| wanted(inner).then_some(())).await;
    }

    pub(crate) fn take_comparison(&self) -> Comparison {
        take(&mut self.lock().comparison)
    }

    pub(crate) fn wants_resync(&self) -> bool {
        self.lock().comparison.all
    }

    /// The next keys to write, as soon as there are any.
    pub(crate) async fn batch(&self, at_most: usize) -> Writes<'_> {
        let (oldest, keys) = self.until(|inner| inner.take(at_most)).await;
        Writes { work: self, oldest, len: keys.len(), keys: keys.into_iter().map(Some).collect() }
    }

    /// Queues the deferred keys again. False if there are none.
    pub(crate) fn retry_deferred(&self) -> bool {
        self.change(|inner| {
            let deferred = take(&mut inner.deferred);
            let any = !deferred.is_empty();
            deferred.into_iter().for_each(|(key, at)| inner.mark(at, key));
            any
        })
    }

    /// Drops all other keys, except those in flight.
    pub(crate) fn retain(&self, is_kept: impl Fn(&Key) -> bool) {
        self.change(|inner| {
            inner.queue.retain(|(_, key)| is_kept(key));
            inner.queued.retain(&is_kept);
            inner.deferred.retain(|key, _| is_kept(key));
        });
    }

    /// Waits until fewer than `count` keys are queued or in flight.
    pub(crate) async fn below(&self, count: usize) {
        self.until(|inner| (inner.active() < count).then_some(())).await;
    }

    /// Waits until all keys queued before this call are written or deferred.
    pub(crate) async fn caught_up(&self) {
        let now = Instant::now();
        self.until(|inner| inner.oldest().is_none_or(|at| at > now).then_some(())).await;
    }

    /// The number of keys queued, in flight and deferred.
    pub(crate) fn len(&self) -> usize {
        let inner = self.lock();
        inner.active() + inner.deferred.len()
    }

    /// The time since the oldest change among them.
    pub(crate) fn age(&self) -> Duration {
        let inner = self.lock();
        let oldest = inner.oldest().into_iter().chain(inner.deferred.values().copied()).min();
        oldest.map_or(Duration::ZERO, |at| at.elapsed())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_waiters();
        result
    }

    async fn until<T>(&self, ready: impl Fn(&mut Inner) -> Option<T>) -> T {
        loop {
            // Made before the check: a change in between wakes it too.
            let changed = self.changed.notified();
            if let Some(result) = ready(&mut self.lock()) {
                return result;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the work is locked")
    }
}

impl Inner {
    fn mark(&mut self, mut at: Instant, key: Key) {
        if self.queued.contains(&key) {
            return;
        }
        at = self.deferred.remove(&key).unwrap_or(at);
        if self.queue.len() >= MAX_QUEUED {
            // Keeps the age of the dropped keys.
            at = self.oldest().unwrap_or(at);
            self.queue = VecDeque::new();
            self.queued = HashSet::new();
            self.comparison.all = true;
        }
        self.queued.insert(key.clone());
        self.queue.push_back((at, key));
    }

    fn take(&mut self, at_most: usize) -> Option<(Instant, Vec<Marked>)> {
        let len = self.queue.len().min(at_most);
        let keys: Vec<Marked> = self.queue.drain(..len).collect();
        let oldest = keys.iter().map(|(at, _)| *at).min()?;
        for (_, key) in &keys {
            self.queued.remove(key);
        }
        self.in_flight.push((oldest, len));
        Some((oldest, keys))
    }

    fn active(&self) -> usize {
        self.queue.len() + self.in_flight.iter().map(|(_, len)| len).sum::<usize>()
    }

    /// The oldest change queued or in flight.
    fn oldest(&self) -> Option<Instant> {
        let queued = self.queue.iter().map(|(at, _)| *at);
        queued.chain(self.in_flight.iter().map(|(at, _)| *at)).min()
    }
}

impl Writes<'_> {
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.keys.iter().flatten().map(|(_, key)| key.clone()).collect()
    }

    /// The key at this index is written.
    pub(crate) fn done(&mut self, index: usize) {
        if let Some(key) = self.keys.get_mut(index) {
            *key = None;
        }
    }

    /// The slot of the key at this index is not served here now: [retry later](Work::retry_deferred).
    pub(crate) fn defer(&mut self, index: usize) {
        let mut inner = self.work.lock();
        if inner.deferred.len() < MAX_QUEUED
            && let Some((at, key)) = self.keys.get_mut(index).and_then(Option::take)
        {
            inner.deferred.insert(key, at);
        }
    }
}

impl Drop for Writes<'_> {
    fn drop(&mut self) {
        self.work.change(|inner| {
            let in_flight = inner.in_flight.iter().position(|batch| *batch == (self.oldest, self.len));
            inner.in_flight.swap_remove(in_flight.expect("a batch is in flight until it is dropped"));
            self.keys.drain(..).flatten().for_each(|(at, key)| inner.mark(at, key));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(&format!("k/{number}")).unwrap()
    }

    #[tokio::test]
    async fn a_key_that_is_not_done_is_queued_again() {
        let work = Work::default();
        for number in [0, 1, 2, 1] {
            work.mark(key(number));
        }
        let mut batch = work.batch(2).await;
        assert_eq!(batch.keys(), [key(0), key(1)]);
        assert_eq!(work.len(), 3);
        batch.done(0);
        drop(batch);
        assert_eq!(work.batch(9).await.keys(), [key(2), key(1)]);
    }

    #[tokio::test]
    async fn a_key_that_changes_while_it_is_written_is_written_again() {
        let work = Work::default();
        work.mark(key(0));
        let mut batch = work.batch(1).await;
        work.mark(key(0));
        batch.done(0);
        drop(batch);
        assert_eq!(work.batch(1).await.keys(), [key(0)]);
    }

    #[tokio::test]
    async fn a_deferred_key_is_counted_and_delays_no_other() {
        let work = Work::default();
        (0..2).for_each(|number| work.mark(key(number)));
        let mut batch = work.batch(2).await;
        batch.defer(0);
        batch.done(1);
        drop(batch);
        assert_eq!(work.len(), 1);
        work.below(1).await;
        work.caught_up().await;
        assert!(work.retry_deferred());
        let mut batch = work.batch(2).await;
        assert_eq!(batch.keys(), [key(0)]);
        batch.done(0);
        drop(batch);
        assert!(!work.retry_deferred());
        assert_eq!(work.len(), 0);
    }

    #[tokio::test]
    async fn a_full_queue_becomes_a_resync() {
        let work = Work::default();
        (0..MAX_QUEUED).for_each(|number| work.mark(key(number)));
        assert_eq!((work.len(), work.wants_resync()), (MAX_QUEUED, false));
        work.mark(key(MAX_QUEUED));
        assert_eq!((work.len(), work.wants_resync()), (1, true));

        let work = Work::default();
        (0..MAX_COMPARED).for_each(|number| work.compare(key(number)));
        work.comparison_wanted().await;
        assert!(!work.wants_resync());
        work.compare(key(MAX_COMPARED));
        let Comparison { all, keys } = work.take_comparison();
        assert!(all && keys.is_empty());
    }
}
