//! openraft's log over the write-ahead log.
//!
//! Entries are served from memory; the write-ahead log is read only at start. What openraft purges goes from memory; on
//! disk the log reaches back to the older of the two snapshots that are kept. openraft does not purge what a stream of
//! appends has yet to deliver, however slowly that goes: so a stream that is two snapshots behind ends, and its node is
//! sent the snapshot ([`LogStore::needed_from`]). All writes go in one order: an append
//! returns as soon as its record is queued, and the flusher completes the callback when it is on disk. Commit positions
//! ride along with the next flush, because nobody waits for them: they only let a restarted node show what it had applied
//! before it finds a leader.
//!
//! Appending never waits for the disk, but what is queued for it is bounded: see [`LogStore::is_full`] and
//! [`crate::fitness`].

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader};
use ringfence_lease::UnsupportedRules;
use ringfence_wal::{Options, Record, Wal};
use ringfence_wire::RulesRange;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::consensus::{Consensus, Entry, LogId, Vote};
use crate::propose::batch::Batch;
use crate::storage::identity::DataDir;
use crate::storage::log_contents::{LogContents, LogError};
use crate::storage::record::{
    body_len, committed_record, entry_record, purged_record, truncated_record, vote_record,
};

/// The most bytes of entries in one message to a peer, unless a single entry is larger. Several are on their way at once; an
/// answer must not take so long on a slow link that the leader seems to serve nobody.
const MAX_APPEND_BYTES: usize = 1 << 20;
/// The most bytes that wait for the disk. Beyond that the log is full, so that a hung disk does not fill the memory.
const MAX_QUEUED_BYTES: u64 = 64 << 20;
/// A disk hangs if a flush takes longer. One of a second is slow.
pub(crate) const HANGS: Duration = Duration::from_secs(2);
/// How often a waiting append checks for room.
const ROOM_CHECK: Duration = Duration::from_millis(10);

/// The log of a node. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    wal: Arc<Wal>,
    inner: Arc<Mutex<Inner>>,
    needed_from: watch::Sender<u64>,
}

struct Inner {
    contents: LogContents,
    /// The last entry that is of no use in memory since the newest snapshot.
    useless: Option<LogId>,
    /// The newest snapshot, and the sequence of the first record of a later entry.
    snapshot: Option<(LogId, u64)>,
    /// About how many bytes of later entries the log held then, and how many it had written in all.
    later: u64,
    written: u64,
    voted: Option<(Instant, Duration)>,
}

impl Inner {
    /// The last entry that is known to be committed. openraft does not say that of what an installed snapshot covers.
    fn committed(&self) -> Option<LogId> {
        let covered = self.snapshot.map(|(last, _)| last);
        self.contents.committed.max(self.contents.purged).max(covered)
    }
}

impl LogStore {
    /// Opens the log in a data directory, created if it is missing.
    pub(crate) fn open(dir: &DataDir, options: Options) -> Result<Self, LogError> {
        let (wal, records) = Wal::open_on(Arc::clone(&dir.disk), &dir.log(), options)?;
        let contents = LogContents::of(records)?;
        let later = contents.entries.iter().map(|(_, entry)| body_len(entry) as u64).sum();
        let inner = Inner { contents, useless: None, snapshot: None, later, written: 0, voted: None };
        Ok(Self {
            wal: Arc::new(wal),
            inner: Arc::new(Mutex::new(inner)),
            needed_from: watch::Sender::new(0),
        })
    }

    /// Whether nothing was ever written: no vote, no entry.
    pub(crate) fn is_pristine(&self) -> bool {
        let LogContents { entries, purged, vote, .. } = &self.lock().contents;
        vote.is_none() && entries.is_empty() && purged.is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the log is locked")
    }

