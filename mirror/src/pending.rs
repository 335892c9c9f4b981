use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ringfence_wire::Key;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::due::Due;

/// More keys are not kept: they are forgotten, and all of the table is compared with Redis instead. So a Redis that is
/// down for hours costs no more memory than this.
const MOST: usize = 100_000;

/// The keys that have to be written to one master, each once.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    inner: Mutex<Inner>,
    /// Told when keys had to be forgotten.
    due: Arc<Due>,
    filled: Notify,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    queue: VecDeque<(Instant, Key)>,
    queued: HashSet<Key>,
    /// Keys whose slots were not served here when they were to be written. They hold up nobody else.
    elsewhere: HashMap<Key, Instant>,
    /// When the oldest of each batch under way was marked, and how many are in it.
    flights: Vec<(Instant, usize)>,
}

/// Keys that are being written. Those that are not [settled](Taken::settle) when it is dropped are pending again:
/// nobody knows what became of them.
#[derive(Debug)]
pub(crate) struct Taken<'p> {
    pending: &'p Pending,
    oldest: Instant,
    len: usize,
    keys: Vec<Option<(Instant, Key)>>,
}

impl Pending {
    pub(crate) fn new(due: &Arc<Due>) -> Self {
        Self { due: Arc::clone(due), ..Self::default() }
    }

    /// Adds a key that changed. If there is no room, all that were pending are forgotten, and everything is due.
    pub(crate) fn mark(&self, key: Key) {
        if !self.lock().mark(Instant::now(), key) {
            self.due.all();
        }
        self.filled.notify_one();
    }

    /// The next keys, as soon as there are any.
    pub(crate) async fn take(&self, at_most: usize) -> Taken<'_> {
        loop {
            if let Some(taken) = self.try_take(at_most) {
                return taken;
            }
            self.filled.notified().await;
        }
    }

    fn try_take(&self, at_most: usize) -> Option<Taken<'_>> {
        let mut inner = self.lock();
        let len = inner.queue.len().min(at_most);
        let keys: Vec<_> = inner.queue.drain(..len).map(Some).collect();
        let oldest = keys.iter().flatten().map(|(at, _)| *at).min()?;
        for (_, key) in keys.iter().flatten() {
            inner.queued.remove(key);
        }
        inner.flights.push((oldest, len));
        Some(Taken { pending: self, oldest, len, keys })
    }

    /// Tries those again whose slots were not served here. False if there are none.
    pub(crate) fn retry_elsewhere(&self) -> bool {
        let mut inner = self.lock();
        let elsewhere = take(&mut inner.elsewhere);
        let (any, mut has_room) = (!elsewhere.is_empty(), true);
        for (key, at) in elsewhere {
            has_room &= inner.mark(at, key);
        }
        drop(inner);
        if !has_room {
            self.due.all();
        }
        self.filled.notify_one();
        any
    }

    /// Forgets all keys but these. Those under way are not forgotten.
    pub(crate) fn keep(&self, is_kept: impl Fn(&Key) -> bool) {
        let mut inner = self.lock();
        inner.queue.retain(|(_, key)| is_kept(key));
        inner.queued.retain(&is_kept);
        inner.elsewhere.retain(|key, _| is_kept(key));
        drop(inner);
        self.emptied.notify_one();
    }

    /// Waits until fewer than `count` are on their way: those under way included, those elsewhere not.
    pub(crate) async fn fewer_than(&self, count: usize) {
        while self.lock().on_their_way() >= count {
            self.emptied.notified().await;
        }
    }

    /// Waits until all that were pending when it was called are settled, or turned out to be elsewhere.
    pub(crate) async fn catch_up(&self) {
        let now = Instant::now();
        while self.lock().oldest().is_some_and(|at| at <= now) {
            self.emptied.notified().await;
        }
    }

    /// How many are pending, those under way and elsewhere included.
    pub(crate) fn len(&self) -> usize {
        let inner = self.lock();
        inner.on_their_way() + inner.elsewhere.len()
    }

    /// How long the oldest has been waiting.
    pub(crate) fn age(&self) -> Duration {
        let inner = self.lock();
        let marked = inner.oldest().into_iter().chain(inner.elsewhere.values().copied()).min();
        marked.map_or(Duration::ZERO, |at| at.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while what is pending is locked")
    }
}

