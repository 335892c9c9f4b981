//! The set of changed keys, for a mirror.
//!
//! Apply marks each changed key once, however often it changes. The mirror takes keys when it is ready, and then reads
//! their state from the table. So a slow mirror grows no queue and never publishes outdated state.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use ringfence_lease::{Change, Event};
use ringfence_wire::Key;
use tokio::sync::Notify;

/// The maximum number of marked keys.
const MOST: usize = 100_000;

/// The keys whose holders or fence changed since they were taken. Marking stops when this is dropped.
#[derive(Debug)]
pub struct Changes(Arc<Marks>);

/// The keys of one [`Changes::take`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Without repetition, oldest mark first.
    pub keys: Vec<Key>,
    /// Too many keys changed, and earlier marks were dropped: any key may have changed.
    pub overflowed: bool,
}

/// Where apply marks keys, if there is a [`Changes`] to receive them.
#[derive(Debug, Default)]
pub(crate) struct Marker(Weak<Marks>);

#[derive(Debug, Default)]
struct Marks {
    marked: Mutex<Marked>,
    any: Notify,
}

#[derive(Debug, Default)]
struct Marked {
    order: VecDeque<Key>,
    keys: HashSet<Key>,
    overflowed: bool,
}

impl Changes {
    /// Receives changes from now on, replacing any earlier receiver.
    pub(crate) fn start(marker: &mut Marker) -> Self {
        let marks = Arc::default();
        marker.0 = Arc::downgrade(&marks);
        Self(marks)
    }

    /// Waits until there are keys to take, or an overflow.
    pub async fn any(&self) {
        loop {
            let notified = self.0.any.notified();
            if !self.0.lock().is_empty() {
                return;
            }
            notified.await;
        }
    }

    /// The number of keys to take.
    pub fn count(&self) -> usize {
        self.0.lock().order.len()
    }

    /// Takes up to `at_most` keys.
    pub fn take(&self, at_most: usize) -> Changed {
        let mut marked = self.0.lock();
        let count = at_most.min(marked.order.len());
        let keys: Vec<Key> = marked.order.drain(..count).collect();
        for key in &keys {
            marked.keys.remove(key);
        }
        Changed { keys, overflowed: std::mem::take(&mut marked.overflowed) }
    }
}

impl Marker {
    /// Marks the keys of `event`, unless it changes only a queue.
    pub(crate) fn mark(&self, event: &Event) {
        if let Change::Granted | Change::Ended(_) = event.change
            && let Some(marks) = self.0.upgrade()
        {
            marks.lock().mark(event.keys.iter().map(|(key, ..)| key));
            marks.any.notify_waiters();
        }
    }
}

impl Marks {
    fn lock(&self) -> MutexGuard<'_, Marked> {
        self.marked.lock().expect("no panic while the marks are locked")
    }
}

impl Marked {
    fn is_empty(&self) -> bool {
        self.order.is_empty() && !self.overflowed
    }

    fn mark<'a>(&mut self, keys: impl Iterator<Item = &'a Key>) {
        for key in keys {
            if self.keys.len() == MOST && !self.keys.contains(key) {
                *self = Self { overflowed: true, ..Self::default() };
            }
            if self.keys.insert(key.clone()) {
                self.order.push_back(key.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use ringfence_wire::{EndReason, LeaseId, Mode, Revision, Token};

    use super::*;

    fn key(n: usize) -> Key {
        Key::new(&n.to_string()).unwrap()
    }

    fn event(change: Change, keys: &[usize]) -> Event {
        Event {
            revision: Revision(1),
            lease_id: LeaseId::from_u128(1).unwrap(),
            by: None,
            change,
            token: None,
            keys: keys.iter().map(|n| (key(*n), Mode::Exclusive, Token(1))).collect(),
            holder: None,
        }
    }

    #[test]
    fn a_key_that_changed_often_is_taken_once_and_again_when_it_changes_again() {
        let mut marker = Marker::default();
        marker.mark(&event(Change::Granted, &[9]));
        let changes = Changes::start(&mut marker);
        assert!(changes.any().now_or_never().is_none());
        marker.mark(&event(Change::Granted, &[3, 1]));
        marker.mark(&event(Change::Ended(EndReason::Expired), &[1, 2]));
        for queue in [Change::Queued, Change::Left(None)] {
            marker.mark(&event(queue, &[4]));
        }
        assert!(changes.any().now_or_never().is_some());
        let taken =
            |keys: &[usize]| Changed { keys: keys.iter().copied().map(key).collect(), overflowed: false };
        assert_eq!(changes.count(), 3);
        assert_eq!(changes.take(2), taken(&[3, 1]));
        marker.mark(&event(Change::Granted, &[3]));
        assert_eq!(changes.take(9), taken(&[2, 3]));
        assert!(changes.any().now_or_never().is_none());
    }

    #[test]
    fn a_waiting_receiver_is_woken_by_the_next_change() {
        let mut marker = Marker::default();
        let changes = Changes::start(&mut marker);
        let mut any = Box::pin(changes.any());
        assert!(any.as_mut().now_or_never().is_none());
        marker.mark(&event(Change::Granted, &[1]));
        assert!(any.now_or_never().is_some());
    }

    #[test]
    fn too_many_keys_are_dropped_and_the_overflow_is_reported() {
        let mut marker = Marker::default();
        let changes = Changes::start(&mut marker);
        for n in 0..=MOST {
            marker.mark(&event(Change::Granted, &[n]));
        }
        assert_eq!(changes.take(9), Changed { keys: vec![key(MOST)], overflowed: true });
        assert_eq!(changes.take(9), Changed::default());
    }

    #[test]
    fn a_new_receiver_replaces_the_one_before() {
        let mut marker = Marker::default();
        let first = Changes::start(&mut marker);
        let second = Changes::start(&mut marker);
        marker.mark(&event(Change::Granted, &[1]));
        assert_eq!((first.take(9).keys.len(), second.take(9).keys.len()), (0, 1));
        drop(second);
        marker.mark(&event(Change::Granted, &[2]));
        assert!(marker.0.upgrade().is_none());
    }
}
