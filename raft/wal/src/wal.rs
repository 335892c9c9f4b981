//! The handle: append, forget, close.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::disk::{Disk, System};
use crate::error::OpenError;
use crate::flusher::Flusher;
use crate::options::Options;
use crate::queue::{Item, Queue, Stats};
use crate::record::{Done, MAX_PAYLOAD, Record, Records};
use crate::recover::recover;

/// An open log. Dropping it writes what is queued, completes the callbacks and ends the flusher.
///
/// The caller must lock the directory: two logs in one destroy each other.
pub struct Wal {
    disk: Arc<dyn Disk>,
    queue: Arc<Queue>,
    flusher: Option<JoinHandle<io::Result<()>>>,
}

impl Wal {
    /// Opens the log in `dir`, which holds nothing else, and returns all its records with their sequences. A directory
    /// that is missing or empty becomes a new log, whose first record has sequence 1: a caller that knows there must be
    /// one has to check.
    ///
    /// Everything returned is on disk. Records that were appended and not acknowledged may or may not be among them, and
    /// so may records before the one given to [`Wal::forget`].
    ///
    /// # Errors
    /// [`OpenError`], if anything acknowledged is, or may be, damaged or missing.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Records), OpenError> {
        Self::open_on(Arc::new(System), dir, options)
    }

    /// Does the same on another [`Disk`], which also decides what runs the flusher.
    ///
    /// # Errors
    /// As of [`Wal::open`].
    pub fn open_on(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<(Self, Records), OpenError> {
        let (segments, records, cut_bytes) = recover(&disk, dir, options.rounded())?;
        let queue = Arc::new(Queue::new(segments.next_sequence - 1, cut_bytes));
        let flusher = Flusher::new(Arc::clone(&queue), segments);
        let flusher = disk.start(Box::new(flusher)).map_err(OpenError::io("start the flusher of", dir))?;
        Ok((Self { disk, queue, flusher }, records))
    }

    /// Queues records and returns the sequence of the last one, or of the last one before if there are none; never waits for the disk.
    /// The records of one call have consecutive sequences.
    ///
    /// The flusher calls `done` once they and everything appended before are on disk, in the order of the appends; it
    /// should be short. With no records it is a barrier. Records without a `done` cause no flush: they ride along with the
    /// next one that somebody waits for, at the latest when the log is closed. An error is final: these records may or may
    /// not be found when the log is opened again, and every later `done` gets the same error.
    ///
    /// # Panics
    /// If a payload is larger than [`MAX_PAYLOAD`].
    pub fn append(&self, records: impl IntoIterator<Item = Record>, done: Option<Done>) -> u64 {
        let item = |record: Record| {
            assert!(record.payload.len() <= MAX_PAYLOAD, "a payload is larger than MAX_PAYLOAD");
            Item::Record(record)
        };
        // Collected first: a slow iterator must not hold the lock.
        let mut items: Vec<Item> = records.into_iter().map(item).collect();
        let count = items.len() as u64;
        let bytes = items.iter().map(Item::bytes).sum();
        items.extend(done.map(Item::Done));
        self.queue.put(items, count, bytes)
    }

    /// Gives up the records with a sequence below `before`: once everything appended so far is on disk, segments that hold
    /// only such records are deleted. Others of them may come back at the next opening.
    ///
    /// State of which only the latest counts (a vote, say) may stand in a segment that goes: append it again before
    /// calling this.
    pub fn forget(&self, before: u64) {
        self.queue.put([Item::Forget(before)], 0, 0);
    }

    /// Bytes of appended records that are not on disk yet, as they count there. [`Wal::append`] does not bound them: the
    /// caller has to, because none of them goes while a disk hangs.
    pub fn queued_bytes(&self) -> u64 {
        self.queue.bytes()
    }

    /// Counters since opening.
    pub fn stats(&self) -> Stats {
        self.queue.stats(self.disk.now())
    }

    /// The error that made the log unusable, if one did. Callbacks get it, too, but nobody may be waiting for a flush.
    pub fn failure(&self) -> Option<String> {
        self.queue.failure()
    }

    /// Writes what is queued, completes the callbacks and ends the flusher.
    ///
    /// # Errors
    /// The error that made the log unusable, if one did.
    pub fn close(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        self.queue.close();
        match self.flusher.take() {
            // The last handle can go in a callback; the flusher cannot wait for itself.
            Some(flusher) if flusher.thread().id() != thread::current().id() => {
                flusher.join().unwrap_or_else(|_| Err(io::Error::other("the flusher of the log panicked")))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        // Callers that need the outcome have a callback, or use `close`.
        let _ = self.end();
    }
}
