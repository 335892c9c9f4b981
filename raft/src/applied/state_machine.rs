//! openraft's state machine over the lease table.

use std::io;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use metrics::Histogram;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use ringfence_lease::{FrozenTable, Outcome};
use ringfence_wire::RulesRange;
use tokio::time::Instant;

use crate::applied::table::Applied;
use crate::consensus::{Consensus, EncodedBatch, LogId, Member, NodeId, SnapshotMeta, StoredMembership};
use crate::propose::batch::Batch;
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::generation::{Generation, Snapshot};
use crate::storage::snapshots::{Generations, with_descriptors};

/// openraft over this state machine.
pub(crate) type Raft = openraft::Raft<Consensus, StateMachine>;

/// Applies committed entries to the shared [`Applied`] state, and keeps snapshots of it.
pub(crate) struct StateMachine {
    applied: Applied,
    log: LogStore,
    generations: Arc<Generations>,
    /// The rules of the entries that can be applied.
    supported: RulesRange,
    /// Durations of writing snapshots.
    snapshot_seconds: Histogram,
}

impl StateMachine {
    pub(crate) fn new(
        applied: Applied,
        log: LogStore,
        generations: Arc<Generations>,
        supported: RulesRange,
    ) -> Self {
        let snapshot_seconds = metrics::histogram!("ringfence_raft_snapshot_seconds");
        Self { applied, log, generations, supported, snapshot_seconds }
    }

    /// Applies an entry and returns its outcomes; `is_own`: this node proposed it. An entry that cannot be decoded stops the
    /// node: skipping it would let replicas diverge.
    fn apply_entry(
        &self,
        payload: EntryPayload<EncodedBatch, NodeId, Member>,
        log_id: LogId,
        is_own: bool,
    ) -> io::Result<Vec<Outcome>> {
        let mut state = self.applied.lock();
        let outcomes = match payload {
            EntryPayload::Blank => Vec::new(),
            EntryPayload::Membership(membership) => {
                state.membership = StoredMembership::new(Some(log_id), membership);
                Vec::new()
            }
            EntryPayload::Normal(batch) => {
                let batch = Batch::decode(&batch, self.supported)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                state.apply(batch, is_own)
            }
        };
        state.witness.end_entry(log_id);
        state.last_applied = Some(log_id);
        Ok(outcomes)
    }
}

impl RaftStateMachine<Consensus> for StateMachine {
    type SnapshotData = Arc<Generation>;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let state = self.applied.lock();
        Ok((state.last_applied, state.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Consensus>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let outcomes = self.apply_entry(entry.payload, entry.log_id, responder.is_some())?;
            if let Some(responder) = responder {
                responder.send(outcomes);
            }
            self.applied.announce();
            // One entry is a bounded step; replaying a long log must not starve heartbeats.
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            generations: Arc::clone(&self.generations),
            log: self.log.clone(),
            applied: self.applied.clone(),
            view: Some(view(&self.applied)),
            seconds: self.snapshot_seconds.clone(),
        }
    }

    /// The snapshot makes the rest of the old log void, so a truncation that was queued before must be on disk first.
    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        data: Arc<Generation>,
    ) -> Result<(), io::Error> {
        let started = Instant::now();
        let table = with_descriptors(|| self.generations.table(&data)).await?;
        self.log.barrier().await?;
        with_descriptors(|| self.generations.publish(Arc::clone(&data), false)).await?;
        let index = meta.last_log_id.map(|id| id.index());
        tracing::info!(index, live_leases = table.live(), took = ?started.elapsed(), "snapshot installed");
        let replaced = self.applied.replace(table, meta);
        // Freeing a million leases takes a while.
        self.generations.discard(replaced);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let newest = self.generations.newest();
        Ok(newest.map(|newest| Snapshot { meta: newest.head().meta.clone(), snapshot: newest }))
    }
}

/// The state at one instant.
fn view(applied: &Applied) -> (SnapshotMeta, FrozenTable) {
    let state = applied.lock();
    let meta = SnapshotMeta { last_log_id: state.last_applied, last_membership: state.membership.clone() };
    (meta, state.table.freeze())
}

/// Writes a view of the state as a snapshot.
pub(crate) struct Builder {
    generations: Arc<Generations>,
    log: LogStore,
    applied: Applied,
    /// `None` once it is written.
    view: Option<(SnapshotMeta, FrozenTable)>,
    seconds: Histogram,
}

impl Builder {
    async fn build(
        generations: &Arc<Generations>,
        log: &LogStore,
        (meta, table): (SnapshotMeta, FrozenTable),
    ) -> io::Result<Arc<Generation>> {
        let made = Arc::new(generations.write(meta, table).await?);
        // openraft applies entries that are committed elsewhere and not on this disk yet. After a power cut now, the log
        // would end before the snapshot, or in entries that were truncated since: openraft refuses both.
        log.barrier().await?;
        generations.publish(Arc::clone(&made), true).await?;
        Ok(made)
    }
}

