//! One snapshot on disk: a sled database of its own, written once and never changed.
//!
//! ```text
//! key "head"          format, length and BLAKE3 of the table's bytes, last log id, membership, checksum of all this
//! key 0, 1, 2 …       the table's bytes in chunks of 4 KiB
//! ```
//! sled leaves it to the system when its files reach the disk, so every file and folder is synced here before the
//! generation counts. Opening a sled database changes its files, and syncs them; so what counts is read by way of a copy,
//! which is removed again. What was just written is read back in its place: a whole copy, synced at once, holds up the log.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::consensus::{Consensus, SnapshotMeta};
use crate::storage::record::{RecordError, put_meta, read_meta};

/// What the names of folders begin with that are not whole yet, and of copies.
pub(super) const NEW: &str = "new-";
pub(super) const READING: &str = "reading-";

const FORMAT: u16 = 2;
const HEAD: &[u8] = b"head";
/// The size of a chunk in bytes: sled keeps larger values in files of their own.
const CHUNK: usize = 4 << 10;
/// How many chunks go to sled at once.
const BATCH: usize = 64;
/// What sled may keep in memory, in bytes. Everything is written, and read, once and in order.
const CACHE: u64 = 8 << 20;
/// How long it is looked, and how often, whether sled has let go of a database.
const LET_GO: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);

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

/// A whole snapshot on disk. One that is dropped before it was published is removed.
#[derive(Debug)]
pub(crate) struct Generation {
    path: PathBuf,
    head: Head,
    is_published: AtomicBool,
}

impl Generation {
    pub(super) fn published(path: PathBuf, head: Head) -> Self {
        Self { path, head, is_published: AtomicBool::new(true) }
    }

    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// To read it with. It may be replaced meanwhile.
    pub(crate) fn reader(&self) -> io::Result<Reader> {
        let beside = self.path.parent().unwrap_or(Path::new("."));
        Reader::open(&self.path, beside)
    }

    /// To read with what was just written, in its place. sled lets go of a database a moment after it was closed; where that
    /// takes long, or something is wrong, a copy tells.
    #[expect(
        clippy::disallowed_methods,
        reason = "on a thread of its own: how long sled's takes, which nothing simulates"
    )]
    pub(super) fn read_back(&self) -> io::Result<Reader> {
        let closed = Instant::now();
        while closed.elapsed() < LET_GO {
            if let Ok(db) = open(&self.path, false) {
                return Reader::of(db, None);
            }
            thread::sleep(LOOK);
        }
        self.reader()
    }

    /// The last entry that it covers.
    pub(crate) fn index(&self) -> Option<u64> {
        self.head.meta.last_log_id.map(|id| id.index())
    }

    /// Gives it its final place. The folder above is to be synced then.
    pub(super) fn publish(&self, path: PathBuf) -> io::Result<Self> {
        fs::rename(&self.path, &path)?;
        self.is_published.store(true, Ordering::Relaxed);
        Ok(Self::published(path, self.head.clone()))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !*self.is_published.get_mut() {
            remove(&self.path);
        }
    }
}

/// A folder that is removed when this is dropped.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    /// A path in the folder `parent` that nothing else uses.
    fn new(parent: &Path, name: &str) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self(parent.join(format!("{name}{}-{}", std::process::id(), NUMBERS.fetch_add(1, Ordering::Relaxed))))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "a folder of a snapshot cannot be removed");
        }
        _ => {}
    }
}

/// Writes a generation: the table's bytes go in by [`Write`].
pub(crate) struct Writer {
    // Dropped, and so closed, before its folder is removed.
    db: sled::Db,
    folder: Scratch,
    chunk: Vec<u8>,
    chunks: u32,
    batch: sled::Batch,
    bytes: u64,
    hash: blake3::Hasher,
}

impl Writer {
    /// In a new folder in `parent`.
    pub(super) fn create(parent: &Path) -> io::Result<Self> {
        let folder = Scratch::new(parent, NEW);
        let db = open(&folder.0, true)?;
        let chunk = Vec::with_capacity(CHUNK);
        let (batch, hash) = (sled::Batch::default(), blake3::Hasher::new());
        Ok(Self { db, folder, chunk, chunks: 0, batch, bytes: 0, hash })
    }

    /// How many bytes of the table went in.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When this returns, everything is on disk, and was read back.
    pub(crate) fn finish(mut self, meta: SnapshotMeta) -> io::Result<Generation> {
        self.put_chunk();
        let head = Head { meta, bytes: self.bytes, hash: self.hash.finalize().into() };
        self.batch.insert(HEAD, head.encode());
        self.db.apply_batch(self.batch)?;
        self.db.flush()?;
        drop(self.db);
        let path = std::mem::take(&mut self.folder.0);
        // From here on the generation answers for its folder.
        let made = Generation { path, head, is_published: AtomicBool::new(false) };
        let mut reader = made.read_back()?;
        if reader.head != made.head {
            return Err(damaged("it does not read back as it was written"));
        }
        io::copy(&mut reader, &mut io::sink())?;
        // Opening it may have changed something.
        reader.db.flush()?;
        drop(reader);
        sync_all(&made.path)?;
        Ok(made)
    }

    fn put_chunk(&mut self) {
        if !self.chunk.is_empty() {
            // Small pieces would not be hashed several at a time.
            self.hash.update(&self.chunk);
            self.batch.insert(&self.chunks.to_be_bytes(), self.chunk.as_slice());
            self.chunks += 1;
            self.chunk.clear();
        }
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        self.bytes += taken as u64;
        if self.chunk.len() == CHUNK {
            self.put_chunk();
            if (self.chunks as usize).is_multiple_of(BATCH) {
                self.db.apply_batch(std::mem::take(&mut self.batch))?;
            }
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the table's bytes, and has them checked when it comes to their end.
pub(crate) struct Reader {
    // Dropped, and so closed, before its folder is removed.
    db: sled::Db,
    _folder: Option<Scratch>,
    head: Head,
    chunk: Bytes,
    chunks: u32,
    bytes: u64,
    hash: blake3::Hasher,
}

impl Reader {
    /// The generation at `path`, by way of a copy in the folder `copies`.
    pub(crate) fn open(path: &Path, copies: &Path) -> io::Result<Self> {
        let folder = Scratch::new(copies, READING);
        copy_all(path, &folder.0)?;
        Self::of(open(&folder.0, false)?, Some(folder))
    }

    /// Of this database, in this folder if it is to be removed in the end.
    fn of(db: sled::Db, folder: Option<Scratch>) -> io::Result<Self> {
        let head = db.get(HEAD).map_err(of_sled)?.ok_or_else(|| damaged("it has no head"))?;
        let head = Head::decode(&head)?;
        Ok(Self {
            db,
            _folder: folder,
            head,
            chunk: Bytes::new(),
            chunks: 0,
            bytes: 0,
            hash: blake3::Hasher::new(),
        })
    }

    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        if self.bytes == self.head.bytes {
            let is_right = self.hash.finalize() == self.head.hash;
            return if is_right { Ok(()) } else { Err(damaged("its checksum is wrong")) };
        }
        let chunk = self.db.get(self.chunks.to_be_bytes()).map_err(of_sled)?;
        let chunk = chunk.ok_or_else(|| damaged("a part of it is missing"))?;
        self.chunks += 1;
        self.bytes += chunk.len() as u64;
        if self.bytes > self.head.bytes {
            return Err(damaged("it is longer than it says"));
        }
        self.hash.update(&chunk);
        self.chunk = Bytes::copy_from_slice(&chunk);
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

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the snapshot is damaged: {what}"))
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

/// Syncs all files in the folder, and the folder.
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
