//! Snapshots on disk, in generations.
//!
//! ```text
//! snapshots/
//!   00000000000000004711/    the older generation: the state after entry 4711
//!   00000000000000090210/    the newest
//!   new-1-1/                 being written or received
//!   reading-1-2/             a copy that is being read
//! ```
//! A generation gets its number only when all of it, and the log appended before, is on disk: so what has a number is
//! whole, and the log on disk holds no less than it covers. Two are kept, and the log since the older one: if the newest
//! cannot be read, a start falls back to the other and replays more of the log. One that is known to be damaged is none of the
//! two. A snapshot from the leader drops the
//! older one, because the log does not reach back to it. If no generation can be read that the log continues from, the
//! node refuses to start.
//!
//! Only damage to a snapshot itself counts against it. If the system lacks something, a start says what, and fails; a
//! running node that lacks descriptors retries until there are some.
//!
//! Reading and writing happen off the runtime: see [`aside`](mod@crate::storage::aside).

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ringfence_lease::{FrozenTable, LeaseTable, RestoreError, UnsupportedRules};
use ringfence_wal::lacks_descriptors;
use ringfence_wire::RulesRange;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::consensus::{LogId, SnapshotMeta};
use crate::storage::aside::{Aside, aside, discard};
use crate::storage::identity::DataDir;
use crate::storage::snapshots::generation::{Generation, Reader, Writer};
use crate::storage::snapshots::store::SnapshotStore;

pub(crate) mod generation;
pub(crate) mod sled_store;
pub(crate) mod store;

/// The directory of the snapshots in a data directory.
pub(crate) const DIR: &str = "snapshots";
/// How long to wait before a retry for lack of descriptors.
const RETRY: Duration = Duration::from_secs(1);
/// How long a transfer waits for the one before. Nothing is read of it meanwhile, and its sender gives it up after a few seconds
/// without learning why.
const PLACE: Duration = Duration::from_secs(1);

/// The snapshots of a node.
pub(crate) struct Generations {
    dir: Arc<DataDir>,
    store: Arc<dyn SnapshotStore>,
    supported: RulesRange,
    kept: Mutex<Kept>,
    publishing: Mutex<()>,
    /// Only one at a time is received: an abandoned one must not take the room of the next.
    receiving: Arc<Semaphore>,
    /// How many snapshots were begun.
    begun: AtomicU64,
}

/// What is known of the generations that are kept. One lock for all of it: whoever learns that one is damaged, and whoever replaces
/// it, agree on which it is.
#[derive(Default)]
struct Kept {
    newest: Option<Arc<Generation>>,
    /// The older one, if it was the newest of this process: somebody may still read it.
    older: Option<Arc<Generation>>,
    /// Those that are known to be damaged, by index.
    damaged: BTreeSet<u64>,
    /// Whether the newest was published while the one before was known to be damaged.
    keeps_older: bool,
}

impl Kept {
    fn index(&self) -> Option<u64> {
        self.newest.as_ref().and_then(|newest| newest.index())
    }

    fn is_damaged(&self) -> bool {
        self.index().is_some_and(|newest| self.damaged.contains(&newest))
    }

    /// Makes `made` the newest. Which of the `others` that are on disk, the newest first, are to go.
    fn replace(&mut self, made: Arc<Generation>, others: &[u64], keep_older: bool) -> Vec<u64> {
        let (index, before, was_damaged) = (made.index(), self.index(), self.is_damaged());
        let replaced = self.newest.replace(made);
        if index == before {
            self.damaged.retain(|damaged| Some(*damaged) != index);
            return Vec::new();
        }
        self.keeps_older = keep_older && was_damaged;
        let may_stay = |other: &&u64| Some(**other) <= before && !self.damaged.contains(other);
        let older = others.iter().find(may_stay).copied().filter(|_| keep_older);
        let mut known = replaced.into_iter().chain(self.older.take());
        self.older = known.find(|known| older.is_some() && known.index() == older);
        self.damaged.retain(|damaged| others.contains(damaged));
        let goes = |other: &u64| Some(*other) != index && Some(*other) != older;
        others.iter().copied().filter(goes).collect()
    }
}

/// Why no snapshot can be used, though there must be one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(
        "the log of this node begins after entry {purged}, and no snapshot of the state up to there can be used: \
         {reasons}. Remove the node from the cluster, empty its data directory, and add it again"
    )]
    Unusable { purged: u64, reasons: String },
    #[error(
        "{} could not be read: {error}. The snapshot itself may be undamaged: {}, and start the node again",
        path.display(),
        remedy(error)
    )]
    Lacking { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Rules(UnsupportedRules),
}

