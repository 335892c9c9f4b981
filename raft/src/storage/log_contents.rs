//! What the records of a log add up to: entries, vote, and commit position.

use std::collections::VecDeque;
use std::io;
use std::ops::{Bound, RangeBounds};

use ringfence_wal::{OpenError, Records};

use crate::consensus::{Entry, LogId, Vote};
use crate::storage::identity::DataDir;
use crate::storage::record::{LogRecord, RecordError, body_len};

/// The contents of a log.
#[derive(Default)]
pub(crate) struct LogContents {
    /// Consecutive entries, each with the sequence of its record.
    pub(crate) entries: VecDeque<(u64, Entry)>,
    /// How much memory the entries take, in bytes.
    bytes: u64,
    /// The last entry that is only in a snapshot.
    pub(crate) purged: Option<LogId>,
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<LogId>,
}

/// Why the log of a node does not open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error(transparent)]
    Wal(#[from] OpenError),
    #[error("record {sequence} of the log cannot be read: {error}")]
    Record { sequence: u64, error: RecordError },
    #[error(
        "record {sequence} of the log holds entry {found}, but entry {expected} is due: entries are missing"
    )]
    Gap { sequence: u64, expected: u64, found: u64 },
}

impl LogError {
    /// Whether the file system failed, and not the log.
    pub(crate) fn is_io(&self) -> bool {
        matches!(self, Self::Wal(OpenError::Io { .. }))
    }
}

impl LogContents {
    /// Reads the log in `dir`, to which nobody writes, and changes nothing.
    pub(crate) fn read(dir: &DataDir) -> Result<Self, LogError> {
        Self::of(ringfence_wal::read(&*dir.disk, &dir.log())?)
    }

    pub(super) fn of(records: Records) -> Result<Self, LogError> {
        let mut contents = Self::default();
        for (sequence, record) in records {
            let record = LogRecord::read(record).map_err(|error| LogError::Record { sequence, error })?;
            contents.replay(sequence, record)?;
        }
        contents.check_front()?;
        Ok(contents)
    }

    fn replay(&mut self, sequence: u64, record: LogRecord) -> Result<(), LogError> {
        match record {
            LogRecord::Vote(vote) => self.vote = Some(vote),
            LogRecord::Committed(id) => self.committed = Some(id),
            LogRecord::Truncated(last) => self.truncate_after(last),
            LogRecord::Purged(id) => self.purge(id),
            // Segments are deleted whole: the oldest may still hold entries that were purged long ago.
            LogRecord::Entry(entry)
                if self.purged.is_some_and(|purged| entry.log_id.index() <= purged.index()) => {}
            LogRecord::Entry(entry) => {
                let found = entry.log_id.index();
                let expected = self.next_index();
                // Any entry may be the first: the oldest segment left may begin anywhere before the purge for which others
                // were deleted, and may itself hold only an earlier purge. `check_front` decides once all records are read.
                if !self.entries.is_empty() && found != expected {
                    return Err(LogError::Gap { sequence, expected, found });
                }
                self.push(sequence, entry);
            }
        }
        Ok(())
    }

    /// Checks that everything before the first entry was purged.
    fn check_front(&self) -> Result<(), LogError> {
        let expected = self.purged.map_or(0, |id| id.index() + 1);
        match self.entries.front() {
            Some((sequence, entry)) if entry.log_id.index() > expected => {
                Err(LogError::Gap { sequence: *sequence, expected, found: entry.log_id.index() })
            }
            _ => Ok(()),
        }
    }

    /// The last entry before about the last `tail_bytes` of those that `snapshot` covers; `None` if there are no more.
    pub(super) fn before_tail(&self, snapshot: LogId, tail_bytes: u64) -> Option<LogId> {
        let mut bytes = 0;
        let mut covered = self.range(..=snapshot.index()).rev();
        covered.find_map(|(_, entry)| {
            bytes += body_len(entry) as u64;
            (bytes > tail_bytes).then_some(entry.log_id)
        })
    }

