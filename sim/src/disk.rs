//! The disk of one machine, in memory.
//!
//! It is weaker than a real one: a power cut keeps any sectors of the writes since the last sync of their file, and any
//! prefix of the name changes since the last sync of their directory. A killed process loses nothing that it wrote.
//!
//! A fuse stops the machine between any two operations.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::TryLockError;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use ringfence_raft::{SnapshotReader, SnapshotStore, SnapshotWriter, Storage};
use ringfence_wal::disk::{Disk, File, Flush, Mode};

const SECTOR: usize = 512;

/// A disk. Clones are the same one.
#[derive(Clone)]
pub struct MemoryDisk(Arc<Mutex<State>>);

struct State {
    files: Vec<Contents>,
    names: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Name changes that are not durable yet, in order.
    changes: Vec<Change>,
    locked: BTreeSet<usize>,
    snapshots: BTreeMap<String, Snapshot>,
    flusher: Option<Box<dyn Flush>>,
    work: Vec<Box<dyn FnOnce() + Send>>,
    /// Operations so far.
    operations: u64,
    /// The machine stops at the operation of this number.
    fuse: Option<u64>,
    /// The operation of this number fails.
    error: Option<u64>,
    is_off: bool,
    /// Counts the processes that used the disk: handles of earlier ones do nothing.
    process: u64,
    now: Instant,
}

#[derive(Default)]
struct Contents {
    bytes: Vec<u8>,
    /// Since the last sync, in order.
    unsynced: Vec<Write>,
}

struct Write {
    at: usize,
    old: Vec<u8>,
    /// The length of the file before.
    old_length: usize,
    new: Vec<u8>,
}

#[derive(Clone)]
enum Change {
    Bound(PathBuf, usize),
    Removed(PathBuf),
    Renamed(PathBuf, PathBuf),
}

#[derive(Clone, Default)]
struct Snapshot {
    contents: Arc<BTreeMap<Vec<u8>, Vec<u8>>>,
    is_finished: bool,
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            files: Vec::new(),
            names: BTreeMap::new(),
            dirs: BTreeSet::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            locked: BTreeSet::new(),
            snapshots: BTreeMap::new(),
            flusher: None,
            work: Vec::new(),
            operations: 0,
            fuse: None,
            error: None,
            is_off: false,
            process: 0,
            now: Instant::now(),
        })))
    }
}

impl MemoryDisk {
    /// Stops the machine at the `operations`-th operation from now on.
    pub fn light_fuse(&self, operations: u64) {
        let mut state = self.lock();
        state.fuse = Some(state.operations + operations);
    }

    /// Fails the `operations`-th operation from now on.
    pub fn fail_operation(&self, operations: u64) {
        let mut state = self.lock();
        state.error = Some(state.operations + operations);
    }

    /// Takes back the faults that have not happened yet.
    pub fn heal(&self) {
        let mut state = self.lock();
        (state.fuse, state.error) = (None, None);
    }

    /// Whether the fuse has stopped the machine.
    pub fn is_off(&self) -> bool {
        self.lock().is_off
    }

    /// How many operations there were.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Advances the clock that times flushes.
    pub fn advance(&self, by: Duration) {
        self.lock().now += by;
    }

    /// Takes what is queued for the log; `false` if there is nothing to write.
    pub fn begin_flush(&self) -> bool {
        self.with_flusher(|flusher| flusher.begin()).unwrap_or(false)
    }

    /// Writes and syncs what [`MemoryDisk::begin_flush`] took.
    pub fn finish_flush(&self) {
        self.with_flusher(|flusher| flusher.finish());
    }

    /// The disk is not locked while the flusher works: it uses the disk.
    fn with_flusher<R>(&self, work: impl FnOnce(&mut dyn Flush) -> R) -> Option<R> {
        let (mut flusher, process) = {
            let mut state = self.lock();
            (state.flusher.take()?, state.process)
        };
        let result = work(&mut *flusher);
        let mut state = self.lock();
        if state.process == process {
            state.flusher = Some(flusher);
        }
        Some(result)
    }

    /// The work that was spawned since the last call.
    pub fn take_work(&self) -> Vec<Box<dyn FnOnce() + Send>> {
        std::mem::take(&mut self.lock().work)
    }

    /// Ends the process that uses the disk. What it wrote stays.
    pub fn end_process(&self) {
        let (flusher, work) = {
            let mut state = self.lock();
            state.process += 1;
            state.is_off = false;
            (state.fuse, state.error) = (None, None);
            state.locked.clear();
            (state.flusher.take(), std::mem::take(&mut state.work))
        };
        // They may use the disk, or run callbacks, as they are dropped.
        drop((flusher, work));
    }