impl Generations {
    /// The snapshots in a data directory, of which those under `supported` rules can be read; removes unfinished ones and
    /// copies.
    pub(crate) fn open(dir: Arc<DataDir>, supported: RulesRange) -> io::Result<Self> {
        let store = dir.storage.snapshots(&dir.path.join(DIR))?;
        for name in store.list()? {
            if name.starts_with(generation::NEW) || name.starts_with(sled_store::COPY) {
                store.remove(&name)?;
            }
        }
        Ok(Self {
            dir,
            store,
            supported,
            kept: Mutex::default(),
            publishing: Mutex::default(),
            receiving: Arc::new(Semaphore::new(1)),
            begun: AtomicU64::new(0),
        })
    }

    /// The state of the newest generation that can be used, skipping others with a warning. `None` if there is none and
    /// none is needed: nothing was `purged` from the log.
    pub(crate) async fn load(
        self: &Arc<Self>,
        purged: Option<LogId>,
    ) -> Result<Option<(LeaseTable, SnapshotMeta)>, LoadError> {
        let mut reasons = Vec::new();
        for index in indexes(&*self.store)? {
            let path = self.store.path(&name_of(index));
            let error = match self.read(index).await {
                Ok((generation, table)) if generation.head().meta.last_log_id >= purged => {
                    let meta = generation.head().meta.clone();
                    self.lock().newest = Some(Arc::new(generation));
                    return Ok(Some((table, meta)));
                }
                Ok(_) => io::Error::other("the log does not reach back to it"),
                Err(error) if is_lack(&error) => return Err(LoadError::Lacking { path, error }),
                Err(error) => match unsupported(&error) {
                    // An older snapshot is of no use: the log after it leads to these rules.
                    Some(error) => return Err(LoadError::Rules(error)),
                    None => error,
                },
            };
            tracing::warn!(path = %path.display(), %error, "this snapshot cannot be used");
            reasons.push(format!("{}: {error}", path.display()));
        }
        let Some(purged) = purged else { return Ok(None) };
        if reasons.is_empty() {
            reasons.push(format!("there is none in {}", self.dir.path.join(DIR).display()));
        }
        Err(LoadError::Unusable { purged: purged.index(), reasons: reasons.join("; ") })
    }

    /// The generation of this index, and its table.
    pub(crate) async fn read(self: &Arc<Self>, index: u64) -> io::Result<(Generation, LeaseTable)> {
        self.aside(move |this| {
            let (head, table) = read(&*this.store, index, this.supported)?;
            let (dir, store) = (Arc::clone(&this.dir), Arc::clone(&this.store));
            Ok((Generation::published(dir, store, name_of(index), head), table))
        })
        .await
    }

    /// The table in `generation`.
    pub(crate) async fn table(self: &Arc<Self>, generation: &Arc<Generation>) -> io::Result<LeaseTable> {
        let generation = Arc::clone(generation);
        self.aside(move |this| restore(&mut generation.reader()?, this.supported)).await
    }

