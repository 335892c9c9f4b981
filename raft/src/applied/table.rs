//! The applied state of a node: the lease table, how far the log is applied, and what depends on its changes.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use ringfence_lease::{Event, LeaseTable, Outcome};
use tokio::sync::watch;

use crate::applied::audit;
use crate::applied::changes::Marker;
use crate::applied::history::History;
use crate::applied::tally::Tally;
use crate::applied::waits::{Notification, Waits};
use crate::applied::witness::Witness;
use crate::consensus::{LogId, SnapshotMeta, StoredMembership};
use crate::propose::batch::Batch;

const UNPOISONED: &str = "no panic while the state is locked";

/// The applied state. Clones share it.
#[derive(Clone)]
pub(crate) struct Applied {
    inner: Arc<Mutex<Inner>>,
    gate: Arc<Gate>,
    index: Arc<watch::Sender<Option<LogId>>>,
}

/// Lets the Raft thread have the lock before all others. The lock is not fair: threads that take it again and again would
/// keep Raft waiting for long.
struct Gate {
    raft: ThreadId,
    /// Whether the Raft thread waits for the lock.
    wanted: AtomicBool,
    /// Held by the one other thread that has the lock, or may take it next.
    turn: Mutex<()>,
}

/// The locked state.
pub(crate) struct Locked<'a> {
    // Dropped, and so unlocked, before the next thread has its turn.
    state: MutexGuard<'a, Inner>,
    _turn: Option<MutexGuard<'a, ()>>,
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.state
    }
}

pub(crate) struct Inner {
    pub(crate) table: LeaseTable,
    pub(crate) last_applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
    pub(crate) waits: Waits,
    pub(crate) marker: Marker,
    pub(crate) history: History,
    pub(crate) witness: Witness,
    events: Vec<Event>,
    tally: Tally,
}

impl Applied {
    /// To be called on the thread that Raft runs on.
    pub(crate) fn new() -> Self {
        let inner = Inner {
            table: LeaseTable::new(),
            last_applied: None,
            membership: StoredMembership::default(),
            waits: Waits::default(),
            marker: Marker::default(),
            history: History::default(),
            witness: Witness::default(),
            events: Vec::new(),
            tally: Tally::new(),
        };
        let raft = thread::current().id();
        let gate = Gate { raft, wanted: AtomicBool::new(false), turn: Mutex::default() };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            gate: Arc::new(gate),
            index: Arc::new(watch::Sender::new(None)),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let gate = &*self.gate;
        if thread::current().id() == gate.raft {
            gate.wanted.store(true, Ordering::Relaxed);
            let state = self.inner.lock();
            gate.wanted.store(false, Ordering::Relaxed);
            return Locked { state: state.expect(UNPOISONED), _turn: None };
        }
        let turn = gate.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Not for long: nobody else can have the lock now.
        while gate.wanted.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        Locked { state: self.inner.lock().expect(UNPOISONED), _turn: Some(turn) }
    }

    /// Whether a thread has panicked with the lock: then [`lock`](Self::lock) panics.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
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
        self.witness.start_after(meta.last_log_id);
        replaced
    }

    /// Applies one batch: settles waits, marks keys for the mirror, and keeps the changes for watches. `is_own` if this node
    /// proposed it, and is not replaying its log.
    pub(crate) fn apply(&mut self, batch: Batch, is_own: bool) -> Vec<Outcome> {
        let (from, to) = (self.table.rules(), batch.rules);
        if to > from {
            tracing::info!(from, to, "the rules are raised");
        }
        let outcomes = batch.apply(&mut self.table, &mut self.events);
        self.tally.applied(outcomes.len());
        self.witness.note(&outcomes, &self.events, &self.table);
        for event in self.events.drain(..) {
            self.waits.apply(&event, &self.table);
            self.marker.mark(&event);
            if is_own {
                self.tally.changed(&event);
                audit::tell(&event);
            }
            self.history.keep(event);
        }
        // The start of a numbering, and a floor, make no change.
        self.history.raise(self.table.revision());
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use ringfence_lease::Command;
    use ringfence_wire::{LeaseId, Revision};

    use super::*;
    use crate::applied::lease_wait::LeaseWait;
    use crate::consensus::log_id;
    use crate::reply::Reply;

    /// Threads that take the lock again and again once kept Raft waiting.
    #[test]
    fn raft_has_the_lock_next_however_many_others_want_it() {
        const OTHERS: usize = 4;
        for _ in 0..100 {
            let applied = Applied::new();
            let (others_try, has_lock) = (AtomicBool::new(false), mpsc::channel());
            let order = Mutex::new(Vec::new());
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _locked = applied.lock();
                    others_try.store(true, Ordering::Relaxed);
                    has_lock.0.send(()).unwrap();
                    while !applied.gate.wanted.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                    order.lock().unwrap().push("the first");
                });
                for _ in 0..OTHERS {
                    scope.spawn(|| {
                        while !others_try.load(Ordering::Relaxed) {
                            thread::yield_now();
                        }
                        let _locked = applied.lock();
                        order.lock().unwrap().push("another");
                    });
                }
                has_lock.1.recv().unwrap();
                let _locked = applied.lock();
                order.lock().unwrap().push("raft");
            });
            let order = order.into_inner().unwrap();
            assert_eq!((&order[..2], order.len()), (&["the first", "raft"][..], 2 + OTHERS));
        }
    }

    /// It once went before readers as Raft does, and a stranger may wait for as many leases as it likes.
    #[test]
    fn a_wait_for_a_lease_has_its_turn_as_readers_have() {
        let applied = Applied::new();
        thread::scope(|scope| {
            let locked = applied.lock();
            let waiting = scope.spawn(|| {
                let lease = LeaseId::from_u128(1).unwrap();
                drop(LeaseWait::start(&applied, (lease, None), Reply::new(None)));
            });
            while applied.gate.turn.try_lock().is_ok() {
                assert!(!waiting.is_finished() && !applied.gate.wanted.load(Ordering::Relaxed));
                thread::yield_now();
            }
            assert!(!applied.gate.wanted.load(Ordering::Relaxed));
            drop(locked);
        });
    }

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
            let requests = vec![commands.into()];
            Batch { rules: 1, at_ms, max_bytes: u64::MAX, floor: Revision(0), requests }
        };
        let applied = Applied::new();
        applied.lock().apply(started(1, 7), false);
        assert_eq!(applied.lock().history.last(), Revision(7));
        let mut table = LeaseTable::new();
        table.apply_requests(1, started(1, 9).requests, &mut Vec::new());
        let meta = SnapshotMeta { last_log_id: None, last_membership: StoredMembership::default() };
        applied.replace(table, &meta);
        assert_eq!(applied.lock().history.last(), Revision(9));
    }
}
