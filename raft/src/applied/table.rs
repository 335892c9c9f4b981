//! The applied state of a node: the lease table, how far the log is applied, and what depends on its changes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use ringfence_lease::{Event, LeaseTable, Outcome};
use tokio::sync::watch;

use crate::applied::audit;
use crate::applied::changes::Marker;
use crate::applied::history::History;
use crate::applied::tally::Tally;
use crate::applied::waits::{Notification, Waits};
use crate::consensus::{LogId, SnapshotMeta, StoredMembership};
use crate::propose::batch::Batch;

/// The applied state. Clones share it.
#[derive(Clone)]
pub(crate) struct Applied {
    inner: Arc<Mutex<Inner>>,
    gate: Arc<Gate>,
    index: Arc<watch::Sender<Option<LogId>>>,
}

/// Lets the Raft thread, and whatever else changes the state, have the lock before those that only look. The lock is not fair:
/// a thread that looks again and again would keep Raft waiting for long.
#[derive(Default)]
struct Gate {
    /// How many threads want the lock by [`Applied::lock`].
    wanted: AtomicUsize,
    /// Held by the one other thread that may take the lock next.
    looking: Mutex<()>,
}

pub(crate) struct Inner {
    pub(crate) table: LeaseTable,
    pub(crate) last_applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
    pub(crate) waits: Waits,
    pub(crate) marker: Marker,
    pub(crate) history: History,
    events: Vec<Event>,
    tally: Tally,
}

impl Applied {
    pub(crate) fn new() -> Self {
        let inner = Inner {
            table: LeaseTable::new(),
            last_applied: None,
            membership: StoredMembership::default(),
            waits: Waits::default(),
            marker: Marker::default(),
            history: History::default(),
            events: Vec::new(),
            tally: Tally::new(),
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            gate: Arc::default(),
            index: Arc::new(watch::Sender::new(None)),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.gate.wanted.fetch_add(1, Ordering::Relaxed);
        let locked = self.inner.lock();
        self.gate.wanted.fetch_sub(1, Ordering::Relaxed);
        locked.expect("no panic while the state is locked")
    }

    /// Looks at the state from a thread that Raft does not run on: when the Raft thread does not want the lock.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Inner) -> R) -> R {
        let _turn = self.gate.looking.lock().unwrap_or_else(PoisonError::into_inner);
        while self.gate.wanted.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        look(&self.inner.lock().expect("no panic while the state is locked"))
    }

    /// Watches how far the log is applied.
    pub(crate) fn progress(&self) -> watch::Receiver<Option<LogId>> {
        self.index.subscribe()
    }

    /// Replaces the table by that of a snapshot, and returns the old one.
    pub(crate) fn replace(&self, table: LeaseTable, meta: &SnapshotMeta) -> LeaseTable {
        let replaced = self.lock().replace(table, meta);
        self.announce();
        replaced
    }

    /// Publishes how far the log is applied, and notifies the waits that have ended. Call it after each change of
    /// `last_applied`, when the lock is released.
    pub(crate) fn announce(&self) {
        let (last_applied, notifications) = {
            let mut state = self.lock();
            (state.last_applied, state.waits.take_notifications())
        };
        notifications.into_iter().for_each(Notification::send);
        self.index.send_replace(last_applied);
    }
}

/// Signals that more of the log was applied.
pub struct Progress(pub(crate) watch::Receiver<Option<LogId>>);

impl Progress {
    /// Waits until more is applied than at the last return, or at the beginning.
    pub async fn any(&mut self) {
        if self.0.changed().await.is_err() {
            // The node has stopped.
            std::future::pending().await
        }
    }
}

impl Inner {
    fn replace(&mut self, table: LeaseTable, meta: &SnapshotMeta) -> LeaseTable {
        let replaced = std::mem::replace(&mut self.table, table);
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.waits.apply_all(&self.table);
        self.history.start_after(self.table.revision());
        replaced
    }

    /// Applies one batch: settles waits, marks keys for the mirror, and keeps the changes for watches. `is_own` if this node
    /// proposed it, and is not replaying its log.
    pub(crate) fn apply(&mut self, batch: Batch, is_own: bool) -> Vec<Outcome> {
        let Batch { at_ms, commands } = batch;
        self.tally.applied(commands.len());
        let outcomes = self.table.apply(at_ms, commands, &mut self.events);
        for event in self.events.drain(..) {
            self.waits.apply(&event, &self.table);
            self.marker.mark(&event);
            if is_own {
                self.tally.changed(&event);
                audit::tell(&event);
            }
            self.history.keep(event);
        }
        // The start of a numbering makes no change.
        if self.history.last() != self.table.revision() {
            self.history.start_after(self.table.revision());
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use ringfence_lease::Command;
    use ringfence_wire::Revision;

    use super::*;
    use crate::consensus::log_id;

    /// A follower that is started with a snapshot of all there is applies nothing before the next write.
    #[test]
    fn the_table_of_a_snapshot_counts_as_applied_at_once() {
        let applied = Applied::new();
        let index = log_id(3, 7);
        let meta = SnapshotMeta { last_log_id: Some(index), last_membership: StoredMembership::default() };
        applied.replace(LeaseTable::new(), &meta);
        assert_eq!(*applied.progress().borrow(), Some(index));
    }

    /// Otherwise a watch could not begin there before the next change.
    #[test]
    fn the_history_goes_on_from_a_snapshot_and_from_the_start_of_a_numbering_at_once() {
        let started = |at_ms, revision| {
            let commands = vec![Command::Start { revision: Revision(revision) }];
            Batch { at_ms, commands }
        };
        let applied = Applied::new();
        applied.lock().apply(started(1, 7), false);
        assert_eq!(applied.lock().history.last(), Revision(7));
        let mut table = LeaseTable::new();
        table.apply(1, started(1, 9).commands, &mut Vec::new());
        let meta = SnapshotMeta { last_log_id: None, last_membership: StoredMembership::default() };
        applied.replace(table, &meta);
        assert_eq!(applied.lock().history.last(), Revision(9));
    }
}
