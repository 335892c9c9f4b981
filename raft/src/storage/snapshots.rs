//! Snapshots on disk, in generations.
//!
//! ```text
//! snapshots/
//!   00000000000000004711/    the older generation: the state after entry 4711
//!   00000000000000090210/    the newest; each is a folder of its own, described at `generation`
//!   new-1/                   in the making, or being received
//!   reading-2/               a copy that is being read
//! ```
//! A generation gets its name only when all of it is on disk, and the log that was appended before: so what has a number is
//! whole, and the log on disk holds no less than what it covers. Two are kept, and the log
//! since the older one: if the newest cannot be read, a start falls back to the other and replays more of the log. A
//! snapshot from the leader drops the older one, for the log does not reach back to it. Where no generation can be read
//! that the log goes on from, the node refuses to start.
//!
//! Only what is wrong with a snapshot itself counts against it. Where the system lacks something, a start says what, and fails;
//! and what lacks descriptors while the node runs is done again until there are some.
//!
//! Reading and writing happen on threads of their own: the runtime has to answer within milliseconds.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use ringfence_lease::{FrozenTable, LeaseTable};
use ringfence_wal::lacks_descriptors;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::consensus::{LogId, SnapshotMeta};
use crate::storage::identity::DataDir;
use crate::storage::snapshots::generation::{Generation, Reader, Writer};

pub(crate) mod generation;

/// The folder of the generations in a data directory.
pub(crate) const FOLDER: &str = "snapshots";
/// Threads that read or write a snapshot give way to those that grant.
const NICE: i32 = 10;
/// How long to wait before something is done again that lacked descriptors.
const AGAIN: Duration = Duration::from_secs(1);
/// What the names of folders begin with that are no generations yet, or copies of one.
const SCRATCH: [&str; 2] = [generation::NEW, generation::READING];

/// The snapshots of a node.
pub(crate) struct Generations {
    /// Held by every thread that works here, so that the directory is not given to another process meanwhile.
    _dir: Arc<DataDir>,
    path: PathBuf,
    newest: Mutex<Option<Arc<Generation>>>,
    publishing: Mutex<()>,
}

/// Why no snapshot can be used, though there must be one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(
        "the log of this node begins after entry {purged}, and no snapshot of the state up to there can be used: \
         {reasons}. Give the node's data back as it was, or remove the node from the cluster and add it under a new id"
    )]
    Unusable { purged: u64, reasons: String },
    #[error(
        "{} could not be read: {error}. That says nothing against it: {}, and start the node again",
        path.display(),
        remedy(error)
    )]
    Lacking { path: PathBuf, error: io::Error },
}

