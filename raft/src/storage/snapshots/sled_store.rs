//! Snapshots in sled: each is a database of its own, in a directory of its own.
//!
//! sled has no way to read without writing: opening a database rewrites its index of pages, may truncate or clear what
//! it takes for a torn tail, and syncs. A snapshot must stay as it was synced, though, so it is read from a copy, which
//! is removed again. What was just written is read back in place, since a whole copy, synced at once, holds up the log.
//! sled closes files in the background, with no call that waits for it: the only way to know that a database is closed is
//! to try its lock.
//!
//! sled leaves it to the system when its files reach the disk, so every file and directory is synced here.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringfence_wal::disk::{Disk, System};

use crate::storage::snapshots::store::{SnapshotReader, SnapshotStore, SnapshotWriter, Storage, damaged};

/// Prefix of the names of copies.
pub(super) const COPY: &str = "reading-";
/// How many values go to sled at once.
const BATCH: usize = 64;
/// What sled may keep in memory, in bytes: everything is written, and read, once and in order.
const CACHE: u64 = 8 << 20;
/// How long to try the lock of a database that was closed, and how often.
const CLOSING: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(1);

/// A directory of sled databases.
#[derive(Debug)]
pub(crate) struct SledStore {
    dir: PathBuf,
    /// Where copies go.
    copies: PathBuf,
}

impl Storage for System {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(*self)
    }

    fn snapshots(&self, dir: &Path) -> io::Result<Arc<dyn SnapshotStore>> {
        if !dir.is_dir() {
            fs::create_dir(dir)?;
        }
        File::open(dir.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(Arc::new(SledStore::existing(dir, dir)))
    }
}

impl SledStore {
    /// The snapshots in `dir`, which need not exist, to be read by way of copies in `copies`.
    pub(crate) fn existing(dir: &Path, copies: &Path) -> Self {
        Self { dir: dir.to_owned(), copies: copies.to_owned() }
    }
}

impl SnapshotStore for SledStore {
    fn list(&self) -> io::Result<Vec<String>> {
        match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            entries => entries?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotWriter>> {
        let path = self.path(name);
        let (db, batch) = (open(&path, true)?, sled::Batch::default());
        Ok(Box::new(Writer { db, path, batch, batched: 0, copies: self.copies.clone() }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn SnapshotReader>> {
        Ok(Box::new(Reader::of_copy(&self.path(name), &self.copies)?))
    }

    fn rename(&self, from: &Path, to: &str) -> io::Result<()> {
        // First, since it may lack a descriptor: then the rename can be tried again.
        let dir = File::open(&self.dir)?;
        self.remove(to)?;
        fs::rename(from, self.path(to))?;
        dir.sync_all()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

struct Writer {
    db: sled::Db,
    path: PathBuf,
    batch: sled::Batch,
    batched: usize,
    copies: PathBuf,
}

impl SnapshotWriter for Writer {
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.batch.insert(key, value);
        self.batched += 1;
        if self.batched.is_multiple_of(BATCH) {
            self.db.apply_batch(std::mem::take(&mut self.batch))?;
        }
        Ok(())
    }

    fn finish(
        self: Box<Self>,
        check: &mut dyn FnMut(Box<dyn SnapshotReader>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Self { db, path, batch, copies, .. } = *self;
        db.apply_batch(batch)?;
        db.flush()?;
        drop(db);
        let reader = Reader::of_closed(&path, &copies)?;
        let db = reader.db.clone();
        check(Box::new(reader))?;
        // Opening it may have changed something.
        db.flush()?;
        drop(db);
        sync_all(&path)
    }
}

struct Reader {
    // Dropped before its directory is removed. sled may close it later; what stays then is removed at the next start.
    db: sled::Db,
    _copy: Option<TempCopy>,
}

impl Reader {
    fn of_copy(path: &Path, copies: &Path) -> io::Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let name = format!("{COPY}{}-{}", std::process::id(), NUMBERS.fetch_add(1, Ordering::Relaxed));
        let copy = TempCopy(copies.join(name));
        copy_all(path, &copy.0)?;
        Ok(Self { db: open(&copy.0, false)?, _copy: Some(copy) })
    }

    /// In place, as soon as sled has closed it; from a copy if that takes long, or something is wrong.
    #[expect(
        clippy::disallowed_methods,
        reason = "on a thread of its own: sled's own time, which nothing simulates"
    )]
    fn of_closed(path: &Path, copies: &Path) -> io::Result<Self> {
        let closed = Instant::now();
        while closed.elapsed() < CLOSING {
            if let Ok(db) = open(path, false) {
                return Ok(Self { db, _copy: None });
            }
            thread::sleep(RETRY);
        }
        Self::of_copy(path, copies)
    }
}

impl SnapshotReader for Reader {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.db.get(key).map_err(of_sled)?.map(|value| value.to_vec()))
    }
}

/// A directory that is removed when this is dropped.
struct TempCopy(PathBuf);

impl Drop for TempCopy {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.0.display(), %error, "cannot remove the copy of a snapshot");
            }
            _ => {}
        }
    }
}

fn open(path: &Path, create_new: bool) -> io::Result<sled::Db> {
    let config = sled::Config::new().path(path).create_new(create_new).cache_capacity(CACHE);
    config.flush_every_ms(None).open().map_err(of_sled)
}

fn of_sled(error: sled::Error) -> io::Error {
    match error {
        sled::Error::Corruption { .. } => damaged(&error.to_string()),
        other => other.into(),
    }
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), &to)?;
        }
    }
    Ok(())
}

/// Syncs all files in the directory, and the directory.
fn sync_all(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_all(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_sled_does_not_close_is_read_from_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let store = SledStore::existing(dir.path(), dir.path());
        let mut writer = store.create("new").unwrap();
        writer.put(b"key", b"value").unwrap();
        writer.finish(&mut |_| Ok(())).unwrap();
        let held = Reader::of_closed(&store.path("new"), dir.path()).unwrap();
        let copied = Reader::of_closed(&store.path("new"), dir.path()).unwrap();
        assert!(held._copy.is_none() && copied._copy.is_some());
        assert_eq!(copied.get(b"key").unwrap().unwrap(), b"value");
    }
}
