//! Power cuts at every disk operation of a node's storage: identity, log and snapshots together.
//!
//! Everything runs on a disk in memory and on this thread, the flusher step by step.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream;
use openraft::storage::{IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::vote::RaftLeaderId;
use openraft::{EntryPayload, RaftLogReader, RaftSnapshotBuilder, StorageHelper};
use ringfence_disk::{Fault, MemoryDisk, Operation};
use ringfence_lease::{LeaseTable, SUPPORTED};
use ringfence_wal::Options;

use crate::applied::state_machine::StateMachine;
use crate::applied::table::Applied;
use crate::consensus::{Entry, LogId, SnapshotMeta, StoredMembership, Vote, log_id};
use crate::random::Random;
use crate::storage::identity::{DataDir, DirError};
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::store::Storage as _;
use crate::storage::snapshots::{DIR as DIR_OF_SNAPSHOTS, Generations, indexes, name_of};

#[path = "../../tests/nodes/support/snapshots.rs"]
mod snapshots;

use snapshots::Stored;

const DIR: &str = "/data";
/// How a power cut ends: with nothing that was not synced, with all of it, or with parts.
const OUTCOMES: std::ops::Range<u64> = 0..4;

/// The votes and entries that a node was given; a purge changes nothing here.
#[derive(Clone, Default)]
struct Model {
    vote: u64,
    /// The term of the entry at each index.
    terms: Vec<u64>,
}

/// A running node's storage.
struct Node {
    storage: MemoryDisk,
    log: LogStore,
    machine: StateMachine,
    generations: Arc<Generations>,
}

impl Node {
    fn start(storage: &MemoryDisk) -> Result<Self, String> {
        let dir = DataDir::open_on(Arc::new(Stored(storage.clone())), Path::new(DIR), 1, &Random::seeded(7));
        let (dir, identity) = dir.map_err(|error| match error {
            DirError::Io { .. } => error.to_string(),
            _ => panic!("{error}"),
        })?;
        assert_eq!((identity.node_id, identity.incarnation), (1, Random::seeded(7).id()));
        let options = Options { segment_bytes: 8 << 10, step_bytes: 4 << 10, ..Options::default() };
        let log = LogStore::open(&dir, options).map_err(|error| error.to_string())?;
        let generations =
            Arc::new(Generations::open(Arc::new(dir), SUPPORTED).map_err(|error| error.to_string())?);
        let applied = Applied::new();
        let loaded = drive(storage, generations.load(log.purged())).map_err(|error| error.to_string())?;
        if let Some((table, meta)) = loaded {
            log.start_from(meta.last_log_id.unwrap(), 0);
            applied.replace(table, &meta);
        }
        let machine = StateMachine::new(applied, log.clone(), Arc::clone(&generations), SUPPORTED);
        Ok(Self { storage: storage.clone(), log, machine, generations })
    }
}

/// Whether a task was woken since it was polled.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Polls `work`, and flushes the log whenever it waits. It does not wait if it only lets others go on.
fn drive<T>(storage: &MemoryDisk, work: impl Future<Output = T>) -> T {
    let (mut work, woken) = (Box::pin(work), Arc::new(Woken::default()));
    let waker = Waker::from(Arc::clone(&woken));
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        assert!(woken.0.swap(false, Relaxed) || storage.flush(), "it waits, though nothing is to be flushed");
    }
}

/// A node's life, and what it knows to be on disk.
#[derive(Default)]
struct Life {
    /// The state after each write, in the order of the writes.
    states: Vec<Model>,
    /// How many writes were acknowledged.
    acknowledged: usize,
    /// The last entry of the newest snapshot that was published.
    snapshot: Option<u64>,
}

impl Life {
    fn state(&self) -> Model {
        self.states.last().cloned().unwrap_or_default()
    }

    fn vote(&mut self, node: &mut Node, term: u64) -> io::Result<()> {
        self.states.push(Model { vote: term, ..self.state() });
        let vote = Vote { leader_id: RaftLeaderId::new(term, 1), committed: true };
        drive(&node.storage, node.log.save_vote(&vote))?;
        self.acknowledged = self.states.len();
        Ok(())
    }

    fn append(&mut self, node: &mut Node, count: usize) -> io::Result<()> {
        let mut state = self.state();
        let first = state.terms.len();
        state.terms.resize(first + count, state.vote);
        let entries = (first..first + count)
            .map(|index| Entry { log_id: log_id(state.vote, index as u64), payload: EntryPayload::Blank });
        let entries: Vec<Entry> = entries.collect();
        // A crash may leave some of these entries.
        for left in first + 1..=first + count {
            self.states.push(Model { terms: state.terms[..left].to_vec(), ..state });
        }
        drive(&node.storage, node.log.append(entries, IOFlushed::noop()))
    }

    fn truncate(&mut self, node: &mut Node, length: usize) -> io::Result<()> {
        let mut state = self.state();
        state.terms.truncate(length);
        let last = log_id(state.terms[length - 1], length as u64 - 1);
        self.states.push(state);
        drive(&node.storage, node.log.truncate_after(Some(last)))
    }

