use std::io::Read;

use super::restore::RestoreError;
use super::snapshot::Record;

/// The records of a snapshot, read one after the other through a buffer that holds a small part of its bytes.
pub(super) struct Records<R> {
    source: R,
    /// What was read and is kept; the first `taken` bytes of it were records already.
    buffer: Vec<u8>,
    taken: usize,
    /// How many bytes the buffer holds when it is full.
    window: usize,
    /// The most that it may ever hold.
    largest: usize,
    /// Whether the source has no more bytes.
    ended: bool,
}

/// So many bytes are read ahead: many records.
const WINDOW: usize = 256 << 10;

/// No record has more bytes. That of a lease is hardly longer than the acquire it comes from. The door bounds what
/// that has, but the table takes it from any log, and no log takes an entry of more than 1 GiB. So the window grows
/// as far as a record needs it, and only damage comes up against this.
const LARGEST: usize = 2 << 30;

impl<R: Read> Records<R> {
    pub(super) fn new(source: R) -> Self {
        Self::with_window(source, WINDOW, LARGEST)
    }

    fn with_window(source: R, window: usize, largest: usize) -> Self {
        Self { source, buffer: Vec::with_capacity(window), taken: 0, window, largest, ended: false }
    }

    /// The next record.
    pub(super) fn next(&mut self) -> Result<Record, RestoreError> {
        loop {
            match postcard::take_from_bytes(&self.buffer[self.taken..]) {
                Ok((record, rest)) => {
                    self.taken = self.buffer.len() - rest.len();
                    return Ok(record);
                }
                Err(postcard::Error::DeserializeUnexpectedEnd) if !self.ended => self.refill()?,
                Err(_) => {
                    return Err(RestoreError::Malformed("it breaks off, or a record cannot be read"));
                }
            }
        }
    }

    /// Whether nothing follows.
    pub(super) fn is_at_end(&mut self) -> Result<bool, RestoreError> {
        if self.taken == self.buffer.len() && !self.ended {
            self.refill()?;
        }
        Ok(self.taken == self.buffer.len())
    }

    fn refill(&mut self) -> Result<(), RestoreError> {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        if self.buffer.len() >= self.window {
            if self.window >= self.largest {
                return Err(RestoreError::Malformed("a record is larger than any can be"));
            }
            self.window *= 2;
        }
        let room = self.window - self.buffer.len();
        let read = self.source.by_ref().take(room as u64).read_to_end(&mut self.buffer)?;
        self.ended = read < room;
        Ok(())
    }
}
