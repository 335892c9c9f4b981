//! The disk of one machine, in memory.
//!
//! It is weaker than a real one: a power cut keeps any sectors of the writes since the last sync of their file, and any
//! prefix of the name changes since the last sync of their directory. A killed process loses nothing that it wrote.
//!
//! A fuse stops the machine between any two operations.

mod contents;
mod copy;
mod snapshots;

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
use ringfence_raft::{SnapshotStore, Storage, WallClock};
use ringfence_wal::disk::{Disk, File, Flush, Mode};

use self::contents::Contents;
pub use self::copy::Copy;
use self::snapshots::{Snapshot, Snapshots};
use crate::story::Story;

/// The unix time, in milliseconds, at which a run begins: in January 2027.
const EPOCH: u64 = 1_800_000_000_000;

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
    /// An operation of this process has failed.
    has_failed: bool,
    is_off: bool,
    /// Counts the processes that used the disk: handles of earlier ones do nothing.
    process: u64,
    node: u64,
    story: Story,
    /// Where its clock begins.
    base: Instant,
    /// Milliseconds since then.
    now: u64,
}

#[derive(Clone)]
enum Change {
    Bound(PathBuf, usize),
    Removed(PathBuf),
    Renamed(PathBuf, PathBuf),
}

impl MemoryDisk {
    /// The empty disk of a node.
    pub fn new(node: u64, story: Story) -> Self {
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
            has_failed: false,
            is_off: false,
            process: 0,
            node,
            story,
            base: Instant::now(),
            now: 0,
        })))
    }

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

    /// Whether an operation of this process has failed.
    pub fn has_failed(&self) -> bool {
        self.lock().has_failed
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

    /// Advances the clock that times flushes to `now`, in milliseconds.
    pub fn advance_to(&self, now: u64) {
        self.lock().now = now;
    }

    /// The wall clock of the machine, `ahead` milliseconds ahead of the right time.
    pub fn wall_clock(&self, ahead: i64) -> WallClock {
        let disk = self.clone();
        WallClock::simulated(move || (EPOCH + disk.lock().now).saturating_add_signed(ahead))
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

    /// Ends the process that uses the disk: `process` is all that there is of it. What it wrote stays.
    ///
    /// A runtime drops its tasks in an order that nobody fixes, and they may use the disk as they are dropped. A process that is
    /// killed does nothing more: so none of that is done.
    pub fn end_process<P>(&self, process: P) {
        let (flusher, work) = {
            let mut state = self.lock();
            state.is_off = true;
            (state.flusher.take(), std::mem::take(&mut state.work))
        };
        drop((flusher, work, process));
        while !self.take_work().is_empty() {}
        let mut state = self.lock();
        state.process += 1;
        state.is_off = false;
        (state.fuse, state.error, state.has_failed) = (None, None, false);
        state.locked.clear();
    }

    /// Cuts the power, once the process has ended. Of what was not synced, `rng` decides what is kept. Returns whether a write
    /// was torn: kept in part.
    pub fn cut_power(&self, rng: &mut Rng) -> bool {
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
        let mut is_torn = false;
        for file in &mut state.files {
            is_torn |= file.cut_power(rng, odds);
        }
        state.snapshots.retain(|_, snapshot| snapshot.is_finished);
        is_torn
    }

    /// The size of the largest snapshot.
    pub fn snapshot_bytes(&self) -> u64 {
        let state = self.lock();
        let sizes =
            state.snapshots.values().map(|it| it.contents.values().map(|value| value.len() as u64).sum());
        sizes.max().unwrap_or(0)
    }

    /// Flips one bit of a snapshot; `false` if there is none.
    pub fn rot_snapshot(&self, rng: &mut Rng) -> bool {
        let mut state = self.lock();
        // Until it is renamed, a node does not use a snapshot.
        let in_use = |name: &&String| name.bytes().all(|byte| byte.is_ascii_digit());
        let in_use: Vec<String> = state.snapshots.keys().filter(in_use).cloned().collect();
        if in_use.len() < 2 {
            return false;
        }
        // The older one: they are never both damaged.
        let Some(snapshot) = in_use.first().and_then(|name| state.snapshots.get_mut(name)) else {
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
    fn operate<R>(
        &self,
        process: u64,
        is_sync: bool,
        what: impl FnOnce(&State) -> String,
        work: impl FnOnce(&mut State) -> R,
    ) -> io::Result<R> {
        let mut state = self.lock();
        if state.is_off || state.process != process {
            return Err(io::Error::other("the machine has stopped"));
        }
        state.operations += 1;
        state.story.detail(state.now, || format!("node {} {}", state.node, what(&state)));
        if state.error == Some(state.operations) {
            (state.error, state.has_failed) = (None, true);
            state.story.tell(state.now, format!("an operation of the disk of node {} fails", state.node));
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

impl State {
    fn name(&self, file: usize) -> String {
        let path = self.names.iter().find(|(_, known)| **known == file).map(|(path, _)| path);
        path.map_or_else(|| "a removed file".to_owned(), |path| path.display().to_string())
    }
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
                let what = |_: &State| format!("empties {}", path.display());
                self.operate(process, false, what, |state| state.files[file].truncate())?;
                file
            }
            (Some(file), _) => file,
            (None, Mode::Create) => {
                let what = |_: &State| format!("creates {}", path.display());
                self.operate(process, false, what, |state| {
                    let file = state.files.len();
                    state.files.push(Contents::default());
                    state.change(Change::Bound(path.to_owned(), file));
                    file
                })?
            }
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
        let what = |_: &State| format!("renames {} to {}", from.display(), to.display());
        self.operate(process, false, what, |state| state.change(change))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let process = {
            let state = self.lock();
            if !state.names.contains_key(path) {
                return Err(ErrorKind::NotFound.into());
            }
            state.process
        };
        let what = |_: &State| format!("removes {}", path.display());
        self.operate(process, false, what, |state| state.change(Change::Removed(path.to_owned())))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.lock();
        Ok(state.names.contains_key(path) || state.dirs.contains(path))
    }

    fn now(&self) -> Instant {
        let state = self.lock();
        state.base + Duration::from_millis(state.now)
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
        let what = |state: &State| format!("syncs {}", state.name(self.file));
        self.disk.operate(self.process, true, what, |state| state.files[self.file].unsynced.clear())
    }
}

impl File for Opened {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.lock().files[self.file].length as u64)
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.disk.lock().files[self.file].read(into, at as usize)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let what =
            |state: &State| format!("writes {} bytes at {at} of {}", bytes.len(), state.name(self.file));
        self.disk.operate(self.process, false, what, |state| state.files[self.file].write(at as usize, bytes))
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
        let what = |_: &State| format!("syncs {}", self.path.display());
        self.disk.operate(self.process, true, what, |state| state.sync_dir(&self.path))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the disk as it is dropped, as tasks do.
    struct Untidy(MemoryDisk);

    impl Drop for Untidy {
        fn drop(&mut self) {
            let _ = self.0.remove(Path::new("/file"));
            let _ = self.0.spawn("more", 0, Box::new(|| {}));
        }
    }

    #[test]
    fn a_disk_that_is_turned_back_has_what_it_had() {
        let disk = MemoryDisk::new(1, Story::default());
        let write = |path: &str, bytes: &[u8]| {
            disk.open(Path::new(path), Mode::Create).unwrap().write_at(bytes, 0).unwrap();
        };
        write("/a", b"old");
        let copy = disk.copy();
        write("/a", b"newer");
        write("/b", b"more");
        disk.end_process(());
        disk.turn_back(&copy);
        disk.cut_power(&mut Rng::with_seed(1));
        let mut read = [0; 3];
        let file = disk.open(Path::new("/a"), Mode::Write).unwrap();
        file.read_at(&mut read, 0).unwrap();
        assert_eq!((file.length().unwrap(), &read), (3, b"old"));
        assert!(!disk.exists(Path::new("/b")).unwrap());
    }

    #[test]
    fn a_process_that_has_ended_does_nothing_as_it_is_dropped() {
        let disk = MemoryDisk::new(1, Story::default());
        drop(disk.open(Path::new("/file"), Mode::Create).unwrap());
        let queued = Untidy(disk.clone());
        disk.spawn("work", 0, Box::new(move || drop(queued))).unwrap();
        let operations = disk.operations();
        disk.end_process(Untidy(disk.clone()));
        assert!(disk.exists(Path::new("/file")).unwrap());
        assert_eq!((disk.operations(), disk.take_work().len()), (operations, 0));
        // The next process uses it again.
        disk.remove(Path::new("/file")).unwrap();
    }
}
