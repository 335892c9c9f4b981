//! What waits between the appenders and the flusher.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::frame::FRAME_HEAD;
use crate::record::{Done, Record};

/// Counters of an open log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Flushes since opening.
    pub flushes: u64,
    /// Bytes they wrote, sector heads included.
    pub bytes: u64,
    /// Duration of the last of them, from the first write to the end of the sync.
    pub last_flush: Duration,
    /// Age of the flush under way, which ends when its callbacks have returned; zero if there is none.
    pub flushing: Duration,
    /// Bytes of a torn tail that opening cut off.
    pub cut_bytes: u64,
}

/// One thing for the flusher to do, in order.
pub(crate) enum Item {
    Record(Record),
    Done(Done),
    Forget(u64),
}

impl Item {
    /// The bytes for which it counts in the queue.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Record(record) => (FRAME_HEAD + record.payload.len()) as u64,
            Self::Done(_) | Self::Forget(_) => 0,
        }
    }
}

/// Shared by the appenders and the flusher. The lock is never held while the disk is busy.
pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

struct State {
    items: Vec<Item>,
    last_sequence: u64,
    /// Whether anybody waits for what is queued. Records that nobody waits for ride along with the next flush.
    is_due: bool,
    /// Waking a thread costs a system call even if it does not sleep.
    is_flusher_asleep: bool,
    is_closed: bool,
    /// Bytes of records that are queued, or in the flush under way.
    bytes: u64,
    flushing_since: Option<Instant>,
    stats: Stats,
    /// The error that closed the log.
    failure: Option<String>,
}

impl Queue {
    pub(crate) fn new(last_sequence: u64, cut_bytes: u64) -> Self {
        let state = State {
            items: Vec::new(),
            last_sequence,
            is_due: false,
            is_flusher_asleep: false,
            is_closed: false,
            bytes: 0,
            flushing_since: None,
            stats: Stats { cut_bytes, ..Stats::default() },
            failure: None,
        };
        Self { state: Mutex::new(state), filled: Condvar::new() }
    }

    /// Queues items, `records` of which are records of `bytes` in all, and returns the sequence of the last record.
    pub(crate) fn put(&self, items: impl IntoIterator<Item = Item>, records: u64, bytes: u64) -> u64 {
        let mut state = self.lock();
        let queued = state.items.len();
        state.items.extend(items);
        state.is_due |= state.items[queued..].iter().any(|item| !matches!(item, Item::Record(_)));
        state.bytes += bytes;
        state.last_sequence += records;
        let last_sequence = state.last_sequence;
        self.wake(state);
        last_sequence
    }

    /// Lets the flusher end once everything queued is done.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.wake(state);
    }

    /// Takes all items, if anybody waits for any of them or the log is closed; `false` if there is nothing to do.
    pub(crate) fn take(&self, items: &mut Vec<Item>) -> bool {
        let mut state = self.lock();
        if state.is_due || state.is_closed {
            state.is_due = false;
            std::mem::swap(&mut state.items, items);
        }
        !items.is_empty()
    }

    /// Waits until there is something to take, or the log is closed.
    pub(crate) fn wait(&self) {
        let mut state = self.lock();
        while !state.is_due && !state.is_closed {
            state.is_flusher_asleep = true;
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.is_flusher_asleep = false;
        }
    }

    /// Bytes of records that are not on disk yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    pub(crate) fn begin_flush(&self, now: Instant) {
        self.lock().flushing_since = Some(now);
    }

    /// A flush wrote `written` bytes, or failed and wrote none. The records of it, `records` bytes of the queue, are on
    /// disk or never will be.
    pub(crate) fn wrote(&self, written: Option<usize>, took: Duration, records: u64) {
        let mut state = self.lock();
        state.bytes -= records;
        if let Some(bytes) = written {
            state.stats.flushes += 1;
            state.stats.bytes += bytes as u64;
            state.stats.last_flush = took;
        }
    }

    pub(crate) fn end_flush(&self) {
        self.lock().flushing_since = None;
    }

    pub(crate) fn stats(&self, now: Instant) -> Stats {
        let state = self.lock();
        let flushing =
            state.flushing_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        Stats { flushing, ..state.stats }
    }

    /// Notes the error that closed the log.
    pub(crate) fn fail(&self, error: String) {
        self.lock().failure.get_or_insert(error);
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and the state is consistent at every step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the flusher if it sleeps, after releasing the lock that it will want.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let is_asleep = state.is_flusher_asleep && (state.is_due || state.is_closed);
        drop(state);
        if is_asleep {
            self.filled.notify_one();
        }
    }
}
