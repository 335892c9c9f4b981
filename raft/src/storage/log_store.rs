//! openraft's log over the write-ahead log.
//!
//! Entries are served from memory; the write-ahead log is read at start only. What openraft purges goes from memory; on
//! disk the log reaches back to the older of the two snapshots that are kept. Everything goes into it in one order:
//! an append returns as soon as its record is queued, the flusher completes the callback when it is on disk. Commit
//! positions ride along with the next flush: nobody waits for them, they only spare a restarted node the wait for a
//! leader before it can show what it had applied.
//!
//! Appending never waits for the disk, but what waits for it is bounded: see [`LogStore::is_full`] and [`crate::hung_disk`].

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader};
use ringfence_mutant::{Mutant, is};
use ringfence_wal::{OpenError, Record, Wal};
use tokio::sync::oneshot;

use crate::consensus::{Consensus, Entry, LogId, Vote};
use crate::storage::record::{
    LogRecord, RecordError, body_len, committed_record, entry_record, purged_record, truncated_record,
    vote_record,
};

/// The most bytes of entries in one message to a peer, unless a single entry is larger.
const MAX_APPEND_BYTES: usize = 4 << 20;
/// With so many bytes that are not on disk, no more are taken: a disk that hangs must not fill the memory.
const MAX_QUEUED_BYTES: u64 = 64 << 20;
/// How often a waiting append checks for room.
const LOOK: Duration = Duration::from_millis(10);

/// The log of a node. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    wal: Arc<Wal>,
    inner: Arc<Mutex<LogContents>>,
}

/// What a log says, all its records taken together.
#[derive(Default)]
pub(crate) struct LogContents {
    /// Consecutive entries, each with the sequence of its record.
    pub(crate) entries: VecDeque<(u64, Entry)>,
    pub(crate) purged: Option<LogId>,
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<LogId>,
    /// The newest snapshot, and the sequence of the first record that is of later entries.
    snapshot: Option<(LogId, u64)>,
    /// About how many bytes of later entries the log held then, and how many it had written in all.
    later: u64,
    written: u64,
}

/// Why the log of a node could not be opened.
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

impl LogStore {
    /// Opens the log in `dir`, made if it is not there.
    pub(crate) fn open(dir: &Path, options: ringfence_wal::Options) -> Result<Self, LogError> {
        let (wal, records) = Wal::open(dir, options)?;
        let mut inner = LogContents::of(records)?;
        inner.later = inner.entries.iter().map(|(_, entry)| body_len(entry) as u64).sum();
        Ok(Self { wal: Arc::new(wal), inner: Arc::new(Mutex::new(inner)) })
    }

    /// Whether nothing was ever written: no vote, no entry.
    pub(crate) fn is_pristine(&self) -> bool {
        let inner = self.lock();
        inner.vote.is_none() && inner.entries.is_empty() && inner.purged.is_none()
    }

