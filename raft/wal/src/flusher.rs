//! The one thread that writes: drain, write once, sync once, complete in order.

use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::error::lacks_descriptors;
use crate::flush::FlushBuffer;
use crate::folder;
use crate::frame::{NOTE_FORGOTTEN, NOTE_ROLLED};
use crate::header::Header;
use crate::queue::{Item, Shared};
use crate::recover::Recovered;
use crate::sector::SECTOR;
use crate::segment::Segment;
use crate::{Done, Options, Record};

/// Room kept in every segment for the note that the log goes on in the next.
const ROLL_NOTE: u64 = SECTOR as u64;

pub(crate) struct Flusher {
    dir: PathBuf,
    /// The same, open to be synced: there may be no descriptor when one is needed.
    folder: Arc<File>,
    options: Options,
    shared: Arc<Shared>,
    /// First sequences of all segments; the last is the active one.
    segments: Vec<u64>,
    active: Segment,
    /// Whether it grows beyond its size for lack of a descriptor.
    is_overlong: bool,
    buffer: FlushBuffer,
    /// Of the records in the buffer, as they were counted when they were queued.
    laid_out_bytes: u64,
    /// To complete with the next flush.
    waiting: Vec<Done>,
    /// The segments wholly before this go once the next flush is on disk.
    forget: Option<u64>,
    /// Deletes what was forgotten; it waits for the one before it.
    deleting: Option<JoinHandle<io::Result<()>>>,
    next_flush: u64,
    /// Sequence of the next record to lay out.
    next_sequence: u64,
    /// Sequence of the first record not written yet.
    unwritten_sequence: u64,
    /// The first error is the last thing that happened to the log: see the head of the crate.
    failure: Option<(io::ErrorKind, String)>,
}

impl Flusher {
    pub(crate) fn new(dir: PathBuf, options: Options, shared: Arc<Shared>, log: Recovered) -> Self {
        Self {
            dir,
            folder: Arc::new(log.folder),
            options,
            shared,
            segments: log.segments,
            active: log.active,
            is_overlong: false,
            buffer: FlushBuffer::default(),
            laid_out_bytes: 0,
            waiting: Vec::new(),
            forget: None,
            deleting: None,
            next_flush: log.next_flush,
            next_sequence: log.next_sequence,
            unwritten_sequence: log.next_sequence,
            failure: None,
        }
    }

