//! What waits between the appenders and the flusher.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::frame::FRAME_HEAD;
use crate::{Done, Record, Stats};

/// One thing for the flusher to do. They are done in order.
pub(crate) enum Item {
    Record(Record),
    Done(Done),
    Forget(u64),
}

impl Item {
    /// What counts of it against the memory that the queue may take.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Record(record) => (FRAME_HEAD + record.payload.len()) as u64,
            Self::Done(_) | Self::Forget(_) => 0,
        }
    }
}

/// Shared by the appenders and the flusher. The lock is never held while the disk is busy.
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    /// Bytes of records that are queued, or in the flush under way.
    queued_bytes: AtomicU64,
    flushes: AtomicU64,
    bytes: AtomicU64,
    last_flush_nanos: AtomicU64,
    /// When the flush under way began, in nanoseconds from `made`; 0 where none is.
    flushing_since: AtomicU64,
    made: Instant,
    cut: u64,
}

struct Queue {
    items: Vec<Item>,
    last_sequence: u64,
    /// Whether anybody waits for what is queued. Records that nobody waits for ride along with the next flush.
    is_due: bool,
    /// Waking a thread costs a system call even if it does not sleep.
    is_flusher_asleep: bool,
    is_closed: bool,
}

impl Shared {
    pub(crate) fn new(last_sequence: u64, cut: u64) -> Self {
        let queue = Queue {
            items: Vec::new(),
            last_sequence,
            is_due: false,
            is_flusher_asleep: false,
            is_closed: false,
        };
        Self {
            queue: Mutex::new(queue),
            filled: Condvar::new(),
            queued_bytes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            last_flush_nanos: AtomicU64::new(0),
            flushing_since: AtomicU64::new(0),
            made: Instant::now(),
            cut,
        }
    }

    /// Queues items, `records` of which are records of `bytes` in all, and gives the sequence of the last record.
    pub(crate) fn put(&self, items: impl IntoIterator<Item = Item>, records: u64, bytes: u64) -> u64 {
        self.queued_bytes.fetch_add(bytes, Relaxed);
        let mut queue = self.lock();
        let queued = queue.items.len();
        queue.items.extend(items);
        queue.is_due |= queue.items[queued..].iter().any(|item| !matches!(item, Item::Record(_)));
        queue.last_sequence += records;
        let last_sequence = queue.last_sequence;
        self.wake(queue);
        last_sequence
    }

    /// Lets the flusher end once everything queued is done.
    pub(crate) fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        self.wake(queue);
    }

    /// Waits for items that somebody waits for, and takes them all; `false` once closed and empty.
    pub(crate) fn take(&self, items: &mut Vec<Item>) -> bool {
        let mut queue = self.lock();
        while !queue.is_due {
            if queue.is_closed {
                std::mem::swap(&mut queue.items, items);
                return !items.is_empty();
            }
            queue.is_flusher_asleep = true;
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.is_flusher_asleep = false;
        }
        queue.is_due = false;
        std::mem::swap(&mut queue.items, items);
        true
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Relaxed)
    }

    /// Records of so many bytes are on disk, or never will be.
    pub(crate) fn settled(&self, bytes: u64) {
        self.queued_bytes.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn begin_flush(&self, at: Instant) {
        self.flushing_since.store((at - self.made).as_nanos().max(1) as u64, Relaxed);
    }

    pub(crate) fn end_flush(&self) {
        self.flushing_since.store(0, Relaxed);
    }

    pub(crate) fn count_flush(&self, took: Duration, bytes: usize) {
        self.flushes.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
        self.last_flush_nanos.store(took.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let flushing = match self.flushing_since.load(Relaxed) {
            0 => Duration::ZERO,
            since => self.made.elapsed().saturating_sub(Duration::from_nanos(since)),
        };
        Stats {
            flushes: self.flushes.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            last_flush: Duration::from_nanos(self.last_flush_nanos.load(Relaxed)),
            flushing,
            cut_bytes: self.cut,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while it holds the lock, and the queue is whole at every step.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the flusher if it sleeps, after letting go of the lock it will want.
    fn wake(&self, queue: MutexGuard<'_, Queue>) {
        let is_asleep = queue.is_flusher_asleep && (queue.is_due || queue.is_closed);
        drop(queue);
        if is_asleep {
            self.filled.notify_one();
        }
    }
}
