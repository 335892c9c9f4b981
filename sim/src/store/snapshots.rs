//! The snapshots on a disk.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_disk::{Operation, Use};
use ringfence_raft::{SnapshotReader, SnapshotStore, SnapshotWriter};

use super::Store;

#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) contents: Arc<BTreeMap<Vec<u8>, Vec<u8>>>,
    pub(super) is_finished: bool,
}

/// The snapshots of a machine, as one process of it sees them.
#[derive(Debug)]
pub(super) struct Snapshots {
    pub(super) store: Store,
    pub(super) by: Use,
    pub(super) dir: PathBuf,
}

impl SnapshotStore for Snapshots {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.store.lock().keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotWriter>> {
        let what = || format!("begins snapshot {name}");
        self.by.operate(Operation::Create, what, || {
            self.store.lock().insert(name.to_owned(), Snapshot::default());
        })?;
        Ok(Box::new(Writer {
            store: self.store.clone(),
            by: self.by.clone(),
            name: name.to_owned(),
            contents: BTreeMap::new(),
        }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn SnapshotReader>> {
        let snapshots = self.store.lock();
        let snapshot = snapshots.get(name).ok_or(ErrorKind::NotFound)?;
        match snapshot.is_finished {
            true => Ok(Box::new(Reader(Arc::clone(&snapshot.contents)))),
            false => Err(io::Error::new(ErrorKind::InvalidData, "the snapshot is not finished")),
        }
    }

    fn rename(&self, from: &Path, to: &str) -> io::Result<()> {
        let from = from.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidInput)?;
        let mut found = false;
        let what = || format!("renames snapshot {from} to {to}");
        self.by.operate(Operation::Rename, what, || {
            let mut snapshots = self.store.lock();
            let snapshot = snapshots.remove(from);
            found = snapshot.is_some();
            snapshots.extend(snapshot.map(|snapshot| (to.to_owned(), snapshot)));
        })?;
        if found { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let what = || format!("removes snapshot {name}");
        self.by.operate(Operation::Remove, what, || drop(self.store.lock().remove(name)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

struct Writer {
    store: Store,
    by: Use,
    name: String,
    contents: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl SnapshotWriter for Writer {
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let what = || format!("writes a record of snapshot {}", self.name);
        self.by.operate(Operation::Write, what, || ())?;
        self.contents.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn finish(
        self: Box<Self>,
        check: &mut dyn FnMut(Box<dyn SnapshotReader>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Self { store, by, name, contents } = *self;
        let contents = Arc::new(contents);
        check(Box::new(Reader(Arc::clone(&contents))))?;
        let what = || format!("finishes snapshot {name}");
        by.operate(Operation::SyncAll, what, || {
            store.lock().insert(name.clone(), Snapshot { contents, is_finished: true });
        })
    }
}

struct Reader(Arc<BTreeMap<Vec<u8>, Vec<u8>>>);

impl SnapshotReader for Reader {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.get(key).cloned())
    }
}