impl Generations {
    /// In the data directory `dir`; what was not finished there is removed.
    pub(crate) fn open(dir: Arc<DataDir>) -> io::Result<Self> {
        let path = dir.path.join(FOLDER);
        if !path.is_dir() {
            fs::create_dir(&path)?;
        }
        File::open(&dir.path)?.sync_all()?;
        let generations = Self { _dir: dir, path, newest: Mutex::default(), publishing: Mutex::default() };
        for entry in fs::read_dir(&generations.path)? {
            let entry = entry?;
            if SCRATCH.iter().any(|name| entry.file_name().to_string_lossy().starts_with(name)) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(generations)
    }

    /// The state of the newest generation that can be used; one that cannot is passed over with a warning. `None` where
    /// there is none and none is needed, for the log begins at the beginning: nothing was `purged` from it.
    pub(crate) async fn load(
        self: &Arc<Self>,
        purged: Option<LogId>,
    ) -> Result<Option<(LeaseTable, SnapshotMeta)>, LoadError> {
        let mut reasons = Vec::new();
        for index in indexes(&self.path)? {
            let read = self.read(index).await.and_then(|(generation, table)| {
                if generation.head().meta.last_log_id < purged {
                    return Err(io::Error::other("the log does not reach back to it"));
                }
                Ok((generation, table))
            });
            match read {
                Ok((generation, table)) => {
                    let meta = generation.head().meta.clone();
                    *self.lock() = Some(Arc::new(generation));
                    return Ok(Some((table, meta)));
                }
                Err(error) if is_lack(&error) => {
                    return Err(LoadError::Lacking { path: self.path_of(index), error });
                }
                Err(error) => {
                    let path = self.path_of(index);
                    tracing::warn!(path = %path.display(), %error, "this snapshot cannot be used");
                    reasons.push(format!("{}: {error}", path.display()));
                }
            }
        }
        match purged {
            None => Ok(None),
            Some(_) if reasons.is_empty() => {
                Err(Self::unusable(purged, format!("there is none in {}", self.path.display())))
            }
            Some(_) => Err(Self::unusable(purged, reasons.join("; "))),
        }
    }

    fn unusable(purged: Option<LogId>, reasons: String) -> LoadError {
        LoadError::Unusable { purged: purged.map_or(0, |id| id.index()), reasons }
    }

    /// The generation of this index, and its table.
    pub(crate) async fn read(self: &Arc<Self>, index: u64) -> io::Result<(Generation, LeaseTable)> {
        let this = Arc::clone(self);
        aside(move || {
            let mut reader = Reader::open(&this.path_of(index), &this.path)?;
            let table = restore(&mut reader)?;
            Ok((Generation::published(this.path_of(index), reader.head().clone()), table))
        })
        .await
    }

    /// The table in `generation`.
    pub(crate) async fn table(self: &Arc<Self>, generation: &Arc<Generation>) -> io::Result<LeaseTable> {
        let (this, generation) = (Arc::clone(self), Arc::clone(generation));
        aside(move || {
            let _held = this;
            restore(&mut generation.reader()?)
        })
        .await
    }

    /// The newest, if any.
    pub(crate) fn newest(&self) -> Option<Arc<Generation>> {
        self.lock().clone()
    }

    /// Writes `table`. The result is on disk and can be read back, and is to be [published](Self::publish).
    pub(crate) async fn write(
        self: &Arc<Self>,
        meta: SnapshotMeta,
        table: FrozenTable,
    ) -> io::Result<Generation> {
        let this = Arc::clone(self);
        aside(move || {
            let mut writer = this.writer()?;
            table.write_to(&mut writer)?;
            // Chunks that have changed since are copies: they are not needed for longer than this.
            drop(table);
            writer.finish(meta)
        })
        .await
    }

    /// To write a generation with, here.
    pub(crate) fn writer(&self) -> io::Result<Writer> {
        Writer::create(&self.path)
    }

    /// Makes `made` the newest generation; when this returns, that is on disk. Of the others the one before is kept if
    /// `keep_older`.
    pub(crate) async fn publish(self: &Arc<Self>, made: Arc<Generation>, keep_older: bool) -> io::Result<()> {
        let this = Arc::clone(self);
        aside(move || this.publish_here(&made, keep_older)).await
    }

    fn publish_here(&self, made: &Generation, keep_older: bool) -> io::Result<()> {
        let _alone = self.publishing.lock().expect("no panic while a snapshot is published");
        let before = self.newest().and_then(|newest| newest.index());
        let Some(index) = made.index().filter(|index| before < Some(*index)) else {
            // It covers nothing, or no more than the newest does: one that was installed while this was being made.
            return Ok(());
        };
        let path = self.path_of(index);
        // What may lack descriptors comes before it has its name: it can be done again then.
        let folder = File::open(&self.path)?;
        let others = indexes(&self.path)?;
        if path.exists() {
            // One that could not be read.
            fs::remove_dir_all(&path)?;
        }
        let published = made.publish(path)?;
        folder.sync_all()?;
        *self.lock() = Some(Arc::new(published));
        let older = before.filter(|_| keep_older);
        for gone in others.into_iter().filter(|gone| *gone != index && Some(*gone) != older) {
            fs::remove_dir_all(self.path_of(gone))?;
        }
        Ok(())
    }

    fn path_of(&self, index: u64) -> PathBuf {
        path_of(&self.path, index)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Generation>>> {
        self.newest.lock().expect("no panic while the generations are locked")
    }
}

/// The indexes of the generations in the folder `path`, the newest first.
pub(crate) fn indexes(path: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut indexes = Vec::new();
    for entry in entries {
        indexes.extend(entry?.file_name().to_str().and_then(index_of));
    }
    indexes.sort_unstable_by(|one, other| other.cmp(one));
    Ok(indexes)
}

/// Where the generation `index` lies in the folder `path`.
pub(crate) fn path_of(path: &Path, index: u64) -> PathBuf {
    path.join(format!("{index:020}"))
}

fn index_of(name: &str) -> Option<u64> {
    (name.len() == 20).then(|| name.parse().ok()).flatten()
}

fn restore(reader: &mut Reader) -> io::Result<LeaseTable> {
    LeaseTable::restore(reader).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Whether what failed so may succeed when the system has what it lacks now: the error says nothing of a snapshot.
fn is_lack(error: &io::Error) -> bool {
    use io::ErrorKind::{OutOfMemory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), OutOfMemory | PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
        || lacks_descriptors(error)
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull => {
            "make room on the disk, for it is read by way of a copy"
        }
        _ if lacks_descriptors(error) => "raise the limit of open files",
        _ => "mend that",
    }
}

/// Does `work` until it is not for a lack of descriptors that it fails. It must leave nothing behind that is in its own way.
pub(crate) async fn with_descriptors<T, F>(mut work: impl FnMut() -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match work().await {
            Err(error) if lacks_descriptors(&error) => {
                tracing::warn!(%error, "a snapshot waits for descriptors");
                sleep(AGAIN).await;
            }
            result => return result,
        }
    }
}

/// Does `work` on a thread of its own that gives way to others. A panic in it is an error.
#[expect(clippy::disallowed_methods, reason = "the one place that starts threads")]
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    let work = move || {
        // Without it the work is done as well.
        let _ = rustix::process::setpriority_process(None, NICE);
        // Whoever waited may have gone.
        drop(done.send(work()));
    };
    thread::Builder::new().name("snapshots".to_owned()).spawn(work)?;
    result.await.unwrap_or_else(|_| Err(io::Error::other("reading or writing a snapshot panicked")))
}

