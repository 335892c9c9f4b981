//! A disk in memory whose power can be cut between any two operations.
//!
//! It is weaker than a real one: after a power cut any sectors of the writes since the last sync of their file may be on
//! it, and the name changes since the last sync of their directory up to any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::TryLockError;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use ringfence_wal::disk::{Disk, File, Flush, Mode};

const SECTOR: usize = 512;
const BLOCK: usize = 4_096;

/// What may happen to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The power goes: this operation may have happened in part, and none does after it.
    PowerCut,
    /// It fails, and nothing else does.
    Error,
    /// It reports success and does nothing.
    LeftOut,
}

/// Clones are the same disk.
#[derive(Clone, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: Vec<Contents>,
    names: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Not on disk yet, in order.
    changes: Vec<Change>,
    locked: BTreeSet<usize>,
    operations: Vec<Operation>,
    faults: Vec<(usize, Fault)>,
    is_off: bool,
    flusher: Option<Box<dyn Flush>>,
    now: Option<fn() -> Instant>,
}

/// One operation that changes the disk or syncs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Create,
    Write,
    SyncData,
    SyncAll,
    SyncDir,
    Rename,
    Remove,
}

#[derive(Clone, Default)]
struct Contents {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Written since the last sync.
    writes: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
enum Change {
    Bound(PathBuf, usize),
    Removed(PathBuf),
    Renamed(PathBuf, PathBuf),
}

impl MemoryDisk {
    /// Lets a fault happen to the operation of this number, counted from 0.
    pub(crate) fn fault(self, operation: usize, fault: Fault) -> Self {
        self.lock().faults.push((operation, fault));
        self
    }

    /// Measures flushes by this clock.
    #[allow(dead_code, reason = "the tests of nodes use it")]
    pub(crate) fn clock(self, now: fn() -> Instant) -> Self {
        self.lock().now = Some(now);
        self
    }

    pub(crate) fn operations(&self) -> Vec<Operation> {
        self.lock().operations.clone()
    }

    /// One step of the flusher of the log on this disk; `false` if it had nothing to do.
    pub(crate) fn flush(&self) -> bool {
        let has_begun = self.begin_flush();
        if has_begun {
            self.finish_flush();
        }
        has_begun
    }

    /// The beginning of a step; `false` if there is nothing to do.
    pub(crate) fn begin_flush(&self) -> bool {
        self.with_flusher(|flusher| flusher.begin()).unwrap_or(false)
    }

    /// The end of a step that has begun.
    pub(crate) fn finish_flush(&self) {
        self.with_flusher(|flusher| flusher.finish());
    }

    fn with_flusher<T>(&self, work: impl FnOnce(&mut dyn Flush) -> T) -> Option<T> {
        // Not locked while it works.
        let mut flusher = self.lock().flusher.take()?;
        let done = work(&mut *flusher);
        self.lock().flusher = Some(flusher);
        Some(done)
    }

