use std::path::Path;
use std::sync::mpsc;

use openraft::vote::RaftLeaderId;
use tempfile::TempDir;

use super::*;
use crate::consensus::log_id;

fn blank(term: u64, index: u64) -> Entry {
    Entry { log_id: log_id(term, index), payload: EntryPayload::Blank }
}

impl LogStore {
    /// Hangs the flusher until the result is dropped.
    pub(crate) fn hang(&self) -> mpsc::Sender<()> {
        let (go_on, end) = mpsc::channel();
        let (begun, begins) = mpsc::channel();
        let hang = move |_| {
            begun.send(()).unwrap();
            let _ = end.recv();
        };
        self.wal.append([self.some_record()], Some(Box::new(hang)));
        begins.recv().unwrap();
        go_on
    }

    /// Closes the log by an error of which nobody is told.
    pub(crate) fn fail(&self) {
        self.wal.append([], Some(Box::new(|_| panic!("on purpose"))));
    }

    /// Queues as much as there is room for.
    pub(crate) fn fill(&self) {
        let mut record = self.some_record();
        let mut padded = record.payload.to_vec();
        padded.resize(8 << 20, 0);
        record.payload = padded.into();
        while !self.is_full() {
            self.wal.append([record.clone()], Some(Box::new(drop)));
        }
    }

    fn some_record(&self) -> Record {
        committed_record(&self.lock().contents.committed.unwrap())
    }
}

/// Some tens of entries fill a segment.
fn open(path: &Path) -> Result<LogStore, LogError> {
    let (dir, _) = DataDir::open(path, 1).unwrap();
    LogStore::open(&dir, Options { segment_bytes: 8 << 10, step_bytes: 4 << 10, ..Options::default() })
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
#[ignore = "slow"]
async fn a_log_that_was_cut_behind_a_snapshot_of_all_there_was_opens_again() {
    // At one of these, a segment begins just there.
    for head in 10..60 {
        let dir = TempDir::new().unwrap();
        let mut log = open(dir.path()).unwrap();
        put(&mut log, 0..10).await;
        log.snapshot_taken(log_id(1, 5), 0, false);
        put(&mut log, 10..head + 1).await;
        log.snapshot_taken(log_id(1, head), 0, false);
        log.barrier().await.unwrap();
        put(&mut log, head + 1..head + 41).await;
        log.snapshot_taken(log_id(1, head + 31), 0, false);
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

/// A snapshot of a leader that had lost what it acknowledged once replaced what was committed.
#[tokio::test]
async fn a_log_that_lacks_what_is_committed_is_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    put_of_term(&mut log, 2, 1..5).await;
    put_of_term(&mut log, 4, 5..9).await;
    log.save_committed(Some(log_id(4, 6))).await.unwrap();
    log.purge(log_id(2, 2)).await.unwrap();
    let lacks = |term, index| log.contradicted(9, [log_id(term, index)].into_iter());
    for (term, index) in [(2, 1), (2, 4), (4, 6), (4, 7), (5, 7), (4, 20)] {
        assert_eq!(lacks(term, index), None, "{term}.{index}");
    }
    let committed = log_id(4, 6);
    for (term, index, own) in [
        (3, 4, log_id(2, 4)),
        (5, 6, committed),
        (2, 6, committed),
        // Its own entry is purged, or is none that is committed.
        (5, 1, committed),
        (3, 7, committed),
        (3, 20, committed),
    ] {
        assert_eq!(lacks(term, index), Some(own), "{term}.{index}");
    }
    log.save_vote(&Vote { leader_id: RaftLeaderId::new(10, 1), committed: true }).await.unwrap();
    assert_eq!(log.contradicted(9, [log_id(5, 6)].into_iter()), None, "it leads no more");
}

/// openraft does not say that it is committed.
#[tokio::test]
async fn what_an_installed_snapshot_covers_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    let covered = log_id(4, 100);
    log.purge(covered).await.unwrap();
    assert_eq!(log.contradicted(9, [log_id(9, 50)].into_iter()), Some(covered));
    assert!(log.truncate_after(Some(log_id(4, 99))).await.is_err());
    drop(log);
    let log = open(dir.path()).unwrap();
    log.start_from(log_id(4, 110), 0);
    assert_eq!(log.contradicted(9, [log_id(9, 105)].into_iter()), Some(log_id(4, 110)));
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