impl RaftSnapshotBuilder<Consensus> for Builder {
    type SnapshotData = Arc<Generation>;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let started = Instant::now();
        // A retry takes the state at that time: the old view would keep a copy of all that changes.
        let made = with_descriptors(|| {
            let view = self.view.take().unwrap_or_else(|| view(&self.applied));
            Self::build(&self.generations, &self.log, view)
        })
        .await?;
        let (bytes, took) = (made.head().bytes, started.elapsed());
        self.seconds.record(took.as_secs_f64());
        tracing::info!(index = made.index(), bytes, ?took, "snapshot taken");
        let snapshot = self.generations.newest().unwrap_or_else(|| Arc::clone(&made));
        Ok(Snapshot { meta: made.head().meta.clone(), snapshot })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use futures_util::stream;
    use openraft::StorageHelper;
    use openraft::storage::{IOFlushed, RaftLogStorage};
    use openraft::vote::RaftLeaderId;
    use ringfence_lease::SUPPORTED;
    use ringfence_wal::Options;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use tokio::sync::oneshot;

    use super::*;
    use crate::consensus::{Entry, Membership, Vote, log_id};
    use crate::storage::identity::{DataDir, DirError};

    /// Long enough for a snapshot that does not wait for the log.
    const LONG: Duration = Duration::from_secs(1);

    fn blank(term: u64, index: u64) -> Entry {
        Entry { log_id: log_id(term, index), payload: EntryPayload::Blank }
    }

    async fn open(path: &Path, options: Options) -> (LogStore, Arc<Generations>, StateMachine) {
        let data = loop {
            match DataDir::open(path, 1) {
                // Another thread may still drop a table.
                Err(DirError::InUse(_)) => tokio::task::yield_now().await,
                opened => break opened.unwrap().0,
            }
        };
        let log = LogStore::open(&data, options).unwrap();
        let generations = Arc::new(Generations::open(Arc::new(data), SUPPORTED).unwrap());
        let applied = Applied::new();
        if let Some((table, meta)) = generations.load(log.purged()).await.unwrap() {
            log.start_from(meta.last_log_id.unwrap(), 1 << 20);
            applied.replace(table, &meta);
        }
        let machine = StateMachine::new(applied, log.clone(), Arc::clone(&generations), SUPPORTED);
        (log, generations, machine)
    }