    /// Where they are, for operators.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path.join(DIR)
    }

    /// Where this one is, for operators; notes that it could not be read if it `is_damaged`. Another is made soon if it is the newest.
    /// `None` if it may be gone, or made anew.
    pub(crate) fn note_unreadable(&self, generation: &Arc<Generation>, is_damaged: bool) -> Option<PathBuf> {
        let index = generation.index()?;
        let mut kept = self.lock();
        if ![&kept.newest, &kept.older].into_iter().flatten().any(|kept| Arc::ptr_eq(kept, generation)) {
            return None;
        }
        if is_damaged {
            kept.damaged.insert(index);
        }
        Some(self.store.path(&name_of(index)))
    }

    /// Whether the newest is known to be damaged.
    pub(crate) fn is_damaged(&self) -> bool {
        self.lock().is_damaged()
    }

    /// The newest, if any.
    pub(crate) fn newest(&self) -> Option<Arc<Generation>> {
        self.lock().newest.clone()
    }

    /// Writes `table`. The result is on disk and was read back, and is to be [published](Self::publish).
    pub(crate) async fn write(
        self: &Arc<Self>,
        meta: SnapshotMeta,
        table: FrozenTable,
    ) -> io::Result<Generation> {
        self.aside(move |this| {
            let mut writer = this.writer_here(None)?;
            table.write_to(&mut writer)?;
            // Chunks that have changed since are copies: they are not needed for longer than this.
            drop(table);
            writer.finish(meta)
        })
        .await
    }

    /// Begins a generation that is received, once the one before is published or removed. An error, which is
    /// [passing](is_passing), if that takes long.
    pub(crate) async fn receive(self: &Arc<Self>) -> io::Result<Aside<Writer>> {
        let place = timeout(PLACE, Arc::clone(&self.receiving).acquire_owned()).await;
        let place = place.map_err(|_| {
            let why = "the transfer before is still being installed or removed";
            io::Error::new(io::ErrorKind::WouldBlock, why)
        })?;
        let (this, place) = (Arc::clone(self), place.expect("the semaphore is never closed"));
        Aside::open(&self.dir, move || this.writer_here(Some(place))).await
    }

    fn writer_here(&self, place: Option<OwnedSemaphorePermit>) -> io::Result<Writer> {
        // No other process has the directory, and what an earlier one left was removed.
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        Writer::create(Arc::clone(&self.dir), Arc::clone(&self.store), number, place)
    }

    /// Whether the older generation that is kept is not the one that was the newest before: that was damaged. The log has to go on
    /// reaching as far back as it did.
    pub(crate) fn keeps_older(&self) -> bool {
        self.lock().keeps_older
    }

    /// Makes `made` the newest generation; when this returns, that is on disk. Of the others only the one before is kept that is
    /// not known to be damaged, and only if `keep_older`.
    pub(crate) async fn publish(self: &Arc<Self>, made: Arc<Generation>, keep_older: bool) -> io::Result<()> {
        self.aside(move |this| this.publish_here(&made, keep_older)).await
    }

    fn publish_here(&self, made: &Generation, keep_older: bool) -> io::Result<()> {
        let _alone = self.publishing.lock().expect("no panic while a snapshot is published");
        let is_wanted = |index: &u64| {
            let kept = self.lock();
            kept.index() < Some(*index) || kept.index() == Some(*index) && kept.is_damaged()
        };
        let Some(index) = made.index().filter(is_wanted) else {
            // It covers nothing, or no more than the newest does: one that was installed while this was being made.
            return Ok(());
        };
        // First, since it may lack a descriptor: all this can be done again then.
        let others = indexes(&*self.store)?;
        let published = made.publish(&self.store, name_of(index))?;
        let gone = self.lock().replace(Arc::new(published), &others, keep_older);
        for gone in gone {
            self.store.remove(&name_of(gone))?;
        }
        Ok(())
    }

    /// Runs `work` off the runtime.
    async fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let this = Arc::clone(self);
        aside(&self.dir, move || work(&this)).await
    }

    /// Drops a table that is no longer needed off the runtime.
    pub(crate) fn discard(&self, table: LeaseTable) {
        discard(&self.dir, table);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no panic while the generations are locked")
    }
}

/// The indexes of the generations in a store, the newest first.
pub(crate) fn indexes(store: &dyn SnapshotStore) -> io::Result<Vec<u64>> {
    let mut indexes: Vec<u64> = store.list()?.iter().filter_map(|name| index_of(name)).collect();
    indexes.sort_unstable_by(|one, other| other.cmp(one));
    Ok(indexes)
}

/// The name of the generation `index`.
pub(crate) fn name_of(index: u64) -> String {
    format!("{index:020}")
}

fn index_of(name: &str) -> Option<u64> {
    (name.len() == 20).then(|| name.parse().ok()).flatten()
}

/// Reads the generation `index`.
pub(crate) fn read(
    store: &dyn SnapshotStore,
    index: u64,
    supported: RulesRange,
) -> io::Result<(generation::Head, LeaseTable)> {
    let mut reader = Reader::open(store, &name_of(index))?;
    let table = restore(&mut reader, supported)?;
    Ok((reader.head().clone(), table))
}

fn restore(reader: &mut Reader, supported: RulesRange) -> io::Result<LeaseTable> {
    LeaseTable::restore(reader, supported).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The reason, if a snapshot was not read because of its rules.
fn unsupported(error: &io::Error) -> Option<UnsupportedRules> {
    match error.get_ref()?.downcast_ref()? {
        RestoreError::Rules(error) => Some(*error),
        _ => None,
    }
}

/// Whether the system lacks something that it may have in a moment.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, OutOfMemory, WouldBlock};
    matches!(error.kind(), Interrupted | OutOfMemory | WouldBlock) || lacks_descriptors(error)
}

/// Whether the system lacks something for now: the error says nothing of the snapshot.
pub(crate) fn is_lack(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
        || is_passing(error)
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull => {
            "make room on the disk, because it is read from a copy"
        }
        _ if lacks_descriptors(error) => "raise the limit of open files",
        _ => "fix that",
    }
}

/// Retries `work` while it fails for lack of descriptors. It must leave nothing behind that is in its own way.
pub(crate) async fn with_descriptors<T, F>(mut work: impl FnMut() -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match work().await {
            Err(error) if lacks_descriptors(&error) => {
                tracing::warn!(%error, "a snapshot waits for descriptors");
                sleep(RETRY).await;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests;
