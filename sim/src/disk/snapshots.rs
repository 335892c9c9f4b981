//! The snapshots on a disk.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_raft::{SnapshotReader, SnapshotStore, SnapshotWriter};

use super::{MemoryDisk, State};

#[derive(Clone, Default)]
pub(super) struct Snapshot {
    pub(super) contents: Arc<BTreeMap<Vec<u8>, Vec<u8>>>,
    pub(super) is_finished: bool,
}

/// The snapshots of a machine. Each step of writing one is an operation of its disk.
#[derive(Debug)]
pub(super) struct Snapshots {
    pub(super) disk: MemoryDisk,
    pub(super) process: u64,
    pub(super) dir: PathBuf,
}

impl SnapshotStore for Snapshots {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.disk.lock().snapshots.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotWriter>> {
        let what = |_: &State| format!("begins snapshot {name}");
        self.disk.operate(self.process, false, what, |state| {
            state.snapshots.insert(name.to_owned(), Snapshot::default());
        })?;
        Ok(Box::new(Writer {
            disk: self.disk.clone(),
            process: self.process,
            name: name.to_owned(),
            contents: BTreeMap::new(),
        }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn SnapshotReader>> {
        let state = self.disk.lock();
        let snapshot = state.snapshots.get(name).ok_or(ErrorKind::NotFound)?;
        match snapshot.is_finished {
            true => Ok(Box::new(Reader(Arc::clone(&snapshot.contents)))),
            false => Err(io::Error::new(ErrorKind::InvalidData, "the snapshot is not finished")),
        }
    }

    fn rename(&self, from: &Path, to: &str) -> io::Result<()> {
        let from = from.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidInput)?;
        let what = |_: &State| format!("renames snapshot {from} to {to}");
        self.disk.operate(self.process, false, what, |state| {
            let snapshot = state.snapshots.remove(from).ok_or(ErrorKind::NotFound)?;
            state.snapshots.insert(to.to_owned(), snapshot);
            Ok(())
        })?
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let what = |_: &State| format!("removes snapshot {name}");
        self.disk.operate(self.process, false, what, |state| drop(state.snapshots.remove(name)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

struct Writer {
    disk: MemoryDisk,
    process: u64,
    name: String,
    contents: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl SnapshotWriter for Writer {
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let what = |_: &State| format!("writes a record of snapshot {}", self.name);
        self.disk.operate(self.process, false, what, |_| ())?;
        self.contents.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn finish(
        self: Box<Self>,
        check: &mut dyn FnMut(Box<dyn SnapshotReader>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Self { disk, process, name, contents } = *self;
        let contents = Arc::new(contents);
        check(Box::new(Reader(Arc::clone(&contents))))?;
        let what = |_: &State| format!("finishes snapshot {name}");
        disk.operate(process, true, what, |state| {
            state.snapshots.insert(name.clone(), Snapshot { contents, is_finished: true });
        })
    }
}

struct Reader(Arc<BTreeMap<Vec<u8>, Vec<u8>>>);

impl SnapshotReader for Reader {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.get(key).cloned())
    }
}