    async fn apply(machine: &mut StateMachine, entries: Vec<Entry>) {
        machine.apply(stream::iter(entries.into_iter().map(|entry| Ok((entry, None))))).await.unwrap();
    }

    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            // Unfinished snapshots may vanish meanwhile.
            if entry.file_name().to_string_lossy().starts_with("new-") {
                continue;
            }
            let to = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy(&entry.path(), &to),
                false => drop(std::fs::copy(entry.path(), to).unwrap()),
            }
        }
    }

    /// A follower replaces entries by those of a new leader and applies them while its log hangs. Once, a snapshot of them
    /// was on disk before they were, and a power cut left a node that openraft refused to start.
    #[tokio::test]
    async fn no_snapshot_counts_before_the_log_that_it_covers_is_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        // The flusher hangs once, after taking this.
        let hang = Arc::new(Mutex::new(None::<(oneshot::Sender<()>, mpsc::Receiver<()>)>));
        let taken = Arc::clone(&hang);
        let on_flush = move |_, _| {
            let hang = taken.lock().unwrap().take();
            if let Some((begun, end)) = hang {
                begun.send(()).unwrap();
                let _ = end.recv();
            }
        };
        let options = Options { on_flush: Some(Arc::new(on_flush)), ..Options::default() };
        let (mut log, _, mut machine) = open(&path, options).await;
        let vote = |term| Vote { leader_id: RaftLeaderId::new(term, 2), committed: true };
        log.save_vote(&vote(1)).await.unwrap();
        let member =
            crate::consensus::Member { peer: "a:1".to_owned(), incarnation: uuid::Uuid::from_u128(7) };
        let membership = Membership::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, member)])).unwrap();
        let first = Entry { log_id: log_id(0, 0), payload: EntryPayload::Membership(membership) };
        let mut entries = vec![first];
        entries.extend((1..=50).map(|index| blank(1, index)));
        log.append(entries.clone(), IOFlushed::noop()).await.unwrap();
        // The others have 11 to 50 in no log.
        entries.truncate(11);
        apply(&mut machine, entries).await;
        log.save_vote(&vote(3)).await.unwrap();
        let (begun, begins) = oneshot::channel();
        let (go_on, end) = mpsc::channel();
        *hang.lock().unwrap() = Some((begun, end));
        let mut same = log.clone();
        let saving = tokio::spawn(async move { same.save_vote(&vote(3)).await });
        begins.await.unwrap();

        log.truncate_after(Some(log_id(1, 10))).await.unwrap();
        let newer: Vec<Entry> = (11..=20).map(|index| blank(3, index)).collect();
        log.append(newer.clone(), IOFlushed::noop()).await.unwrap();
        apply(&mut machine, newer).await;
        let mut builder = machine.get_snapshot_builder().await;
        let mut building = Box::pin(async move { builder.build_snapshot().await });
        let early = tokio::time::timeout(LONG, &mut building).await.ok();
        let image = dir.path().join("image");
        copy(&path, &image);
        drop(go_on);
        saving.await.unwrap().unwrap();
        let built = match early {
            Some(built) => built.unwrap(),
            None => building.as_mut().await.unwrap(),
        };
        assert_eq!(built.meta.last_log_id, Some(log_id(3, 20)));

        // What the power cut left, and what was there at the end.
        drop((log, machine, building, built));
        for path in [&image, &path] {
            let (mut log, _held, mut machine) = open(path, Options::default()).await;
            let state = StorageHelper::new(&mut log, &mut machine).with_id(1).get_initial_state().await;
            state.unwrap();
        }
    }

    /// A leader of term 3 committed nothing; those of the terms 2 and 4 went on without it, and the last one sent a snapshot.
    /// Entries of a later term than the snapshot, but before its end, once made a log that took no further entries.
    #[tokio::test]
    async fn a_node_killed_between_an_installed_snapshot_and_the_cut_of_its_log_goes_on_from_the_snapshot() {
        for last in [6, 20, 29] {
            let dir = tempfile::tempdir().unwrap();
            let member =
                crate::consensus::Member { peer: "a:1".to_owned(), incarnation: uuid::Uuid::from_u128(7) };
            let membership =
                Membership::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, member)])).unwrap();
            let first = Entry { log_id: log_id(0, 0), payload: EntryPayload::Membership(membership) };
            let common: Vec<Entry> =
                std::iter::once(first).chain((1..=5).map(|index| blank(1, index))).collect();
            let (_, _held, mut leader) = open(&dir.path().join("leader"), Options::default()).await;
            apply(&mut leader, common.iter().cloned().chain((6..=30).map(|index| blank(2, index))).collect())
                .await;
            let (meta, table) = view(&leader.applied);
            assert_eq!(meta.last_log_id, Some(log_id(2, 30)));

            let path = dir.path().join("follower");
            let (mut log, generations, mut machine) = open(&path, Options::default()).await;
            let void = (6..=last).map(|index| blank(3, index));
            log.append(common.iter().cloned().chain(void), IOFlushed::noop()).await.unwrap();
            apply(&mut machine, common).await;
            let received = Arc::new(generations.write(meta.clone(), table).await.unwrap());
            machine.install_snapshot(&meta, received).await.unwrap();
            log.barrier().await.unwrap();
            drop((log, generations, machine));

            // Also a second time.
            for next in [31, 32] {
                let (mut log, _held, mut machine) = open(&path, Options::default()).await;
                let mut storage = StorageHelper::new(&mut log, &mut machine).with_id(1);
                let state = storage.get_initial_state().await.unwrap();
                assert!(
                    state.local_committed() >= Some(&log_id(2, 30)),
                    "{last}: {:?}",
                    state.local_committed()
                );
                let before = if next == 31 { log_id(2, 30) } else { log_id(4, 31) };
                assert_eq!(state.log_ids.last(), Some(&before), "{last}");
                log.append([blank(4, next)], IOFlushed::noop()).await.unwrap();
                log.barrier().await.unwrap();
            }
        }
    }

    const LACKING: &str = "SNAPSHOTS_LACK_DESCRIPTORS";

    /// In a process of its own, because the limit holds for a whole process.
    #[test]
    fn a_snapshot_that_lacks_descriptors_is_taken_and_installed_when_there_are_some() {
        let test = "applied::state_machine::tests::lacks_descriptors_for_a_while";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", test, "--nocapture"]).env(LACKING, "").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    /// The other half of the test above.
    #[tokio::test]
    async fn lacks_descriptors_for_a_while() {
        if std::env::var_os(LACKING).is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (mut log, generations, mut machine) = open(&dir.path().join("data"), Options::default()).await;
        let entries: Vec<Entry> = (0..20).map(|index| blank(1, index)).collect();
        log.append(entries.clone(), IOFlushed::noop()).await.unwrap();
        apply(&mut machine, entries[..10].to_vec()).await;
        let mut builder = machine.get_snapshot_builder().await;
        let built = lacking(builder.build_snapshot()).await.unwrap();
        assert_eq!(built.meta.last_log_id, Some(log_id(1, 9)));

        apply(&mut machine, entries[10..].to_vec()).await;
        let (meta, table) = view(&machine.applied);
        let received = Arc::new(generations.write(meta.clone(), table).await.unwrap());
        lacking(machine.install_snapshot(&meta, received)).await.unwrap();
        assert_eq!(generations.newest().unwrap().index(), Some(19));
        drop((log, machine, builder, built, generations));
        let (_, generations, _) = open(&dir.path().join("data"), Options::default()).await;
        assert_eq!(generations.newest().unwrap().index(), Some(19));
    }

    /// Runs `work` without descriptors until it has waited for some.
    async fn lacking<T>(work: impl Future<Output = T>) -> T {
        let mut work = Box::pin(work);
        let all = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..all }).unwrap();
        let early = tokio::time::timeout(2 * LONG, &mut work).await;
        setrlimit(Resource::Nofile, all).unwrap();
        assert!(early.is_err(), "it needs no descriptors");
        work.await
    }
}
