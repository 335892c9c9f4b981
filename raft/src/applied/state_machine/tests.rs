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

pub(crate) fn copy(from: &Path, to: &Path) {
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
    let member = crate::consensus::Member { peer: "a:1".to_owned(), incarnation: uuid::Uuid::from_u128(7) };
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
        let membership = Membership::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, member)])).unwrap();
        let first = Entry { log_id: log_id(0, 0), payload: EntryPayload::Membership(membership) };
        let common: Vec<Entry> = std::iter::once(first).chain((1..=5).map(|index| blank(1, index))).collect();
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
            assert!(state.local_committed() >= Some(&log_id(2, 30)), "{last}: {:?}", state.local_committed());
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