    /// A disk as this one may be after a power cut: of what was not synced nothing (`0`) or everything (`1`) is there, or
    /// some of it.
    pub(crate) fn after_power_cut(&self, seed: u64) -> Self {
        let state = self.lock();
        let mut random = Random(seed);
        let mut survives = |odds: u64| match seed {
            0 => false,
            1 => true,
            _ => !random.next().is_multiple_of(odds),
        };
        let mut names = state.durable_names.clone();
        for change in &state.changes {
            if !survives(4) {
                break;
            }
            change.apply(&mut names);
        }
        let files: Vec<Contents> =
            state.files.iter().map(|file| file.after_power_cut(&mut survives)).collect();
        Self(Arc::new(Mutex::new(State {
            files,
            durable_names: names.clone(),
            names,
            dirs: state.dirs.clone(),
            ..State::default()
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Counts an operation, and does it unless there is a fault.
    fn operate(&self, operation: Operation, work: impl FnOnce(&mut State)) -> io::Result<()> {
        let mut state = self.lock();
        if state.is_off {
            return Err(io::Error::other("the power is off"));
        }
        let number = state.operations.len();
        state.operations.push(operation);
        let fault = state.faults.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault);
        let is_sync = matches!(operation, Operation::SyncData | Operation::SyncAll | Operation::SyncDir);
        match fault {
            Some(Fault::Error) => return Err(io::Error::other("this operation fails")),
            Some(Fault::LeftOut) => return Ok(()),
            Some(Fault::PowerCut) => {
                state.is_off = true;
                if !is_sync {
                    work(&mut state);
                }
                return Err(io::Error::other("the power goes"));
            }
            None => work(&mut state),
        }
        Ok(())
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
        let (synced, left) = self.changes.drain(..).partition(|change| change.is_in(dir));
        let synced: Vec<Change> = synced;
        synced.iter().for_each(|change| change.apply(&mut self.durable_names));
        self.changes = left;
    }
}

impl Contents {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        put(&mut self.bytes, at, bytes);
        self.writes.push((at, bytes.to_vec()));
    }

    fn sync(&mut self) {
        self.durable = self.bytes.clone();
        self.writes.clear();
    }

    fn after_power_cut(&self, survives: &mut impl FnMut(u64) -> bool) -> Self {
        let mut bytes = self.durable.clone();
        for (at, written) in &self.writes {
            // Some writes vanish as a whole.
            let odds = if survives(3) { 3 } else { 1 };
            let mut done = 0;
            while done < written.len() {
                let end = written.len().min(((at + done) / SECTOR + 1) * SECTOR - at);
                if survives(odds) {
                    put(&mut bytes, at + done, &written[done..end]);
                }
                done = end;
            }
        }
        Self { durable: bytes.clone(), bytes, writes: Vec::new() }
    }
}

fn put(into: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if into.len() < at + bytes.len() {
        into.resize(at + bytes.len(), 0);
    }
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

impl std::fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryDisk")
    }
}

impl Disk for MemoryDisk {
    fn now(&self) -> Instant {
        let now = self.lock().now;
        now.map_or_else(Instant::now, |now| now())
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Box<dyn File>> {
        if self.lock().dirs.contains(path) {
            return Ok(Box::new(Dir { disk: self.clone(), path: path.to_owned() }));
        }
        let known = self.lock().names.get(path).copied();
        let file = match (known, mode) {
            (Some(file), Mode::Create) => {
                self.operate(Operation::Create, |state| state.files[file] = Contents::default())?;
                file
            }
            (Some(file), _) => file,
            (None, Mode::Create) => {
                let file = self.lock().files.len();
                self.operate(Operation::Create, |state| {
                    state.files.push(Contents::default());
                    state.change(Change::Bound(path.to_owned(), file));
                })?;
                file
            }
            (None, _) => return Err(ErrorKind::NotFound.into()),
        };
        let (disk, is_direct) = (self.clone(), mode == Mode::Direct);
        Ok(Box::new(Opened { disk, file, is_direct, is_locked: AtomicBool::new(false) }))
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

    /// Directories are on disk at once: it is files that this disk loses.
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.lock().dirs.extend(dir.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let change = Change::Renamed(from.to_owned(), to.to_owned());
        self.operate(Operation::Rename, |state| state.change(change))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if !self.lock().names.contains_key(path) {
            return Err(ErrorKind::NotFound.into());
        }
        self.operate(Operation::Remove, |state| state.change(Change::Removed(path.to_owned())))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.lock();
        Ok(state.names.contains_key(path) || state.dirs.contains(path))
    }

    /// At once, on this thread.
    fn spawn(&self, _: &'static str, _: i32, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        work();
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
    file: usize,
    is_direct: bool,
    is_locked: AtomicBool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if *self.is_locked.get_mut() {
            self.disk.lock().locked.remove(&self.file);
        }
    }
}

impl File for Opened {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.lock().files[self.file].bytes.len() as u64)
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let state = self.disk.lock();
        let bytes = state.files[self.file].bytes.get(at as usize..).unwrap_or_default();
        let bytes = bytes.get(..into.len()).ok_or(ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.is_direct {
            let places = [at as usize, bytes.len(), bytes.as_ptr().addr()];
            assert!(places.iter().all(|place| place.is_multiple_of(BLOCK)), "not in blocks: {places:?}");
        }
        self.disk.operate(Operation::Write, |state| state.files[self.file].write(at as usize, bytes))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.operate(Operation::SyncData, |state| state.files[self.file].sync())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.disk.operate(Operation::SyncAll, |state| state.files[self.file].sync())
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
        self.disk.operate(Operation::SyncDir, |state| state.sync_dir(&self.path))
    }

    fn try_lock(&self) -> Result<(), TryLockError> {
        Err(TryLockError::Error(ErrorKind::IsADirectory.into()))
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