    fn lock(&self) -> MutexGuard<'_, LogContents> {
        self.inner.lock().expect("no panic while the log is locked")
    }

    /// The last entry that only a snapshot covers.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.lock().purged
    }

    /// About how many bytes the log has grown by since the newest snapshot.
    pub(crate) fn since_snapshot(&self) -> u64 {
        let inner = self.lock();
        inner.later + self.wal.stats().bytes - inner.written
    }

    /// How long the flush takes that is under way; zero where none is.
    pub(crate) fn flushing(&self) -> Duration {
        self.wal.stats().flushing
    }

    /// Whether so much waits for the disk that no more is to be added. It is for those who bring entries to ask, before Raft
    /// has them: `append` must not wait. All of Raft would stand still with it, and what it is sent meanwhile would
    /// pile up before it.
    pub(crate) fn is_full(&self) -> bool {
        self.wal.queued_bytes() >= MAX_QUEUED_BYTES
    }

    /// Returns when the log is not full.
    pub(crate) async fn room(&self) {
        while self.is_full() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// From now on the flusher stands still, until what is returned is dropped.
    #[cfg(test)]
    pub(crate) fn hang(&self) -> std::sync::mpsc::Sender<()> {
        let (go_on, end) = std::sync::mpsc::channel();
        let (begun, begins) = std::sync::mpsc::channel();
        let hang = move |_| {
            begun.send(()).expect("it is waited for");
            let _ = end.recv();
        };
        let record = committed_record(&self.lock().committed.expect("something is committed"));
        self.wal.append([record], Some(Box::new(hang)));
        begins.recv().expect("the flusher runs");
        go_on
    }

    /// Queues as much as there is room for.
    #[cfg(test)]
    pub(crate) fn fill(&self) {
        let mut record = committed_record(&self.lock().committed.expect("something is committed"));
        let mut padded = record.payload.to_vec();
        padded.resize(8 << 20, 0);
        record.payload = padded.into();
        while !self.is_full() {
            self.wal.append([record.clone()], Some(Box::new(drop)));
        }
    }

    /// Goes on from the state of a snapshot that was found at the start: of the entries that it covers about the last
    /// `tail_bytes` stay in memory. The log on disk stays as it is.
    pub(crate) fn start_from(&self, snapshot: LogId, tail_bytes: u64) {
        let mut inner = self.lock();
        self.take_snapshot(&mut inner, snapshot);
        if let Some(id) = inner.before_tail(snapshot, tail_bytes) {
            inner.purge(id);
        }
    }

    /// Takes note of a new snapshot: from the disk goes what the one before covers, for that one is the oldest that is
    /// kept now. Gives the last entry that need not stay in memory, if about `tail_bytes` of those that the snapshot
    /// covers shall stay.
    pub(crate) fn snapshot_taken(&self, snapshot: LogId, tail_bytes: u64) -> Option<LogId> {
        let mut inner = self.lock();
        if let Some((older, sequence)) = self.take_snapshot(&mut inner, snapshot) {
            self.release(&inner, &older, sequence);
        }
        inner.before_tail(snapshot, tail_bytes)
    }

    /// Notes that `snapshot` is the newest, and gives the one before.
    fn take_snapshot(&self, inner: &mut LogContents, snapshot: LogId) -> Option<(LogId, u64)> {
        let later = || inner.range(snapshot.index() + 1..);
        let later_bytes = later().map(|entry| body_len(entry) as u64).sum();
        let first = inner.entries.len() - later().count();
        let next = self.wal.append([], None) + 1;
        let sequence = inner.entries.get(first).map_or(next, |(sequence, _)| *sequence);
        inner.later = later_bytes;
        inner.written = self.wal.stats().bytes;
        inner.snapshot.replace((snapshot, sequence))
    }

    /// Lets go of the records before `sequence`, whose entries end at `last` and are all in a snapshot.
    fn release(&self, inner: &LogContents, last: &LogId, sequence: u64) {
        let mut restated = vec![purged_record(last)];
        restated.extend(inner.vote.as_ref().map(vote_record));
        restated.extend(inner.committed.as_ref().map(committed_record));
        let count = restated.len() as u64;
        let first_restated = self.wal.append(restated, None) + 1 - count;
        self.wal.forget(sequence.min(first_restated));
    }

    /// Waits until everything queued so far is on disk.
    pub(crate) async fn barrier(&self) -> io::Result<()> {
        self.write(Vec::new()).await
    }

    /// Queues `records` and waits until they, and all before them, are on disk.
    async fn write(&self, records: Vec<Record>) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.wal.append(records, Some(Box::new(move |result| drop(done.send(result)))));
        written.await.unwrap_or_else(|_| Err(io::Error::other("the log was closed")))
    }
}

impl LogContents {
    /// Of the log in `dir`, which nobody writes to; nothing is changed.
    pub(crate) fn read(dir: &Path) -> Result<Self, LogError> {
        Self::of(ringfence_wal::read(&ringfence_wal::disk::System, dir)?)
    }