    /// Checks that these entries follow the last one: a gap on disk, or a second entry of the same index, makes a log that
    /// does not open again. The first entry of a new log is not checked: openraft's suite begins at 1.
    pub(super) fn check_append(&self, entries: &[Entry]) -> io::Result<()> {
        let first = entries.first().map_or(0, |entry| entry.log_id.index());
        let next = self.last().map_or(first, |id| id.index() + 1);
        for (entry, expected) in entries.iter().zip(next..) {
            let found = entry.log_id.index();
            if found != expected {
                let error =
                    format!("entry {found} cannot be appended to the log: entry {expected} comes next");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
            }
        }
        Ok(())
    }

    pub(super) fn push(&mut self, sequence: u64, entry: Entry) {
        self.bytes += memory(&entry);
        self.entries.push_back((sequence, entry));
    }

    /// How much memory the entries take, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn next_index(&self) -> u64 {
        self.last().map_or(0, |id| id.index() + 1)
    }

    pub(super) fn last(&self) -> Option<LogId> {
        self.entries.back().map(|(_, entry)| entry.log_id).or(self.purged)
    }

    pub(super) fn truncate_after(&mut self, last: Option<u64>) {
        let keeps = |(_, entry): &(u64, Entry)| last.is_some_and(|last| entry.log_id.index() <= last);
        let gone = self.entries.drain(self.entries.partition_point(keeps)..);
        self.bytes -= gone.map(|(_, entry)| memory(&entry)).sum::<u64>();
    }

    pub(super) fn purge(&mut self, id: LogId) {
        let gone = self.entries.partition_point(|(_, entry)| entry.log_id.index() <= id.index());
        self.bytes -= self.entries.drain(..gone).map(|(_, entry)| memory(&entry)).sum::<u64>();
        self.purged = self.purged.max(Some(id));
    }

    /// The entries with an index in `range`, with the sequences of their records.
    pub(super) fn range(
        &self,
        range: impl RangeBounds<u64>,
    ) -> impl DoubleEndedIterator<Item = &(u64, Entry)> + ExactSizeIterator {
        let start = match range.start_bound() {
            Bound::Included(&index) => index,
            Bound::Excluded(&index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&index) => index.saturating_add(1),
            Bound::Excluded(&index) => index,
            Bound::Unbounded => u64::MAX,
        };
        let start = self.entries.partition_point(|(_, entry)| entry.log_id.index() < start);
        let end = self.entries.partition_point(|(_, entry)| entry.log_id.index() < end);
        self.entries.range(start.min(end)..end)
    }
}

fn memory(entry: &Entry) -> u64 {
    (size_of::<(u64, Entry)>() + body_len(entry)) as u64
}

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;

    use super::*;
    use crate::consensus::log_id;

    #[test]
    fn entries_that_are_missing_are_noticed_wherever_they_were() {
        let purged = |index| LogRecord::Purged(log_id(1, index));
        let entry =
            |index| LogRecord::Entry(Entry { log_id: log_id(1, index), payload: EntryPayload::Blank });
        let read = |records: Vec<LogRecord>| {
            let mut contents = LogContents::default();
            for (sequence, record) in (1..).zip(records) {
                contents.replay(sequence, record)?;
            }
            contents.check_front()
        };
        for (records, is_whole) in [
            (vec![entry(0), entry(1)], true),
            (vec![entry(1), entry(2)], false),
            (vec![entry(0), entry(2)], false),
            (vec![purged(4), entry(5)], true),
            (vec![purged(4), entry(6)], false),
            (vec![purged(4), entry(7), entry(8), purged(6)], true),
            (vec![purged(4), entry(7), entry(9), purged(6)], false),
            (vec![entry(0), purged(4), entry(6)], false),
            (vec![purged(4), entry(5), entry(6), LogRecord::Truncated(Some(4)), entry(6)], false),
        ] {
            let told = format!("{records:?}");
            assert_eq!(read(records).is_ok(), is_whole, "{told}");
        }
    }
}
