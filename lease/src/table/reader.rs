use std::io::Read;

use super::restore::RestoreError;
use super::snapshot::Record;

/// The records of a snapshot, read one after the other through a buffer that holds a small part of its bytes.
pub(crate) struct RecordReader<R> {
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

/// No record has more bytes. That of a lease is by less than 100 bytes longer than the acquire it comes from. The door
/// lets 64 keys in, but the table takes what a log gives it, and no log takes an entry of more than 1 GiB. So the
/// window grows as far as a record needs it, and only damage comes up against this.
const LARGEST: usize = (1 << 30) + 100;

impl<R: Read> RecordReader<R> {
    pub(crate) fn new(source: R) -> Self {
        Self::with_window(source, WINDOW, LARGEST)
    }

    fn with_window(source: R, window: usize, largest: usize) -> Self {
        Self { source, buffer: Vec::with_capacity(window), taken: 0, window, largest, ended: false }
    }

    /// The next record.
    pub(crate) fn next(&mut self) -> Result<Record<'static>, RestoreError> {
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
    pub(crate) fn is_at_end(&mut self) -> Result<bool, RestoreError> {
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
            self.window = self.largest.min(2 * self.window);
        }
        let room = self.window - self.buffer.len();
        let read = self.source.by_ref().take(room as u64).read_to_end(&mut self.buffer)?;
        self.ended = read < room;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use ringfence_wire::Revision;

    use super::*;
    use crate::table::write_records;

    #[test]
    fn the_window_grows_with_a_record_up_to_the_largest() {
        let head = |at_ms| Record::Head { at_ms, first_revision: Revision(0), revision: Revision(u64::MAX) };
        let mut bytes = Vec::new();
        // Each has 13 bytes or 22.
        write_records([head(1), head(u64::MAX), head(2)], &mut bytes).unwrap();
        let read_with = |window, largest| {
            let mut reader = RecordReader::with_window(&bytes[4..], window, largest);
            (0..3).map(|_| reader.next()).collect::<Result<Vec<_>, _>>()
        };
        for (window, largest) in [(1, 32), (13, 26), (14, 28), (22, 22), (64, 64), (200, 200)] {
            assert_eq!(read_with(window, largest).unwrap(), [head(1), head(u64::MAX), head(2)], "{window}");
        }
        for window in [1, 2, 4, 5, 10, 21] {
            let error = read_with(window, 21).unwrap_err();
            assert!(error.to_string().contains("larger than any"), "{window}: {error}");
        }
    }

    /// A damaged length must not make the reader ask for memory that the source does not fill.
    #[test]
    fn a_record_that_claims_to_be_huge_breaks_off() {
        // The head, and a lease whose first key has 2^60 bytes.
        let mut bytes = Vec::new();
        write_records(
            [Record::Head { at_ms: 1, first_revision: Revision(0), revision: Revision(1) }],
            &mut bytes,
        )
        .unwrap();
        bytes.extend([1, 16]);
        bytes.extend([7; 16]);
        bytes.push(1);
        bytes.extend([0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]);
        let mut reader = RecordReader::new(io::Cursor::new(&bytes[4..]).chain(&[b'a'; 1_000][..]));
        reader.next().unwrap();
        let error = reader.next().unwrap_err();
        assert!(error.to_string().contains("breaks off"), "{error}");
        assert!(reader.buffer.capacity() <= WINDOW);
    }
}