impl Inner {
    /// Tells whether there was room.
    fn mark(&mut self, mut at: Instant, key: Key) -> bool {
        if self.queued.contains(&key) {
            return true;
        }
        at = self.elsewhere.remove(&key).unwrap_or(at);
        let has_room = self.queue.len() < MOST;
        if !has_room {
            // It shows how long there has been something to do.
            at = self.oldest().unwrap_or(at);
            self.queue = VecDeque::new();
            self.queued = HashSet::new();
        }
        self.queued.insert(key.clone());
        self.queue.push_back((at, key));
        has_room
    }

    fn on_their_way(&self) -> usize {
        self.queue.len() + self.flights.iter().map(|(_, len)| len).sum::<usize>()
    }

    /// When the oldest was marked of those on their way.
    fn oldest(&self) -> Option<Instant> {
        let queued = self.queue.iter().map(|(at, _)| *at);
        queued.chain(self.flights.iter().map(|(at, _)| *at)).min()
    }
}

impl Taken<'_> {
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.keys.iter().flatten().map(|(_, key)| key.clone()).collect()
    }

    /// The key with this number is dealt with.
    pub(crate) fn settle(&mut self, number: usize) {
        if let Some(key) = self.keys.get_mut(number) {
            *key = None;
        }
    }

    /// The slot of the key with this number is not served here now: it is tried again
    /// [later](Pending::retry_elsewhere).
    pub(crate) fn is_elsewhere(&mut self, number: usize) {
        let mut inner = self.pending.lock();
        if inner.elsewhere.len() < MOST
            && let Some((at, key)) = self.keys.get_mut(number).and_then(Option::take)
        {
            inner.elsewhere.insert(key, at);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut inner = self.pending.lock();
        let flight = inner.flights.iter().position(|flight| *flight == (self.oldest, self.len));
        inner.flights.swap_remove(flight.expect("every batch is under way until it is dropped"));
        let (mut is_again, mut has_room) = (false, true);
        for (at, key) in self.keys.drain(..).flatten() {
            is_again = true;
            has_room &= inner.mark(at, key);
        }
        drop(inner);
        if !has_room {
            self.pending.due.all();
        }
        if is_again {
            self.pending.filled.notify_one();
        }
        self.pending.emptied.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(&format!("k/{number}")).unwrap()
    }

    #[tokio::test]
    async fn what_was_not_settled_is_pending_again() {
        let pending = Pending::default();
        for number in [0, 1, 2, 1] {
            pending.mark(key(number));
        }
        let mut taken = pending.take(2).await;
        assert_eq!(taken.keys(), [key(0), key(1)]);
        assert_eq!(pending.len(), 3);
        taken.settle(0);
        drop(taken);
        assert_eq!(pending.take(9).await.keys(), [key(2), key(1)]);
    }

    #[tokio::test]
    async fn a_key_that_changes_while_it_is_written_is_written_again() {
        let pending = Pending::default();
        pending.mark(key(0));
        let mut taken = pending.take(1).await;
        pending.mark(key(0));
        taken.settle(0);
        drop(taken);
        assert_eq!(pending.take(1).await.keys(), [key(0)]);
    }

    #[tokio::test]
    async fn a_key_that_is_elsewhere_is_pending_and_holds_up_nobody() {
        let pending = Pending::default();
        (0..2).for_each(|number| pending.mark(key(number)));
        let mut taken = pending.take(2).await;
        taken.is_elsewhere(0);
        taken.settle(1);
        drop(taken);
        assert_eq!(pending.len(), 1);
        pending.fewer_than(1).await;
        pending.catch_up().await;
        assert!(pending.retry_elsewhere());
        let mut taken = pending.take(2).await;
        assert_eq!(taken.keys(), [key(0)]);
        taken.settle(0);
        drop(taken);
        assert!(!pending.retry_elsewhere());
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn memory_stays_bounded() {
        let due = Arc::new(Due::default());
        let pending = Pending::new(&due);
        (0..MOST).for_each(|number| pending.mark(key(number)));
        assert_eq!((pending.len(), due.wants_all()), (MOST, false));
        pending.mark(key(MOST));
        assert_eq!((pending.len(), due.wants_all()), (1, true));
    }
}