    /// The last entry that is only in a snapshot.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.lock().contents.purged
    }

    /// About how many bytes the log has grown by since the newest snapshot.
    pub(crate) fn since_snapshot(&self) -> u64 {
        let inner = self.lock();
        inner.later + self.wal.stats().bytes - inner.written
    }

    /// How much memory the entries take, in bytes.
    pub(crate) fn bytes_in_memory(&self) -> u64 {
        self.lock().contents.bytes()
    }

    /// The first index that may stay in memory for a node that does not have it yet: what the last snapshot but one made
    /// useless was kept for a whole snapshot more.
    pub(crate) fn needed_from(&self) -> watch::Receiver<u64> {
        self.needed_from.subscribe()
    }

    /// Age of the flush under way; zero if there is none.
    pub(crate) fn flushing(&self) -> Duration {
        self.wal.stats().flushing
    }

    /// When this process began to write its last vote, and how long that took.
    pub(crate) fn voted(&self) -> Option<(Instant, Duration)> {
        self.lock().voted
    }

    /// The error that closed the log, if one did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.wal.failure()
    }

    /// Whether so much waits for the disk that no more may be added. Callers ask before they hand entries to Raft, because
    /// `append` must not wait: all of Raft would stand still with it, and incoming messages would pile up before it.
    pub(crate) fn is_full(&self) -> bool {
        self.wal.queued_bytes() >= MAX_QUEUED_BYTES
    }

    /// Returns when the log is not full.
    pub(crate) async fn room(&self) {
        while self.is_full() {
            tokio::time::sleep(ROOM_CHECK).await;
        }
    }

    /// An error if the rules of an entry that this node has to apply, after its newest snapshot, are not `supported`.
    pub(crate) fn check_rules(&self, supported: RulesRange) -> Result<(), UnsupportedRules> {
        let inner = self.lock();
        let first = inner.snapshot.as_ref().map_or(0, |(id, _)| id.index() + 1);
        let Some(committed) = inner.contents.committed.map(|id| id.index()) else { return Ok(()) };
        for (_, entry) in inner.contents.range(first..committed.saturating_add(1)) {
            if let EntryPayload::Normal(batch) = &entry.payload
                && let Some(rules) = Batch::rules_of(batch)
            {
                UnsupportedRules::check(rules, supported)?;
            }
        }
        Ok(())
    }

    /// Continues from a snapshot that was found at start: about the last `tail_bytes` of the entries it covers stay in
    /// memory. On disk the log stays as it is, if it reaches the snapshot. It does not if the node was killed when it had
    /// published a snapshot from its leader, and had not yet cut its log: what that has is void, whatever its term.
    pub(crate) fn start_from(&self, snapshot: LogId, tail_bytes: u64) {
        let mut inner = self.lock();
        if inner.contents.next_index() <= snapshot.index() {
            inner.contents.purge(snapshot);
            self.release(&inner.contents, &snapshot, self.next_sequence());
        }
        self.take_snapshot(&mut inner, snapshot);
        inner.useless = inner.contents.before_tail(snapshot, tail_bytes);
        if let Some(id) = inner.useless {
            inner.contents.purge(id);
        }
    }

    /// Notes a new snapshot, and truncates the log on disk behind the one before, unless `older_is_kept`: one older than that.
    /// Returns the last entry that need not stay in memory, if about `tail_bytes` of those that the snapshot covers shall
    /// stay.
    pub(crate) fn snapshot_taken(
        &self,
        snapshot: LogId,
        tail_bytes: u64,
        older_is_kept: bool,
    ) -> Option<LogId> {
        let mut inner = self.lock();
        if let Some((before, sequence)) = self.take_snapshot(&mut inner, snapshot)
            && !older_is_kept
        {
            self.release(&inner.contents, &before, sequence);
        }
        let useless = inner.contents.before_tail(snapshot, tail_bytes);
        if let Some(before) = std::mem::replace(&mut inner.useless, useless) {
            self.needed_from.send_replace(before.index() + 1);
        }
        useless
    }

    /// Notes that `snapshot` is the newest, and returns the one before.
    fn take_snapshot(&self, inner: &mut Inner, snapshot: LogId) -> Option<(LogId, u64)> {
        let mut later = inner.contents.range(snapshot.index() + 1..).peekable();
        let first_later = later.peek().map(|(sequence, _)| *sequence);
        inner.later = later.map(|(_, entry)| body_len(entry) as u64).sum();
        inner.written = self.wal.stats().bytes;
        let sequence = first_later.unwrap_or_else(|| self.next_sequence());
        inner.snapshot.replace((snapshot, sequence))
    }

    /// The sequence of the next record.
    fn next_sequence(&self) -> u64 {
        self.wal.append([], None) + 1
    }

    /// Gives up the records before `sequence`, whose entries end at `last` and are all in a snapshot.
    fn release(&self, contents: &LogContents, last: &LogId, sequence: u64) {
        let mut restated = vec![purged_record(last)];
        restated.extend(contents.vote.as_ref().map(vote_record));
        restated.extend(contents.committed.as_ref().map(committed_record));
        let first_restated = self.next_sequence();
        self.wal.append(restated, None);
        self.wal.forget(sequence.min(first_restated));
    }

    /// Waits until everything queued so far is on disk.
    pub(crate) async fn barrier(&self) -> io::Result<()> {
        self.write(Vec::new()).await
    }

    /// A committed entry of this log that a log with `theirs` lacks, as far as one can tell. It is the log of the leader of
    /// `term`; one that this node has left behind may lack some.
    pub(crate) fn contradicted(&self, term: u64, mut theirs: impl Iterator<Item = LogId>) -> Option<LogId> {
        let inner = self.lock();
        let own_term = inner.contents.vote.map_or(0, |vote| vote.leader_id.term);
        let committed = inner.committed().filter(|_| term >= own_term)?;
        theirs.find_map(|theirs| {
            let place = theirs.index().cmp(&committed.index());
            let own = |index| inner.contents.range(index..=index).next().map(|(_, own)| own.log_id);
            let own = if place.is_le() { own(theirs.index()) } else { None };
            // The terms of a log only go up.
            own.filter(|own| *own != theirs).or((theirs.cmp(&committed) != place).then_some(committed))
        })
    }

    /// Queues `records` and waits until they, and all before them, are on disk.
    async fn write(&self, records: Vec<Record>) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.wal.append(records, Some(Box::new(move |result| drop(done.send(result)))));
        written.await.unwrap_or_else(|_| Err(io::Error::other("the log was closed")))
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
        Ok(self.lock().contents.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.lock().contents.vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let mut bytes = 0;
        let within = |entry: &&Entry| {
            let first = bytes == 0;
            bytes += 32 + body_len(entry);
            first || bytes <= MAX_APPEND_BYTES
        };
        let inner = self.lock();
        let entries = inner.contents.range(start..end).map(|(_, entry)| entry);
        Ok(entries.take_while(within).cloned().collect())
    }
}

