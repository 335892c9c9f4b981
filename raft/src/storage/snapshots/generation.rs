//! One snapshot: the bytes of a table in pieces, and a head that describes them.
//!
//! ```text
//! key "head"          format, length and BLAKE3 of the table's bytes, last log id, membership, checksum of all this
//! key 0, 1, 2 …       the table's bytes in chunks of 4 KiB
//! ```

use std::io::{self, Read, Write};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::sync::OwnedSemaphorePermit;

use crate::consensus::{Consensus, SnapshotMeta};
use crate::storage::aside::{Aside, discard};
use crate::storage::identity::DataDir;
use crate::storage::record::{RecordError, put_meta, read_meta};
use crate::storage::snapshots::store::{SnapshotReader, SnapshotStore, SnapshotWriter, damaged};

/// Prefix of the names of snapshots that are not published.
pub(super) const NEW: &str = "new-";

const FORMAT: u16 = 2;
const HEAD: &[u8] = b"head";
/// The size of a chunk in bytes: sled keeps larger values in files of their own.
const CHUNK: usize = 4 << 10;

/// openraft's snapshot.
pub(crate) type Snapshot = openraft::alias::SnapshotOf<Consensus, Arc<Generation>>;

/// What a generation holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) meta: SnapshotMeta,
    /// The length of the table in bytes.
    pub(crate) bytes: u64,
    /// Of the table's bytes.
    pub(crate) hash: [u8; 32],
}

/// A snapshot under its name. Dropped before it is published, it is removed, off the runtime.
#[derive(Debug)]
struct Stored {
    dir: Arc<DataDir>,
    store: Arc<dyn SnapshotStore>,
    name: String,
    is_published: AtomicBool,
    /// Held until it is published or removed.
    place: Option<OwnedSemaphorePermit>,
}

impl Drop for Stored {
    fn drop(&mut self) {
        if !*self.is_published.get_mut() {
            let (store, name) = (Arc::clone(&self.store), mem::take(&mut self.name));
            discard(&self.dir, Unfinished { store, name, _place: self.place.take() });
        }
    }
}

/// A snapshot that is removed when this is dropped.
struct Unfinished {
    store: Arc<dyn SnapshotStore>,
    name: String,
    _place: Option<OwnedSemaphorePermit>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Err(error) = self.store.remove(&self.name) {
            let path = self.store.path(&self.name);
            tracing::warn!(path = %path.display(), %error, "cannot remove an unfinished snapshot");
        }
    }
}

/// A whole snapshot on disk. Dropped before it is published, it is removed.
#[derive(Debug)]
pub(crate) struct Generation {
    stored: Stored,
    head: Head,
}

impl Generation {
    pub(super) fn published(
        dir: Arc<DataDir>,
        store: Arc<dyn SnapshotStore>,
        name: String,
        head: Head,
    ) -> Self {
        let stored = Stored { dir, store, name, is_published: AtomicBool::new(true), place: None };
        Self { stored, head }
    }

    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Opens it, to read it in pieces. It may be replaced meanwhile.
    pub(crate) async fn open(self: &Arc<Self>) -> io::Result<Aside<Reader>> {
        let this = Arc::clone(self);
        Aside::open(&self.stored.dir, move || this.reader()).await
    }

    /// Opens it on this thread.
    pub(super) fn reader(&self) -> io::Result<Reader> {
        Reader::open(&*self.stored.store, &self.stored.name)
    }

    /// The last entry that it covers.
    pub(crate) fn index(&self) -> Option<u64> {
        self.head.meta.last_log_id.map(|id| id.index())
    }

    /// Gives it its final name in `store`; when this returns, that is on disk.
    pub(super) fn publish(&self, store: &Arc<dyn SnapshotStore>, name: String) -> io::Result<Self> {
        store.rename(&self.stored.store.path(&self.stored.name), &name)?;
        self.stored.is_published.store(true, Ordering::Relaxed);
        Ok(Self::published(Arc::clone(&self.stored.dir), Arc::clone(store), name, self.head.clone()))
    }
}

/// Writes a generation: the table's bytes go in by [`Write`].
pub(crate) struct Writer {
    // Dropped, and so closed, before it is removed.
    snapshot: Box<dyn SnapshotWriter>,
    stored: Stored,
    chunk: Vec<u8>,
    chunks: u32,
    bytes: u64,
    hash: blake3::Hasher,
}

impl Writer {
    pub(super) fn create(
        dir: Arc<DataDir>,
        store: Arc<dyn SnapshotStore>,
        number: u64,
        place: Option<OwnedSemaphorePermit>,
    ) -> io::Result<Self> {
        let name = format!("{NEW}{number}");
        let stored = Stored { dir, store, name, is_published: AtomicBool::new(false), place };
        let snapshot = stored.store.create(&stored.name)?;
        let (chunk, hash) = (Vec::with_capacity(CHUNK), blake3::Hasher::new());
        Ok(Self { snapshot, stored, chunk, chunks: 0, bytes: 0, hash })
    }

    /// When this returns, everything is on disk, and was read back.
    pub(crate) fn finish(mut self, meta: SnapshotMeta) -> io::Result<Generation> {
        self.put_chunk()?;
        let head = Head { meta, bytes: self.bytes, hash: self.hash.finalize().into() };
        self.snapshot.put(HEAD, &head.encode())?;
        self.snapshot.finish(&mut |snapshot| {
            let mut reader = Reader::new(snapshot)?;
            if reader.head != head {
                return Err(damaged("it does not read back as it was written"));
            }
            io::copy(&mut reader, &mut io::sink()).map(drop)
        })?;
        Ok(Generation { stored: self.stored, head })
    }

