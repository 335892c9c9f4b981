//! The applied state of a node: the lease table, how far the log is applied, and what depends on its changes.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use ringfence_lease::{Event, LeaseTable, Outcome};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::applied::audit;
use crate::applied::changes::Marker;
use crate::applied::history::History;
use crate::applied::waits::{Left, Notification, Waits};
use crate::applied::witness::Witness;
use crate::consensus::{LogId, SnapshotMeta, StoredMembership};
use crate::measure::{self, COMMANDS_APPLIED};
use crate::propose::batch::Batch;
use crate::unanswered::Stuck;

/// How long a thread that serves clients waits for the lock. No step takes so long, unless the thread that has the lock hangs.
const PATIENCE: Duration = Duration::from_millis(500);

/// The applied state. Clones share it.
#[derive(Clone)]
pub(crate) struct Applied {
    inner: Arc<Mutex<Inner>>,
    gate: Arc<Gate>,
    index: Arc<watch::Sender<Option<LogId>>>,
    left: Left,
}

/// Lets the Raft thread have the lock before all others. The lock is not fair: threads that take it again and again would
/// keep Raft waiting for long.
struct Gate {
    raft: ThreadId,
    /// Whether the Raft thread waits for the lock.
    wanted: AtomicBool,
    /// Held by the one other thread that has the lock, or may take it next.
    turn: Mutex<()>,
    /// Whether somebody waited for the lock in vain, and nobody has had it since: then the others do not wait.
    stuck: AtomicBool,
    /// Whether a thread panicked while it could change the state. One that only reads leaves it as it was.
    poisoned: AtomicBool,
    /// The rules in use, for threads that need nothing else.
    rules: AtomicU8,
}

/// A thread's turn at the lock.
struct Turn<'a> {
    // Dropped, and so unlocked, before the next thread has its turn.
    state: MutexGuard<'a, Inner>,
    _turn: Option<MutexGuard<'a, ()>>,
}

/// The locked state, to change it.
pub(crate) struct Locked<'a> {
    turn: Turn<'a>,
    poisoned: &'a AtomicBool,
    was_panicking: bool,
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.turn.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.turn.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !self.was_panicking {
            self.poisoned.store(true, Ordering::Relaxed);
        }
    }
}

/// The locked state.
pub(crate) struct Inner {
    pub(crate) table: LeaseTable,
    pub(crate) last_applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
    pub(crate) waits: Waits,
    pub(crate) marker: Marker,
    pub(crate) history: History,
    pub(crate) witness: Witness,
    events: Vec<Event>,
}

impl Applied {
    /// To be called on the thread that Raft runs on.
    pub(crate) fn new() -> Self {
        let (waits, left) = Waits::new();
        let inner = Inner {
            table: LeaseTable::new(),
            last_applied: None,
            membership: StoredMembership::default(),
            waits,
            marker: Marker::default(),
            history: History::default(),
            witness: Witness::default(),
            events: Vec::new(),
        };
        let gate = Gate {
            raft: thread::current().id(),
            wanted: AtomicBool::new(false),
            turn: Mutex::default(),
            stuck: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            rules: AtomicU8::new(inner.table.rules()),
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            gate: Arc::new(gate),
            index: Arc::new(watch::Sender::new(None)),
            left,
        }
    }

    /// The state, to change it. Waits for as long as another thread has it: not on a thread that serves clients.
    pub(crate) fn lock(&self) -> Locked<'_> {
        self.to_change(self.wait())
    }

    /// As [`lock`](Self::lock), on a thread that serves clients.
    ///
    /// # Errors
    /// Who has the lock hangs.
    pub(crate) fn try_lock(&self) -> Result<Locked<'_>, Stuck> {
        Ok(self.to_change(self.wait_briefly()?))
    }

    /// Looks at the state. Waits for as long as another thread has it: not on a thread that serves clients.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&Inner) -> R) -> R {
        look(&self.wait().state)
    }

    /// As [`read`](Self::read), on a thread that serves clients.
    ///
    /// # Errors
    /// Who has the lock hangs.
    pub(crate) fn try_read<R>(&self, look: impl FnOnce(&Inner) -> R) -> Result<R, Stuck> {
        Ok(look(&self.wait_briefly()?.state))
    }

    fn to_change<'a>(&'a self, turn: Turn<'a>) -> Locked<'a> {
        Locked { turn, poisoned: &self.gate.poisoned, was_panicking: thread::panicking() }
    }

    fn wait(&self) -> Turn<'_> {
        let gate = &*self.gate;
        if thread::current().id() == gate.raft {
            gate.wanted.store(true, Ordering::Relaxed);
            let state = self.inner.lock();
            gate.wanted.store(false, Ordering::Relaxed);
            return self.have(state, None);
        }
        let turn = gate.turn.lock();
        // Not for long: nobody else can have the lock now.
        while gate.wanted.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        self.have(self.inner.lock(), Some(turn))
    }

    /// As [`wait`](Self::wait), but not for a thread that hangs.
    fn wait_briefly(&self) -> Result<Turn<'_>, Stuck> {
        let gate = &*self.gate;
        if thread::current().id() == gate.raft {
            return Ok(self.wait());
        }
        match self.at_once().or_else(|| self.within_patience()) {
            Some((state, turn)) if !gate.poisoned.load(Ordering::Relaxed) => Ok(self.have(state, Some(turn))),
            _ => Err(Stuck),
        }
    }

    /// The state, if nobody has it, and the Raft thread does not want it.
    fn at_once(&self) -> Option<(MutexGuard<'_, Inner>, MutexGuard<'_, ()>)> {
        let turn = self.gate.turn.try_lock()?;
        let is_wanted = self.gate.wanted.load(Ordering::Relaxed);
        if is_wanted { None } else { Some((self.inner.try_lock()?, turn)) }
    }

    fn within_patience(&self) -> Option<(MutexGuard<'_, Inner>, MutexGuard<'_, ()>)> {
        let gate = &*self.gate;
        // Who does not wait learns nothing new.
        if gate.stuck.load(Ordering::Relaxed) {
            return None;
        }
        let until = Instant::now() + PATIENCE;
        let taken = || {
            let turn = gate.turn.try_lock_until(until.into_std())?;
            while gate.wanted.load(Ordering::Relaxed) {
                if Instant::now() >= until {
                    return None;
                }
                thread::yield_now();
            }
            Some((self.inner.try_lock_until(until.into_std())?, turn))
        };
        let taken = taken();
        if taken.is_none() {
            gate.stuck.store(true, Ordering::Relaxed);
        }
        taken
    }

    fn have<'a>(&self, state: MutexGuard<'a, Inner>, turn: Option<MutexGuard<'a, ()>>) -> Turn<'a> {
        let poisoned = self.gate.poisoned.load(Ordering::Relaxed);
        assert!(!poisoned, "no panic while the state is locked to change it");
        self.gate.stuck.store(false, Ordering::Relaxed);
        Turn { state, _turn: turn }
    }

    /// Where waits that are given up are told, without the lock.
    pub(super) fn left(&self) -> Left {
        self.left.clone()
    }

    /// The rules in use, without the lock.
    pub(crate) fn rules(&self) -> u8 {
        self.gate.rules.load(Ordering::Relaxed)
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
            self.gate.rules.store(state.table.rules(), Ordering::Relaxed);
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
        COMMANDS_APPLIED.get().increment(outcomes.len() as u64);
        self.witness.note(&outcomes, &self.events, &self.table);
        for event in self.events.drain(..) {
            self.waits.apply(&event, &self.table);
            self.marker.mark(&event);
            if is_own {
                measure::changed(&event);
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
mod tests;
