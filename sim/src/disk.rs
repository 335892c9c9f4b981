//! The disk of one machine, in memory.
//!
//! It is weaker than a real one: a power cut keeps any sectors of the writes since the last sync of their file, and any
//! prefix of the name changes since the last sync of their directory. A killed process loses nothing that it wrote.
//!
//! A fuse stops the machine between any two operations.

mod contents;
mod copy;
mod files;
mod names;
mod snapshots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use fastrand::Rng;
use ringfence_raft::{SnapshotStore, Storage, WallClock};
use ringfence_wal::disk::Flush;

use self::contents::Contents;
pub use self::copy::Copy;
use self::names::Change;
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

impl Storage for MemoryDisk {
    fn snapshots(&self, dir: &Path) -> io::Result<Arc<dyn SnapshotStore>> {
        Ok(Arc::new(Snapshots { disk: self.clone(), process: self.lock().process, dir: dir.to_owned() }))
    }
}
