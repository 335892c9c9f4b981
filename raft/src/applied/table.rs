//! The applied state of a node: the lease table, how far the log is applied, and who waits for a lease to change.

use std::sync::{Arc, Mutex, MutexGuard};

use ringfence_lease::{Event, LeaseTable, Outcome};
use tokio::sync::watch;

use crate::applied::audit;
use crate::applied::changes::Marker;
use crate::applied::history::History;
use crate::applied::tally::Tally;
use crate::applied::waits::{Told, Waits};
use crate::consensus::{LogId, SnapshotMeta, StoredMembership};
use crate::propose::batch::Batch;

/// The applied state. Clones share it.
#[derive(Clone)]
pub(crate) struct Applied {
    inner: Arc<Mutex<Inner>>,
    index: Arc<watch::Sender<Option<LogId>>>,
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
        Self { inner: Arc::new(Mutex::new(inner)), index: Arc::new(watch::Sender::new(None)) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the state is locked")
    }

    /// Tells how far the log is applied, each time that it changes.
    pub(crate) fn progress(&self) -> watch::Receiver<Option<LogId>> {
        self.index.subscribe()
    }

    /// Puts the table of a snapshot in place of this one, which is given back.
    pub(crate) fn replace(&self, table: LeaseTable, meta: &SnapshotMeta) -> LeaseTable {
        let replaced = self.lock().replace(table, meta);
        self.announce();
        replaced
    }

    /// Tells how far the log is applied, and those whose waits have ended. To be called after `last_applied` has changed and
    /// the lock is released.
    pub(crate) fn announce(&self) {
        let (last_applied, told) = {
            let mut state = self.lock();
            (state.last_applied, state.waits.take_told())
        };
        told.into_iter().for_each(Told::tell);
        self.index.send_replace(last_applied);
    }
}

/// Tells that more of the log was applied.
pub struct Progress(pub(crate) watch::Receiver<Option<LogId>>);

impl Progress {
    /// Waits until more is applied than when this returned last, or this was made.
    pub async fn any(&mut self) {
        if self.0.changed().await.is_err() {
            // The node is gone, and so is whoever waits.
            std::future::pending().await
        }
    }
}

impl Inner {
    fn replace(&mut self, table: LeaseTable, meta: &SnapshotMeta) -> LeaseTable {
        let replaced = std::mem::replace(&mut self.table, table);
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.waits.tell_all(&self.table);
        self.history.start_after(self.table.revision());
        replaced
    }

    /// Applies one batch and tells those who wait for the leases that changed, or mirror the keys; the changes are kept for
    /// those who watch. `is_own`: this node proposed it, and is not reading its log again.
    pub(crate) fn apply(&mut self, batch: Batch, is_own: bool) -> Vec<Outcome> {
        let Batch { at_ms, commands } = batch;
        self.tally.applied(commands.len());
        let outcomes = self.table.apply(at_ms, commands, &mut self.events);
        for event in self.events.drain(..) {
            self.waits.tell(&event, &self.table);
            self.marker.mark(&event);
            if is_own {
                self.tally.changed(&event);
                audit::tell(&event);
            }
            self.history.keep(event);
        }
        // A numbering that was started made no change.
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

    /// Else nobody could watch such a node from where it is before that.
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
