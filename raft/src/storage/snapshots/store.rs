//! The seam between a node and what it stores on: a disk for log and identity, and a store of snapshots.
//!
//! The store is a seam of its own because sled, which is behind it, reaches files by itself. Generations are written,
//! checked and chosen above it, so a simulator's store runs all of that.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_wal::disk::Disk;

/// All that a node stores on: [`System`](ringfence_wal::disk::System), except in a simulation.
pub trait Storage: Debug + Send + Sync {
    /// The disk.
    fn disk(&self) -> Arc<dyn Disk>;

    /// The snapshots in the directory `dir`, created unless it exists.
    fn snapshots(&self, dir: &Path) -> io::Result<Arc<dyn SnapshotStore>>;
}

/// Named snapshots, each a set of keys and values that is written once and never changes.
pub trait SnapshotStore: Debug + Send + Sync {
    /// The names of all snapshots, finished or not, in any order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Begins a snapshot.
    fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotWriter>>;

    /// Opens a finished snapshot. It may be renamed or removed meanwhile.
    fn open(&self, name: &str) -> io::Result<Box<dyn SnapshotReader>>;

    /// Renames the finished snapshot at the [path](Self::path) `from`, over another if there is one. When this returns, the
    /// new name is on disk.
    fn rename(&self, from: &Path, to: &str) -> io::Result<()>;

    /// Removes a snapshot, finished or not; succeeds if there is none.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Where a snapshot is, for operators.
    fn path(&self, name: &str) -> PathBuf;
}

/// A snapshot being written.
pub trait SnapshotWriter: Send {
    /// Puts a key that is not there yet.
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;

    /// Finishes the snapshot, and lets `check` read it back. When this returns, it is on disk.
    fn finish(
        self: Box<Self>,
        check: &mut dyn FnMut(Box<dyn SnapshotReader>) -> io::Result<()>,
    ) -> io::Result<()>;
}

/// An open snapshot.
pub trait SnapshotReader: Send {
    /// The value of a key, if it is there. Damage is an error of the kind [`io::ErrorKind::InvalidData`].
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
}

pub(crate) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the snapshot is damaged: {what}"))
}