    fn barrier(&mut self, node: &Node) -> io::Result<()> {
        drive(&node.storage, node.log.barrier())?;
        self.acknowledged = self.states.len();
        Ok(())
    }

    /// Applies the entries up to there, takes a snapshot and truncates the log behind the one before.
    fn snapshot(&mut self, node: &mut Node, length: usize) -> io::Result<()> {
        let state = self.state();
        let first = node.machine_applied();
        let entries = (first..length).map(|index| {
            let log_id = log_id(state.terms[index], index as u64);
            Ok((Entry { log_id, payload: EntryPayload::Blank }, None))
        });
        drive(&node.storage, node.machine.apply(stream::iter(entries)))?;
        let mut builder = drive(&node.storage, node.machine.get_snapshot_builder());
        let built = drive(&node.storage, builder.build_snapshot())?;
        self.acknowledged = self.states.len();
        self.snapshot = Some(length as u64 - 1);
        let (taken, older) = (built.meta.last_log_id.unwrap(), node.generations.keeps_older());
        if let Some(purged) = node.log.snapshot_taken(taken, 0, older) {
            drive(&node.storage, node.log.purge(purged))?;
        }
        Ok(())
    }

    /// Installs a snapshot that the leader sent, up to there, and goes on behind it as openraft does.
    fn install(&mut self, node: &mut Node, length: usize) -> io::Result<()> {
        let mut state = self.state();
        state.terms.resize(length, state.vote);
        let last = log_id(state.vote, length as u64 - 1);
        let meta = SnapshotMeta { last_log_id: Some(last), last_membership: StoredMembership::default() };
        let received = node.generations.write(meta.clone(), LeaseTable::new().freeze());
        let received = Arc::new(drive(&node.storage, received)?);
        self.states.push(state);
        drive(&node.storage, node.machine.install_snapshot(&meta, received))?;
        self.acknowledged = self.states.len();
        self.snapshot = last.index().into();
        drive(&node.storage, node.log.purge(last))
    }

    fn run(&mut self, storage: &MemoryDisk) -> Result<(), String> {
        self.play(storage).map_err(|error| error.to_string())
    }

    fn play(&mut self, storage: &MemoryDisk) -> io::Result<()> {
        let mut node = Node::start(storage).map_err(io::Error::other)?;
        self.vote(&mut node, 1)?;
        for _ in 0..6 {
            self.append(&mut node, 3)?;
            self.barrier(&node)?;
        }
        self.snapshot(&mut node, 10)?;
        self.vote(&mut node, 3)?;
        // Entries of the old leader give way to those of the new one.
        self.truncate(&mut node, 15)?;
        self.append(&mut node, 8)?;
        self.snapshot(&mut node, 20)?;
        drop(node);
        let mut node = Node::start(storage).map_err(io::Error::other)?;
        for _ in 0..20 {
            self.append(&mut node, 1)?;
            self.barrier(&node)?;
        }
        self.snapshot(&mut node, 30)?;
        self.append(&mut node, 1)?;
        self.barrier(&node)?;
        self.snapshot(&mut node, 40)?;
        self.vote(&mut node, 4)?;
        self.truncate(&mut node, 42)?;
        self.append(&mut node, 20)?;
        self.barrier(&node)?;
        // A later leader has other entries, and sends snapshots: the first ends within this log, the second beyond its end.
        self.vote(&mut node, 5)?;
        self.truncate(&mut node, 42)?;
        self.install(&mut node, 50)?;
        self.append(&mut node, 2)?;
        self.install(&mut node, 70)?;
        self.append(&mut node, 1)?;
        self.barrier(&node)?;
        self.snapshot(&mut node, 71)
    }

    /// Starts a node on what a power cut left: its state must be one that it had since the last acknowledgement.
    fn check(&self, storage: &MemoryDisk) -> Result<(), String> {
        let mut node = Node::start(storage)?;
        let snapshot = node.generations.newest().and_then(|newest| newest.index());
        if snapshot < self.snapshot {
            return Err(format!("snapshot {snapshot:?} is the newest, {:?} was published", self.snapshot));
        }
        let vote = drive(storage, node.log.read_vote()).unwrap().map_or(0, |vote| vote.leader_id.term);
        let entries = drive(storage, node.log.try_get_log_entries(..)).unwrap();
        let logged = drive(storage, node.log.get_log_state()).unwrap().last_log_id;
        // openraft goes on behind a snapshot beyond the end of the log.
        let covered = node.generations.newest().and_then(|newest| newest.head().meta.last_log_id);
        let last = logged.into_iter().chain(covered).max_by_key(LogId::index);
        let is_state = |state: &&Model| {
            let is_entry = |entry: &Entry| {
                state.terms.get(entry.log_id.index() as usize)
                    == Some(&entry.log_id.committed_leader_id().term)
            };
            state.vote == vote
                && state.terms.len() as u64 == last.map_or(0, |id| id.index() + 1)
                && entries.iter().all(is_entry)
        };
        let mut states = self.states[self.acknowledged.saturating_sub(1)..].iter();
        let is_first = self.acknowledged == 0 && vote == 0 && last.is_none();
        if states.find(is_state).is_none() && !is_first {
            return Err(format!("vote {vote}, last entry {last:?} after {} writes", self.acknowledged));
        }
        // openraft starts from it, too.
        let mut helper = StorageHelper::new(&mut node.log, &mut node.machine).with_id(1);
        drive(storage, helper.get_initial_state()).map(drop).map_err(|error| error.to_string())
    }
}

