//! The only writer of a log: drain, write once, sync once, complete in order.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};

use crate::disk::Flush;
use crate::flush::FlushBuffer;
use crate::frame::NOTE_FORGOTTEN;
use crate::queue::{Item, Queue};
use crate::record::{Done, Record};
use crate::segments::Segments;

pub(crate) struct Flusher {
    queue: Arc<Queue>,
    /// Taken off the queue, to be written.
    items: Vec<Item>,
    segments: Segments,
    buffer: FlushBuffer,
    /// For how much the records in the buffer count in the queue.
    laid_out_bytes: u64,
    /// Sequence of the next record to lay out.
    next_sequence: u64,
    /// To complete with the next flush.
    waiting: Vec<Done>,
    /// The segments before this one go once the next flush is on disk.
    forget: Option<u64>,
    /// Receives the outcome of the deletion under way.
    deleting: Option<mpsc::Receiver<io::Result<()>>>,
    /// The first error. Nothing is written after it: see the head of the crate.
    failure: Option<(io::ErrorKind, String)>,
}

impl Flush for Flusher {
    fn begin(&mut self) -> bool {
        let has_begun = !self.items.is_empty() || self.queue.take(&mut self.items);
        if has_begun {
            self.queue.begin_flush(self.segments.disk.now());
        }
        has_begun
    }

    fn finish(&mut self) {
        let mut items = std::mem::take(&mut self.items);
        for item in items.drain(..) {
            let bytes = item.bytes();
            match item {
                Item::Record(record) => self.add(&record, bytes),
                Item::Done(done) => self.waiting.push(done),
                Item::Forget(before) => self.add_forget(before),
            }
        }
        self.items = items;
        self.flush();
    }

    fn run(mut self: Box<Self>) -> io::Result<()> {
        loop {
            self.queue.wait();
            if !self.begin() {
                break;
            }
            self.finish();
        }
        while self.deleting.is_some() {
            self.end_deletion(true);
            self.begin_deletion();
        }
        self.outcome()
    }
}

impl Flusher {
    pub(crate) fn new(queue: Arc<Queue>, segments: Segments) -> Self {
        Self {
            queue,
            items: Vec::new(),
            buffer: FlushBuffer::default(),
            laid_out_bytes: 0,
            next_sequence: segments.next_sequence,
            segments,
            waiting: Vec::new(),
            forget: None,
            deleting: None,
            failure: None,
        }
    }

    fn add(&mut self, record: &Record, bytes: u64) {
        let is_full = self.buffer.len_with(record.payload.len()) > self.segments.options.flush_bytes;
        if is_full && !self.buffer.is_empty() {
            self.flush();
        }
        self.laid_out_bytes += bytes;
        if self.failure.is_none() {
            self.buffer.push(u16::from(record.kind), self.next_sequence, &record.payload);
        }
        self.next_sequence += 1;
    }

    /// Notes which segments may be missing from now on, if there are any to delete.
    fn add_forget(&mut self, before: u64) {
        let kept = self.segments.first_kept(before).filter(|kept| self.forget < Some(*kept));
        if self.failure.is_none()
            && let Some(kept) = kept
        {
            self.buffer.push(NOTE_FORGOTTEN, self.next_sequence, &kept.to_le_bytes());
            self.forget = Some(kept);
        }
    }

    /// Writes what is laid out, and completes what waits for it.
    fn flush(&mut self) {
        let started = self.segments.disk.now();
        self.queue.begin_flush(started);
        let bytes = self.buffer.len();
        let is_written = bytes > 0 && self.failure.is_none() && self.write();
        let took = self.segments.disk.now().saturating_duration_since(started);
        self.buffer.clear(self.segments.options.flush_bytes);
        self.queue.wrote(is_written.then_some(bytes), took, std::mem::take(&mut self.laid_out_bytes));
        for done in std::mem::take(&mut self.waiting) {
            let outcome = self.outcome();
            self.guard(|| done(outcome));
        }
        // Only once the callbacks have returned: waiting for a flush includes waiting for them.
        self.queue.end_flush();
        if is_written
            && self.failure.is_none()
            && let Some(on_flush) = self.segments.options.on_flush.clone()
        {
            self.guard(|| on_flush(took, bytes));
        }
        self.end_deletion(false);
        self.begin_deletion();
    }

    /// Whether the buffer is on disk.
    fn write(&mut self) -> bool {
        let written = self.segments.write(&mut self.buffer, self.next_sequence);
        written.map_err(|error| self.fail(&error)).is_ok()
    }

    /// Deletes the forgotten segments, once the deletion before is done. It takes a tenth of a second to delete a large
    /// file, so not on this thread.
    fn begin_deletion(&mut self) {
        if self.deleting.is_some() || self.failure.is_some() {
            return;
        }
        let Some(kept) = self.forget.take() else { return };
        let delete = self.segments.delete(kept);
        let (outcome, deleting) = mpsc::channel();
        // If the log is gone, nobody receives it.
        let work = move || drop(outcome.send(delete()));
        match self.segments.disk.spawn("wal-deleter", 0, Box::new(work)) {
            Ok(()) => self.deleting = Some(deleting),
            Err(error) => self.fail(&error),
        }
    }

    /// Notes the outcome of the deletion under way, if it has ended, or waits for it.
    fn end_deletion(&mut self, is_waiting: bool) {
        let Some(deleting) = &self.deleting else { return };
        let outcome = match is_waiting {
            true => deleting.recv().ok(),
            false => match deleting.try_recv() {
                Err(mpsc::TryRecvError::Empty) => return,
                outcome => outcome.ok(),
            },
        };
        self.deleting = None;
        if let Err(error) = outcome.unwrap_or_else(|| Err(io::Error::other("deleting old segments panicked")))
        {
            self.fail(&error);
        }
    }

    /// Runs a callback. If it panics the flusher must go on: others wait for their completion.
    fn guard(&mut self, callback: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(callback)).is_err() {
            self.fail(&io::Error::other("a completion callback panicked"));
        }
    }

    fn fail(&mut self, error: &io::Error) {
        if self.failure.is_none() {
            let text =
                format!("the log is closed by an error at {}: {error}", self.segments.path().display());
            tracing::error!("{text}");
            self.queue.fail(text.clone());
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