    /// Cuts the power. Of what was not synced, `rng` decides what is kept.
    pub fn cut_power(&self, rng: &mut Rng) {
        self.end_process();
        let mut state = self.lock();
        let odds = *rng.choice(&[0, 10, 50, 90, 100]).unwrap_or(&0);
        let mut names = state.durable_names.clone();
        for change in std::mem::take(&mut state.changes) {
            if rng.u32(0..100) >= odds {
                break;
            }
            change.apply(&mut names);
        }
        state.durable_names = names.clone();
        state.names = names;
        for file in &mut state.files {
            file.cut_power(rng, odds);
        }
        state.snapshots.retain(|_, snapshot| snapshot.is_finished);
    }

    /// Flips one bit of a snapshot; `false` if there is none.
    pub fn rot_snapshot(&self, rng: &mut Rng) -> bool {
        let mut state = self.lock();
        let finished: Vec<String> =
            state.snapshots.iter().filter(|(_, it)| it.is_finished).map(|(name, _)| name.clone()).collect();
        if finished.len() < 2 {
            return false;
        }
        // The older one: they are never both damaged.
        let Some(snapshot) = finished.first().and_then(|name| state.snapshots.get_mut(name)) else {
            return false;
        };
        let mut contents = (*snapshot.contents).clone();
        let place = rng.usize(..contents.len().max(1));
        let Some(value) = contents.values_mut().nth(place).filter(|value| !value.is_empty()) else {
            return false;
        };
        let byte = rng.usize(..value.len());
        value[byte] ^= 1 << rng.u32(..8);
        snapshot.contents = Arc::new(contents);
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while the disk is locked")
    }