#[cfg(test)]
mod tests {
    use ringfence_lease::Command;
    use ringfence_wire::Revision;
    use tempfile::TempDir;

    use super::*;
    use crate::consensus::{Membership, StoredMembership, log_id};

    fn open(dir: &TempDir) -> Arc<Generations> {
        let (data, _) = DataDir::open(dir.path(), 1).unwrap();
        Arc::new(Generations::open(Arc::new(data)).unwrap())
    }

    /// A table that differs from that of every other index, and what covers the log up to there.
    fn state(index: u64) -> (SnapshotMeta, LeaseTable) {
        let mut table = LeaseTable::new();
        table.apply(index, vec![Command::Start { revision: Revision(1_000 + index) }], &mut Vec::new());
        let last_membership = StoredMembership::new(Some(log_id(1, 0)), Membership::default());
        (SnapshotMeta { last_log_id: Some(log_id(1, index)), last_membership }, table)
    }

    async fn take(generations: &Arc<Generations>, index: u64, keep_older: bool) {
        let (meta, table) = state(index);
        let made = generations.write(meta, table.freeze()).await.unwrap();
        generations.publish(Arc::new(made), keep_older).await.unwrap();
    }

    fn names(generations: &Generations) -> Vec<String> {
        let entries = fs::read_dir(&generations.path).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn damage(generations: &Generations, index: u64) {
        fs::write(generations.path_of(index).join("db"), b"nothing that sled has written").unwrap();
    }

    #[tokio::test]
    async fn the_newest_is_read_back_and_only_the_one_before_is_kept() {
        let dir = TempDir::new().unwrap();
        let generations = open(&dir);
        assert!(generations.load(None).await.unwrap().is_none());
        for index in [3, 5, 9] {
            take(&generations, index, true).await;
        }
        assert_eq!(indexes(&generations.path).unwrap(), [9, 5]);
        // One that was being made while a newer one was installed.
        take(&generations, 7, true).await;
        assert_eq!(names(&generations).len(), 2, "{:?}", names(&generations));
        let (table, meta) =
            open_again(&dir, generations).await.load(Some(log_id(1, 4))).await.unwrap().unwrap();
        assert_eq!((meta, table.snapshot()), (state(9).0, state(9).1.snapshot()));
    }

    async fn open_again(dir: &TempDir, generations: Arc<Generations>) -> Arc<Generations> {
        drop(generations);
        open(dir)
    }

    #[tokio::test]
    async fn one_that_was_installed_drops_the_others() {
        let dir = TempDir::new().unwrap();
        let generations = open(&dir);
        take(&generations, 3, true).await;
        take(&generations, 5, false).await;
        assert_eq!(indexes(&generations.path).unwrap(), [5]);
    }

    #[tokio::test]
    async fn a_damaged_one_is_passed_over_and_goes_with_the_next() {
        let dir = TempDir::new().unwrap();
        let generations = open(&dir);
        take(&generations, 3, true).await;
        take(&generations, 5, true).await;
        damage(&generations, 5);
        let generations = open_again(&dir, generations).await;
        let (_, meta) = generations.load(Some(log_id(1, 3))).await.unwrap().unwrap();
        assert_eq!(meta, state(3).0);
        // The log is replayed to the same entry, and a snapshot is taken there once more.
        take(&generations, 5, true).await;
        assert_eq!(indexes(&generations.path).unwrap(), [5, 3]);
        assert_eq!(generations.load(None).await.unwrap().unwrap().1, state(5).0);
    }

    #[tokio::test]
    async fn one_that_sled_does_not_let_go_of_is_read_back_by_way_of_a_copy() {
        let dir = TempDir::new().unwrap();
        let generations = open(&dir);
        let (meta, table) = state(3);
        let made = generations.write(meta, table.freeze()).await.unwrap();
        let held = made.read_back().unwrap();
        let read = restore(&mut made.read_back().unwrap()).unwrap();
        assert_eq!(read.snapshot(), table.snapshot());
        drop(held);
    }

    #[tokio::test]
    async fn no_flipped_bit_changes_what_is_read() {
        let dir = TempDir::new().unwrap();
        let generations = open(&dir);
        take(&generations, 3, true).await;
        let path = generations.path_of(3).join("db");
        let whole = fs::read(&path).unwrap();
        let written = whole.iter().rposition(|byte| *byte != 0).unwrap();
        let (mut same, mut refused) = (0, 0);
        for byte in (0..=written).step_by(1 + written / 400) {
            let mut flipped = whole.clone();
            flipped[byte] ^= 1 << (byte % 8);
            fs::write(&path, flipped).unwrap();
            match generations.read(3).await {
                Ok((generation, table)) => {
                    let (meta, expected) = state(3);
                    assert_eq!(
                        (&generation.head().meta, table.snapshot()),
                        (&meta, expected.snapshot()),
                        "{byte}"
                    );
                    same += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 0, "{same} of them do not matter");
    }

    #[tokio::test]
    async fn without_one_that_the_log_goes_on_from_the_reasons_are_told() {
        let dir = TempDir::new().unwrap();
        let generations = open(&dir);
        let none = generations.load(Some(log_id(1, 4))).await.err().unwrap().to_string();
        assert!(none.contains("begins after entry 4") && none.contains("there is none"), "{none}");
        take(&generations, 3, true).await;
        take(&generations, 5, true).await;
        damage(&generations, 5);
        let reasons = generations.load(Some(log_id(1, 4))).await.err().unwrap().to_string();
        assert!(reasons.contains("does not reach back") && reasons.contains("0005: "), "{reasons}");
        // Where the log has everything there is no need for any.
        damage(&generations, 3);
        assert!(generations.load(None).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_was_not_finished_is_removed() {
        let dir = TempDir::new().unwrap();
        let generations = open(&dir);
        take(&generations, 3, true).await;
        let (meta, table) = state(5);
        let made = generations.write(meta, table.freeze()).await.unwrap();
        assert_eq!(names(&generations).len(), 2);
        drop(made);
        assert_eq!(names(&generations).len(), 1);
        fs::create_dir(generations.path.join("new-1-1")).unwrap();
        fs::create_dir(generations.path.join("reading-1-2")).unwrap();
        let generations = open_again(&dir, generations).await;
        assert_eq!(names(&generations), ["00000000000000000003"]);
    }
}