    fn put_chunk(&mut self) -> io::Result<()> {
        if !self.chunk.is_empty() {
            // Small pieces would not be hashed several at a time.
            self.hash.update(&self.chunk);
            self.snapshot.put(&self.chunks.to_be_bytes(), &self.chunk)?;
            self.chunks += 1;
            self.chunk.clear();
        }
        Ok(())
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        self.bytes += taken as u64;
        if self.chunk.len() == CHUNK {
            self.put_chunk()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the table's bytes, and checks them when it comes to their end.
pub(crate) struct Reader {
    snapshot: Box<dyn SnapshotReader>,
    head: Head,
    chunk: Bytes,
    chunks: u32,
    bytes: u64,
    hash: blake3::Hasher,
}

impl Reader {
    pub(crate) fn open(store: &dyn SnapshotStore, name: &str) -> io::Result<Self> {
        Self::new(store.open(name)?)
    }

    fn new(snapshot: Box<dyn SnapshotReader>) -> io::Result<Self> {
        let head = snapshot.get(HEAD)?.ok_or_else(|| damaged("it has no head"))?;
        let (head, hash) = (Head::decode(&head)?, blake3::Hasher::new());
        Ok(Self { snapshot, head, chunk: Bytes::new(), chunks: 0, bytes: 0, hash })
    }

    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        if self.bytes == self.head.bytes {
            let is_right = self.hash.finalize() == self.head.hash;
            return if is_right { Ok(()) } else { Err(damaged("its checksum is wrong")) };
        }
        let chunk = self.snapshot.get(&self.chunks.to_be_bytes())?;
        let chunk = chunk.ok_or_else(|| damaged("a part of it is missing"))?;
        self.chunks += 1;
        self.bytes += chunk.len() as u64;
        if self.bytes > self.head.bytes {
            return Err(damaged("it is longer than it says"));
        }
        self.hash.update(&chunk);
        self.chunk = chunk.into();
        Ok(())
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.chunk.is_empty() {
            self.next_chunk()?;
        }
        let given = into.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut into[..given]);
        Ok(given)
    }
}

impl Head {
    /// Of the last entry that is covered.
    pub(crate) fn term(&self) -> u64 {
        self.meta.last_log_id.map_or(0, |id| id.committed_leader_id().term)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        out.put_u16_le(FORMAT);
        out.put_u64_le(self.bytes);
        out.extend_from_slice(&self.hash);
        put_meta(&mut out, &self.meta);
        out.put_u32_le(crc32c::crc32c(&out));
        out.to_vec()
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let Some((bytes, checksum)) = bytes.split_last_chunk() else {
            return Err(damaged("its head is too short"));
        };
        if crc32c::crc32c(bytes) != u32::from_le_bytes(*checksum) {
            return Err(damaged("the checksum of its head is wrong"));
        }
        let mut bytes = Bytes::copy_from_slice(bytes);
        let short = |_| damaged("its head is too short");
        let format = bytes.try_get_u16_le().map_err(short)?;
        if format != FORMAT {
            return Err(damaged(&format!(
                "it has format {format}, which this version of ringfence does not know"
            )));
        }
        let len = bytes.try_get_u64_le().map_err(short)?;
        let mut hash = [0; 32];
        bytes.try_copy_to_slice(&mut hash).map_err(short)?;
        let meta =
            read_meta(&mut bytes).map_err(|error: RecordError| damaged(&format!("its head: {error}")))?;
        Ok(Self { meta, bytes: len, hash })
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::mpsc;
    use std::thread;

    use tempfile::TempDir;

    use super::*;

    /// Reports which thread removes a snapshot.
    #[derive(Debug)]
    struct Removals(mpsc::Sender<Option<String>>);

    impl SnapshotStore for Removals {
        fn list(&self) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }

        fn create(&self, _: &str) -> io::Result<Box<dyn SnapshotWriter>> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn open(&self, _: &str) -> io::Result<Box<dyn SnapshotReader>> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn rename(&self, _: &Path, _: &str) -> io::Result<()> {
            Ok(())
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            assert_eq!(name, "new");
            self.0.send(thread::current().name().map(str::to_owned)).unwrap();
            Ok(())
        }

        fn path(&self, name: &str) -> PathBuf {
            name.into()
        }
    }

    /// Raft drops a snapshot that it does not install. It once waited meanwhile for all files to be removed.
    #[test]
    fn a_snapshot_that_is_not_published_is_removed_off_the_runtime_and_others_are_not() {
        let temporary = TempDir::new().unwrap();
        let dir = Arc::new(DataDir::open(temporary.path(), 1).unwrap().0);
        let (sender, removals) = mpsc::channel();
        let store: Arc<dyn SnapshotStore> = Arc::new(Removals(sender));
        let meta = SnapshotMeta { last_log_id: None, last_membership: Default::default() };
        let head = Head { meta, bytes: 0, hash: [0; 32] };
        let made = |head| {
            let (store, name) = (Arc::clone(&store), "new".to_owned());
            let is_published = AtomicBool::new(false);
            let stored = Stored { dir: Arc::clone(&dir), store, name, is_published, place: None };
            Generation { stored, head }
        };
        let published = made(head.clone());
        drop(published.publish(&store, "1".to_owned()).unwrap());
        drop(published);
        drop(made(head));
        assert_eq!(removals.recv().unwrap().unwrap(), "snapshots");
        drop(store);
        assert!(removals.recv().is_err());
    }
}