    fn of(records: Vec<(u64, Record)>) -> Result<Self, LogError> {
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
            // Segments are forgotten whole: entries purged long ago may still stand in the oldest.
            LogRecord::Entry(entry)
                if self.purged.is_some_and(|purged| entry.log_id.index() <= purged.index()) => {}
            LogRecord::Entry(entry) => {
                let found = entry.log_id.index();
                let expected = self.next_index();
                // Where no entry stands yet, any may be the first: the oldest segment left may begin anywhere before the
                // purge that it was cut for, and may itself hold only the purge of an earlier cut. `check_front` judges
                // once every record is read.
                if !self.entries.is_empty() && found != expected {
                    return Err(LogError::Gap { sequence, expected, found });
                }
                self.entries.push_back((sequence, entry));
            }
        }
        Ok(())
    }

    /// What stands before the first entry must have been purged.
    fn check_front(&self) -> Result<(), LogError> {
        let expected = self.purged.map_or(0, |id| id.index() + 1);
        match self.entries.front() {
            Some((sequence, entry)) if entry.log_id.index() > expected => {
                Err(LogError::Gap { sequence: *sequence, expected, found: entry.log_id.index() })
            }
            _ => Ok(()),
        }
    }

    /// The last entry before about the last `tail_bytes` of those that `snapshot` covers; `None` if they are not as many.
    fn before_tail(&self, snapshot: LogId, tail_bytes: u64) -> Option<LogId> {
        let first = self.entries.front()?.1.log_id.index();
        let covered = usize::try_from((snapshot.index() + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let mut covered = self.entries.range(..covered.min(self.entries.len())).rev();
        covered.find_map(|(_, entry)| {
            bytes += body_len(entry) as u64;
            (bytes > tail_bytes).then_some(entry.log_id)
        })
    }

    /// An entry has to follow the one before it: on disk, a gap or a second entry of the same index makes a log that
    /// does not open again. The first entry of a new log is not checked: openraft's suite begins at 1.
    fn check_append(&self, entries: &[Entry]) -> io::Result<()> {
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

    fn next_index(&self) -> u64 {
        self.last().map_or(0, |id| id.index() + 1)
    }

    fn last(&self) -> Option<LogId> {
        self.entries.back().map(|(_, entry)| entry.log_id).or(self.purged)
    }

    fn truncate_after(&mut self, last: Option<u64>) {
        while self
            .entries
            .back()
            .is_some_and(|(_, entry)| last.is_none_or(|last| entry.log_id.index() > last))
        {
            self.entries.pop_back();
        }
    }

    fn purge(&mut self, id: LogId) {
        while self.entries.front().is_some_and(|(_, entry)| entry.log_id.index() <= id.index()) {
            self.entries.pop_front();
        }
        self.purged = self.purged.max(Some(id));
    }

    /// The entries with an index in `range`.
    fn range(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = &Entry> {
        let first = self.entries.front().map_or(0, |(_, entry)| entry.log_id.index());
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
        let skip = start.saturating_sub(first);
        let take = end.saturating_sub(start.max(first));
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let take = usize::try_from(take).unwrap_or(usize::MAX);
        self.entries.range(skip.min(self.entries.len())..).take(take).map(|(_, entry)| entry)
    }
}

/// Entries stay in memory until well after the next snapshot.
fn packed(mut entry: Entry) -> Entry {
    if let EntryPayload::Normal(batch) = &mut entry.payload {
        *batch = batch.packed();
    }
    entry
}

impl RaftLogReader<Consensus> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        Ok(self.lock().range(range).cloned().collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.lock().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let mut bytes = 0;
        let within = |entry: &&Entry| {
            let first = bytes == 0;
            bytes += 32 + body_len(entry);
            first || bytes <= MAX_APPEND_BYTES
        };
        Ok(self.lock().range(start..end).take_while(within).cloned().collect())
    }
}

impl RaftLogStorage<Consensus> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Consensus>, io::Error> {
        let inner = self.lock();
        Ok(LogState { last_purged_log_id: inner.purged, last_log_id: inner.last() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.lock().vote = Some(*vote);
        if is(Mutant::ForgetsVotes) {
            return Ok(());
        }
        self.write(vec![vote_record(vote)]).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.lock().committed = committed;
        if let Some(id) = committed {
            self.wal.append([committed_record(&id)], None);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        // One beyond the end is of no use. By index: what the log ends with may be uncommitted, and of a later term.
        let inner = self.lock();
        Ok(inner.committed.filter(|id| inner.next_index() > id.index()))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Consensus>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().map(packed).collect();
        let records: Vec<Record> = entries.iter().map(entry_record).collect();
        // One lock over both: memory and log must agree on the order.
        let mut inner = self.lock();
        inner.check_append(&entries)?;
        let last = if is(Mutant::AcknowledgesBeforeFlush) {
            let last = self.wal.append(records, None);
            callback.io_completed(Ok(()));
            last
        } else {
            self.wal.append(records, Some(Box::new(move |result| callback.io_completed(result))))
        };
        let first = last + 1 - entries.len() as u64;
        inner.entries.extend((first..).zip(entries));
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let last = last_log_id.map(|id| id.index());
        {
            let mut inner = self.lock();
            inner.truncate_after(last);
            self.wal.append([truncated_record(last)], None);
        }
        Ok(())
    }

    /// From memory; what goes from the disk, and when, is told by the snapshots ([`Self::snapshot_taken`]). But after a
    /// snapshot beyond its end the log goes on there, and has to say so.
    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let mut inner = self.lock();
        // By index: what the log ends with may be uncommitted, and of a later term than the snapshot.
        let is_beyond = inner.next_index() <= log_id.index();
        inner.purge(log_id);
        if is_beyond {
            let next = self.wal.append([], None) + 1;
            self.release(&inner, &log_id, next);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wal::Options;
    use tempfile::TempDir;

    use super::*;
    use crate::consensus::log_id;

    fn blank(term: u64, index: u64) -> Entry {
        Entry { log_id: log_id(term, index), payload: EntryPayload::Blank }
    }

    /// Some tens of entries fill a segment.
    fn open(path: &Path) -> Result<LogStore, LogError> {
        LogStore::open(path, Options { segment_bytes: 8 << 10, step_bytes: 4 << 10, ..Options::default() })
    }

    /// Each in a flush of its own.
    async fn put(log: &mut LogStore, indexes: std::ops::Range<u64>) {
        put_of_term(log, 1, indexes).await;
    }

    async fn put_of_term(log: &mut LogStore, term: u64, indexes: std::ops::Range<u64>) {
        for index in indexes {
            log.append([blank(term, index)], IOFlushed::noop()).await.unwrap();
            log.barrier().await.unwrap();
        }
    }

    /// A segment that began with the records of one cut, and was the first to survive the next cut, once made the log
    /// look as if entries were missing.
    #[tokio::test]
    async fn a_log_that_was_cut_behind_a_snapshot_of_all_there_was_opens_again() {
        // At one of these, a segment begins just there.
        for head in 10..60 {
            let dir = TempDir::new().unwrap();
            let mut log = open(dir.path()).unwrap();
            put(&mut log, 0..10).await;
            log.snapshot_taken(log_id(1, 5), 0);
            put(&mut log, 10..head + 1).await;
            log.snapshot_taken(log_id(1, head), 0);
            log.barrier().await.unwrap();
            put(&mut log, head + 1..head + 41).await;
            log.snapshot_taken(log_id(1, head + 31), 0);
            put(&mut log, head + 41..head + 44).await;
            let before = log.get_log_state().await.unwrap().last_log_id;
            drop(log);
            let mut log = open(dir.path()).unwrap_or_else(|error| panic!("all up to {head}: {error}"));
            assert_eq!(log.get_log_state().await.unwrap().last_log_id, before);
            assert_eq!(log.purged(), Some(log_id(1, head)));
        }
    }

    /// The entries of a leader that committed nothing, and a snapshot of what others committed before and after its term.
    #[tokio::test]
    async fn a_snapshot_beyond_the_end_of_a_log_of_a_later_term_leaves_no_gap() {
        let dir = TempDir::new().unwrap();
        let mut log = open(dir.path()).unwrap();
        put_of_term(&mut log, 5, 0..51).await;
        log.save_committed(Some(log_id(4, 100))).await.unwrap();
        assert_eq!(log.read_committed().await.unwrap(), None, "its entries are not there");
        log.purge(log_id(4, 100)).await.unwrap();
        assert_eq!(log.read_committed().await.unwrap(), Some(log_id(4, 100)));
        put_of_term(&mut log, 7, 101..102).await;
        drop(log);
        let mut log = open(dir.path()).unwrap();
        let state = log.get_log_state().await.unwrap();
        assert_eq!(state.last_log_id, Some(log_id(7, 101)));
        assert_eq!(state.last_purged_log_id, Some(log_id(4, 100)));
    }

    #[test]
    fn entries_that_are_missing_are_noticed_wherever_they_were() {
        let purged = |index| LogRecord::Purged(log_id(1, index));
        let entry = |index| LogRecord::Entry(blank(1, index));
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

    /// What was appended with a gap or twice once made a log that did not open again.
    #[tokio::test]
    async fn entries_are_appended_without_a_gap_or_an_overlap() {
        let dir = TempDir::new().unwrap();
        let mut log = open(dir.path()).unwrap();
        put(&mut log, 0..3).await;
        let refused = [vec![4], vec![2], vec![3, 5], vec![3, 3]];
        for indexes in refused {
            let entries: Vec<Entry> = indexes.iter().map(|index| blank(2, *index)).collect();
            let error = log.append(entries, IOFlushed::noop()).await.unwrap_err();
            assert!(error.to_string().contains("cannot be appended to the log"), "{indexes:?}: {error}");
        }
        put(&mut log, 3..5).await;
        drop(log);
        let mut log = open(dir.path()).unwrap();
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(log_id(1, 4)));
    }
}