impl Node {
    fn machine_applied(&mut self) -> usize {
        let (applied, _) = drive(&self.storage, self.machine.applied_state()).unwrap();
        applied.map_or(0, |id| id.index() as usize + 1)
    }
}

fn lived(faults: &[(usize, Fault)]) -> (MemoryDisk, Life, Result<(), String>) {
    let storage = MemoryDisk::default();
    faults.iter().for_each(|(at, fault)| storage.fault(*at, *fault));
    let mut life = Life::default();
    let outcome = life.run(&storage);
    (storage, life, outcome)
}

#[test]
fn a_power_cut_at_any_disk_operation_leaves_a_state_that_was_not_yet_superseded() {
    let (storage, life, outcome) = lived(&[]);
    outcome.unwrap();
    assert_eq!(life.acknowledged, life.states.len());
    let count = storage.operations().len();
    assert!(storage.operations().contains(&Operation::Remove), "no segment was deleted: nothing was tried");
    for cut in 0..=count {
        let (storage, life, _) = lived(&[(cut, Fault::Stop)]);
        for outcome in OUTCOMES {
            let left = storage.after_power_cut(outcome);
            life.check(&left).unwrap_or_else(|error| panic!("operation {cut}, outcome {outcome}: {error}"));
        }
    }
}

/// The test above must be able to fail.
#[test]
fn a_sync_that_is_left_out_is_noticed() {
    let operations = lived(&[]).0.operations();
    let syncs = (0..operations.len()).filter(|at| operations[*at] == Operation::SyncData);
    let syncs: Vec<usize> = syncs.chain([operations.len()]).collect();
    let promised = |cut| {
        let (_, life, _) = lived(&[(cut, Fault::Stop)]);
        (life.acknowledged, life.snapshot)
    };
    let is_noticed = |at, cut| {
        let (storage, life, _) = lived(&[(at, Fault::LeftOut), (cut, Fault::Stop)]);
        OUTCOMES.into_iter().any(|outcome| life.check(&storage.after_power_cut(outcome)).is_err())
    };
    for (at, next) in syncs.iter().zip(&syncs[1..]) {
        // Otherwise nothing was promised that only this sync put on disk.
        if promised(*at) != promised(*next) {
            assert!((at + 1..=*next).any(|cut| is_noticed(*at, cut)), "operation {at}");
        }
    }
}

/// The damaged one was kept as the one to fall back to, and the log cut behind it.
#[test]
fn a_node_falls_back_to_a_snapshot_that_is_not_known_to_be_damaged() {
    let storage = MemoryDisk::default();
    let (mut node, mut life) = (Node::start(&storage).unwrap(), Life::default());
    let snapshots = || Stored(storage.clone()).snapshots(&Path::new(DIR).join(DIR_OF_SNAPSHOTS)).unwrap();
    let remove = |last: u64| snapshots().remove(&name_of(last)).unwrap();
    life.vote(&mut node, 1).unwrap();
    let mut go_on = |node: &mut Node, length: usize| {
        for _ in life.state().terms.len()..length {
            life.append(node, 1).unwrap();
            life.barrier(node).unwrap();
        }
        life.snapshot(node, length).unwrap();
        // With that, the log is cut.
        life.barrier(node).unwrap();
    };
    for length in [300, 600] {
        go_on(&mut node, length);
    }
    let noted = node.generations.note_unreadable(&node.generations.newest().unwrap(), true);
    assert!(noted.unwrap().ends_with(name_of(599)));
    go_on(&mut node, 900);
    assert_eq!(indexes(&*snapshots()).unwrap(), [899, 299]);
    drop(node);
    // Now the newest cannot be read.
    remove(899);
    let mut node = Node::start(&storage).unwrap();
    assert_eq!(node.generations.newest().unwrap().index(), Some(299));
    assert_eq!(drive(&storage, node.log.get_log_state()).unwrap().last_log_id, Some(log_id(1, 899)));
    // From the next two on, the log is cut behind the first of them.
    for length in [1_200, 1_500] {
        go_on(&mut node, length);
    }
    assert_eq!(indexes(&*snapshots()).unwrap(), [1_499, 1_199]);
    drop(node);
    remove(1_499);
    remove(1_199);
    assert!(Node::start(&storage).is_err());
}
