//! What a node stores on if its disk is in memory: each snapshot is a file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_disk::MemoryDisk;
use ringfence_raft::{SnapshotReader, SnapshotStore, SnapshotWriter, Storage};
use ringfence_wal::disk::{Disk, Mode};

/// All on one disk.
#[derive(Debug)]
pub(crate) struct Stored(pub(crate) MemoryDisk);

impl Storage for Stored {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.0.clone())
    }

    fn snapshots(&self, dir: &Path) -> io::Result<Arc<dyn SnapshotStore>> {
        self.0.create_dir(dir)?;
        Ok(Arc::new(Files { disk: self.0.clone(), dir: dir.to_owned() }))
    }
}

#[derive(Debug)]
struct Files {
    disk: MemoryDisk,
    dir: PathBuf,
}

struct Writer {
    disk: MemoryDisk,
    path: PathBuf,
    contents: Contents,
}

/// The values by their keys.
#[derive(Default)]
struct Contents(BTreeMap<Vec<u8>, Vec<u8>>);

impl SnapshotStore for Files {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.disk.list(&self.dir)?.into_iter().map(|name| name.into_string().unwrap()).collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotWriter>> {
        self.disk.open(&self.path(name), Mode::Create)?;
        let (disk, path) = (self.disk.clone(), self.path(name));
        Ok(Box::new(Writer { disk, path, contents: Contents::default() }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn SnapshotReader>> {
        Ok(Box::new(Contents::read(&self.disk, &self.path(name))?))
    }

    fn rename(&self, from: &Path, to: &str) -> io::Result<()> {
        self.disk.rename(from, &self.path(to))?;
        self.disk.sync_dir(&self.dir)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self.disk.remove(&self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl SnapshotWriter for Writer {
    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert!(self.contents.0.insert(key.to_vec(), value.to_vec()).is_none(), "{key:?} was there");
        Ok(())
    }

    fn finish(
        self: Box<Self>,
        check: &mut dyn FnMut(Box<dyn SnapshotReader>) -> io::Result<()>,
    ) -> io::Result<()> {
        let file = self.disk.open(&self.path, Mode::Write)?;
        let bytes = postcard::to_stdvec(&self.contents.0).unwrap();
        file.write_at(&bytes, 0)?;
        file.sync_all()?;
        check(Box::new(Contents::read(&self.disk, &self.path)?))
    }
}

impl Contents {
    fn read(disk: &MemoryDisk, path: &Path) -> io::Result<Self> {
        let contents = postcard::from_bytes(&disk.read(path)?);
        contents.map(Self).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

impl SnapshotReader for Contents {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.get(key).cloned())
    }
}