    /// Counts an operation of `process`, and does it unless there is a fault.
    fn operate<R>(&self, process: u64, is_sync: bool, work: impl FnOnce(&mut State) -> R) -> io::Result<R> {
        let mut state = self.lock();
        if state.is_off || state.process != process {
            return Err(io::Error::other("the machine has stopped"));
        }
        state.operations += 1;
        if state.error == Some(state.operations) {
            state.error = None;
            return Err(io::Error::other("this operation fails"));
        }
        if state.fuse == Some(state.operations) {
            state.is_off = true;
            if !is_sync {
                work(&mut state);
            }
            return Err(io::Error::other("the machine stops"));
        }
        Ok(work(&mut state))
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Bound(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Removed(path) => drop(names.remove(path)),
            Self::Renamed(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }

    fn is_in(&self, dir: &Path) -> bool {
        let (Self::Bound(path, _) | Self::Removed(path) | Self::Renamed(path, _)) = self;
        path.parent() == Some(dir)
    }
}

impl State {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    fn sync_dir(&mut self, dir: &Path) {
        let (synced, left): (Vec<Change>, Vec<Change>) =
            self.changes.drain(..).partition(|change| change.is_in(dir));
        synced.iter().for_each(|change| change.apply(&mut self.durable_names));
        self.changes = left;
    }
}

impl Contents {
    fn write(&mut self, at: usize, new: &[u8]) {
        let old_length = self.bytes.len();
        let old = self.bytes.get(at..old_length.min(at + new.len())).unwrap_or_default().to_vec();
        put(&mut self.bytes, at, new);
        self.unsynced.push(Write { at, old, old_length, new: new.to_vec() });
    }

    /// Each sector of an unsynced write is kept in `odds` of 100 cases.
    fn cut_power(&mut self, rng: &mut Rng, odds: u32) {
        let unsynced = std::mem::take(&mut self.unsynced);
        for write in unsynced.iter().rev() {
            self.bytes.truncate(write.old_length);
            self.bytes[write.at.min(write.old_length)..][..write.old.len()].copy_from_slice(&write.old);
        }
        for Write { at, new, .. } in unsynced {
            let mut done = 0;
            while done < new.len() {
                let end = new.len().min(((at + done) / SECTOR + 1) * SECTOR - at);
                if rng.u32(0..100) < odds {
                    put(&mut self.bytes, at + done, &new[done..end]);
                }
                done = end;
            }
        }
    }
}

fn put(into: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if into.len() < at + bytes.len() {
        into.resize(at + bytes.len(), 0);
    }
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryDisk")
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Box<dyn File>> {
        let (process, known, is_dir) = {
            let state = self.lock();
            (state.process, state.names.get(path).copied(), state.dirs.contains(path))
        };
        if is_dir {
            return Ok(Box::new(Dir { disk: self.clone(), process, path: path.to_owned() }));
        }
        let file = match (known, mode) {
            (Some(file), Mode::Create) => {
                self.operate(process, false, |state| {
                    let contents = &mut state.files[file];
                    let old = std::mem::take(&mut contents.bytes);
                    let old_length = old.len();
                    contents.unsynced.push(Write { at: 0, old, old_length, new: Vec::new() });
                })?;
                file
            }
            (Some(file), _) => file,
            (None, Mode::Create) => self.operate(process, false, |state| {
                let file = state.files.len();
                state.files.push(Contents::default());
                state.change(Change::Bound(path.to_owned(), file));
                file
            })?,
            (None, _) => return Err(ErrorKind::NotFound.into()),
        };
        Ok(Box::new(Opened { disk: self.clone(), process, file, is_locked: AtomicBool::new(false) }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let state = self.lock();
        if !state.dirs.contains(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        let within = |path: &&PathBuf| path.parent() == Some(dir);
        let paths = state.names.keys().chain(&state.dirs).filter(within);
        Ok(paths.filter_map(|path| path.file_name()).map(OsString::from).collect())
    }

    /// Directories are durable at once: it is files that this disk loses.
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.lock().dirs.extend(dir.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let process = self.lock().process;
        let change = Change::Renamed(from.to_owned(), to.to_owned());
        self.operate(process, false, |state| state.change(change))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let process = {
            let state = self.lock();
            if !state.names.contains_key(path) {
                return Err(ErrorKind::NotFound.into());
            }
            state.process
        };
        self.operate(process, false, |state| state.change(Change::Removed(path.to_owned())))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.lock();
        Ok(state.names.contains_key(path) || state.dirs.contains(path))
    }

    fn now(&self) -> Instant {
        self.lock().now
    }

    fn spawn(&self, _: &'static str, _: i32, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.lock().work.push(work);
        Ok(())
    }

    fn start(&self, flusher: Box<dyn Flush>) -> io::Result<Option<JoinHandle<io::Result<()>>>> {
        self.lock().flusher = Some(flusher);
        Ok(None)
    }
}

#[derive(Debug)]
struct Opened {
    disk: MemoryDisk,
    process: u64,
    file: usize,
    is_locked: AtomicBool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if *self.is_locked.get_mut() {
            let mut state = self.disk.lock();
            if state.process == self.process {
                state.locked.remove(&self.file);
            }
        }
    }
}

impl Opened {
    fn sync(&self) -> io::Result<()> {
        self.disk.operate(self.process, true, |state| state.files[self.file].unsynced.clear())
    }
}

impl File for Opened {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.lock().files[self.file].bytes.len() as u64)
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let state = self.disk.lock();
        let bytes = state.files[self.file].bytes.get(at as usize..).unwrap_or_default();
        into.copy_from_slice(bytes.get(..into.len()).ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.disk.operate(self.process, false, |state| state.files[self.file].write(at as usize, bytes))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn try_lock(&self) -> Result<(), TryLockError> {
        if !self.disk.lock().locked.insert(self.file) {
            return Err(TryLockError::WouldBlock);
        }
        self.is_locked.store(true, Relaxed);
        Ok(())
    }
}

#[derive(Debug)]
struct Dir {
    disk: MemoryDisk,
    process: u64,
    path: PathBuf,
}

impl File for Dir {
    fn length(&self) -> io::Result<u64> {
        Err(ErrorKind::IsADirectory.into())
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(ErrorKind::IsADirectory.into())
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(ErrorKind::IsADirectory.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.disk.operate(self.process, true, |state| state.sync_dir(&self.path))
    }

    fn try_lock(&self) -> Result<(), TryLockError> {
        Err(TryLockError::Error(ErrorKind::IsADirectory.into()))
    }
}

impl Storage for MemoryDisk {
    fn snapshots(&self, dir: &Path) -> io::Result<Arc<dyn SnapshotStore>> {
        Ok(Arc::new(Snapshots { disk: self.clone(), process: self.lock().process, dir: dir.to_owned() }))
    }
}

/// The snapshots of a machine. Each step of writing one is an operation of its disk.
#[derive(Debug)]
struct Snapshots {
    disk: MemoryDisk,
    process: u64,
    dir: PathBuf,
}

impl SnapshotStore for Snapshots {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.disk.lock().snapshots.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotWriter>> {
        self.disk.operate(self.process, false, |state| {
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
        self.disk.operate(self.process, false, |state| {
            let snapshot = state.snapshots.remove(from).ok_or(ErrorKind::NotFound)?;
            state.snapshots.insert(to.to_owned(), snapshot);
            Ok(())
        })?
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.operate(self.process, false, |state| drop(state.snapshots.remove(name)))
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
        self.disk.operate(self.process, false, |_| ())?;
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
        disk.operate(process, true, |state| {
            state.snapshots.insert(name, Snapshot { contents, is_finished: true });
        })
    }
}

struct Reader(Arc<BTreeMap<Vec<u8>, Vec<u8>>>);

impl SnapshotReader for Reader {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.get(key).cloned())
    }
}