impl RaftLogStorage<Consensus> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Consensus>, io::Error> {
        let contents = &self.lock().contents;
        Ok(LogState { last_purged_log_id: contents.purged, last_log_id: contents.last() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let begun = Instant::now();
        self.lock().contents.vote = Some(*vote);
        let written = self.write(vec![vote_record(vote)]).await;
        self.lock().voted = Some((begun, begun.elapsed()));
        written
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.lock().contents.committed = committed;
        if let Some(id) = committed {
            self.wal.append([committed_record(&id)], None);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        // One beyond the end is of no use. By index: the log may end with uncommitted entries of a later term.
        let contents = &self.lock().contents;
        Ok(contents.committed.filter(|id| contents.next_index() > id.index()))
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
        inner.contents.check_append(&entries)?;
        let last = self.wal.append(records, Some(Box::new(move |result| callback.io_completed(result))));
        let first = last + 1 - entries.len() as u64;
        for (sequence, entry) in (first..).zip(entries) {
            inner.contents.push(sequence, entry);
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let last = last_log_id.map(|id| id.index());
        let mut inner = self.lock();
        if let Some(committed) = inner.committed().map(|id| id.index()).filter(|id| Some(*id) > last) {
            return Err(io::Error::other(format!(
                "the leader has this node delete the log from entry {} on, and the log up to entry {committed} was committed: a \
                 majority of the nodes has lost what it acknowledged. See `Copies of a data directory` in docs/operations.md",
                last.map_or(0, |last| last + 1)
            )));
        }
        inner.contents.truncate_after(last);
        self.wal.append([truncated_record(last)], None);
        Ok(())
    }

    /// Purges from memory; [`Self::snapshot_taken`] decides what goes from the disk. But after a snapshot beyond its end
    /// the log continues there, and has to say so.
    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let mut inner = self.lock();
        // By index: the log may end with uncommitted entries of a later term than the snapshot.
        let is_beyond = inner.contents.next_index() <= log_id.index();
        inner.contents.purge(log_id);
        if is_beyond {
            self.release(&inner.contents, &log_id, self.next_sequence());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