    /// Runs until the log is closed; gives the error that ended it before, if one did.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut items = Vec::new();
        while shared.take(&mut items) {
            for item in items.drain(..) {
                let bytes = item.bytes();
                match item {
                    Item::Record(record) => self.add(&record, bytes),
                    Item::Done(done) => self.waiting.push(done),
                    Item::Forget(before) => self.add_forget(before),
                }
            }
            self.flush();
        }
        self.await_deletion();
        self.outcome()
    }

    fn add(&mut self, record: &Record, bytes: u64) {
        let is_full = self.buffer.len_with(record.payload.len()) > self.options.flush_bytes;
        if is_full && !self.buffer.is_empty() {
            self.flush();
        }
        self.laid_out_bytes += bytes;
        if self.failure.is_none() {
            self.buffer.push(u16::from(record.kind), self.next_sequence, &record.payload);
        }
        self.next_sequence += 1;
    }

    /// Notes what may be gone from now on, if there is a segment that can go.
    fn add_forget(&mut self, before: u64) {
        let gone = self.forgettable(before);
        if gone > 0 && self.failure.is_none() {
            let kept = self.segments[gone];
            self.buffer.push(NOTE_FORGOTTEN, self.next_sequence, &kept.to_le_bytes());
            self.forget = self.forget.max(Some(kept));
        }
    }

    /// Number of segments that hold nothing from this sequence on.
    fn forgettable(&self, before: u64) -> usize {
        self.segments[1..].iter().take_while(|&&next| next <= before).count()
    }

    /// Writes what is laid out and completes what waits for it.
    fn flush(&mut self) {
        let started = Instant::now();
        let bytes = self.buffer.len();
        if bytes > 0 && self.failure.is_none() {
            if ringfence_mutant::is(ringfence_mutant::Mutant::AcknowledgesBeforeFlush) {
                thread::sleep(std::time::Duration::from_millis(300));
            }
            self.shared.begin_flush(started);
            match self.write() {
                Ok(()) => self.shared.count_flush(started.elapsed(), bytes),
                Err(error) => self.fail(&error),
            }
        }
        let took = started.elapsed();
        self.buffer.clear(self.options.flush_bytes);
        self.shared.settled(std::mem::take(&mut self.laid_out_bytes));
        let mut waiting = std::mem::take(&mut self.waiting);
        for done in waiting.drain(..) {
            let outcome = self.outcome();
            self.guard(|| done(outcome));
        }
        self.waiting = waiting;
        // Not before they are told: whoever waits for this flush waits for that, too.
        self.shared.end_flush();
        if bytes > 0 && self.failure.is_none() {
            if let Some(on_flush) = self.options.on_flush.clone() {
                self.guard(|| on_flush(took, bytes));
            }
            if let Err(error) = self.delete_forgotten() {
                self.fail(&error);
            }
        }
        if self.deleting.as_ref().is_some_and(JoinHandle::is_finished) {
            self.await_deletion();
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let end = self.active.used() + self.buffer.len() as u64 + ROLL_NOTE;
        // A segment is named by its first record, so one that holds no record yet takes whatever comes: a
        // flush larger than a segment, too.
        let has_records = self.active.header().first_sequence < self.unwritten_sequence;
        if end > self.options.segment_bytes && has_records {
            self.roll()?;
        }
        let sealed = self.buffer.seal(self.next_flush, self.active.header().seed());
        self.active.write(sealed)?;
        self.next_flush += 1;
        self.unwritten_sequence = self.next_sequence;
        Ok(())
    }

    /// Goes on in a new segment, and then notes so at the end of the old one: from then on the loss of the
    /// new segment is seen. Without a descriptor for it the old one has to do until the next flush.
    fn roll(&mut self) -> io::Result<()> {
        let old = *self.active.header();
        let header =
            Header { first_flush: self.next_flush + 1, first_sequence: self.unwritten_sequence, ..old };
        let header = Header { step: self.options.step_bytes, ..header };
        let new = match Segment::create(&self.dir, &self.folder, header) {
            Err(error) if lacks_descriptors(&error) => {
                if !std::mem::replace(&mut self.is_overlong, true) {
                    tracing::warn!(%error, "the log cannot go on in a new segment yet");
                }
                return Ok(());
            }
            made => made?,
        };
        self.is_overlong = false;
        let mut note = FlushBuffer::default();
        note.push(NOTE_ROLLED, self.unwritten_sequence, &[]);
        self.active.write(note.seal(self.next_flush, old.seed()))?;
        self.next_flush += 1;
        self.active = new;
        self.segments.push(self.unwritten_sequence);
        Ok(())
    }

    /// In a thread of its own, for it takes a tenth of a second to delete a large file.
    fn delete_forgotten(&mut self) -> io::Result<()> {
        let Some(before) = self.forget.take() else { return Ok(()) };
        let gone: Vec<u64> = self.segments.drain(..self.forgettable(before)).collect();
        let earlier = self.deleting.take();
        let (dir, folder) = (self.dir.clone(), Arc::clone(&self.folder));
        let delete = move || {
            earlier.map_or(Ok(()), outcome_of)?;
            delete_segments(&dir, &folder, &gone)
        };
        self.deleting = Some(thread::Builder::new().name("wal-deleter".to_owned()).spawn(delete)?);
        Ok(())
    }

    fn await_deletion(&mut self) {
        if let Some(Err(error)) = self.deleting.take().map(outcome_of) {
            self.fail(&error);
        }
    }

    /// Runs foreign code. If it panics the thread must live on: others wait for their completion.
    fn guard(&mut self, foreign: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(foreign)).is_err() {
            self.fail(&io::Error::other("a completion callback panicked"));
        }
    }

    fn fail(&mut self, error: &io::Error) {
        if self.failure.is_none() {
            let text = format!("the log is closed by an error at {}: {error}", self.active.path().display());
            tracing::error!("{text}");
            self.failure = Some((error.kind(), text));
        }
    }

    fn outcome(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }
}

/// Oldest first, each made durable before the next, so that no crash leaves a gap.
fn delete_segments(dir: &Path, folder: &File, first_sequences: &[u64]) -> io::Result<()> {
    for &first in first_sequences {
        fs::remove_file(folder::segment_path(dir, first))?;
        folder.sync_all()?;
    }
    Ok(())
}

fn outcome_of(thread: JoinHandle<io::Result<()>>) -> io::Result<()> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("deleting old segments panicked")))
}
