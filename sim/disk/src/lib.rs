//! A disk in memory whose power can be cut between any two operations.
//!
//! It is weaker than a real one: a power cut keeps any sectors of the writes since the last sync of their file, and any
//! prefix of the name changes since the last sync of their directory. A process that is killed loses nothing that it wrote.

mod contents;
mod files;
mod image;
mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use fastrand::Rng;
use ringfence_wal::disk::Flush;

pub use self::image::Image;

/// Work of a process for a thread of its own.
pub type Work = Box<dyn FnOnce() + Send>;
/// Sees each operation: in words, and the fault that happens to it.
type Watch = Box<dyn Fn(&dyn Fn() -> String, Option<Fault>) + Send>;

/// One operation that changes the disk or syncs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A file is created, or emptied.
    Create,
    /// A file is written.
    Write,
    /// The contents of a file are synced.
    SyncData,
    /// Contents and metadata of a file are synced.
    SyncAll,
    /// The names in a directory are synced.
    SyncDir,
    /// A file is renamed.
    Rename,
    /// A file is removed.
    Remove,
}

/// What may happen to one operation. If several happen to the same one, the first of these counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It fails, and nothing else does.
    Error,
    /// It reports success and does nothing.
    LeftOut,
    /// The machine stops: this operation may have happened in part, and none does after it.
    Stop,
}

/// A part of what was not synced: a power cut keeps it or loses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One change of a name. If it is lost, so are those after it.
    Name,
    /// One write. If it is lost, so are all its sectors.
    Write,
    /// One sector of a write, or that a file was emptied.
    Sector,
}

/// A disk. Clones are the same one.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    image: Image,
    locked: BTreeSet<usize>,
    flusher: Option<Box<dyn Flush>>,
    keeps_work: bool,
    work: Vec<Work>,
    operations: Vec<Operation>,
    /// By the number of the operation, counted from 0.
    faults: Vec<(usize, Fault)>,
    has_failed: bool,
    is_off: bool,
    /// Counts the processes that used the disk.
    process: u64,
    clock: Option<Box<dyn Fn() -> Instant + Send>>,
    watch: Option<Watch>,
}

/// The use of a disk by one process. Once that has ended, it does nothing.
#[derive(Clone, Debug)]
pub struct Use {
    disk: MemoryDisk,
    process: u64,
}

impl MemoryDisk {
    /// Measures flushes by this clock.
    pub fn clock(self, now: impl Fn() -> Instant + Send + 'static) -> Self {
        self.lock().clock = Some(Box::new(now));
        self
    }

    /// Shows each operation to `watch`.
    pub fn watch(self, watch: impl Fn(&dyn Fn() -> String, Option<Fault>) + Send + 'static) -> Self {
        self.lock().watch = Some(Box::new(watch));
        self
    }

    /// Keeps work that is spawned until it is [taken](Self::take_work). Otherwise it is done at once.
    pub fn keep_work(self) -> Self {
        self.lock().keeps_work = true;
        self
    }

    /// Plans a fault of the operation that comes after `after` others. Of each kind, one is planned at most: the last.
    pub fn fault(&self, after: usize, fault: Fault) {
        let mut state = self.lock();
        let at = state.operations.len().saturating_add(after);
        state.faults.retain(|(_, known)| *known != fault);
        state.faults.push((at, fault));
    }

    /// Takes back the faults that have not happened yet.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Whether an operation of this process has failed.
    pub fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    /// Whether a fault has stopped the machine.
    pub fn is_off(&self) -> bool {
        self.lock().is_off
    }

    /// All operations so far.
    pub fn operations(&self) -> Vec<Operation> {
        self.lock().operations.clone()
    }

    /// One step of the flusher of the log on this disk; `false` if it had nothing to do.
    pub fn flush(&self) -> bool {
        let has_begun = self.begin_flush();
        if has_begun {
            self.finish_flush();
        }
        has_begun
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

    /// The work that was spawned since the last call, if it is [kept](Self::keep_work).
    pub fn take_work(&self) -> Vec<Work> {
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
        state.faults.clear();
        (state.is_off, state.has_failed) = (false, false);
        state.locked.clear();
    }

    /// Cuts the power, once the process has ended. `keeps` decides of each part that was not synced. Returns whether a write was
    /// torn: kept in part.
    pub fn cut_power(&self, keeps: &mut dyn FnMut(Part) -> bool) -> bool {
        self.lock().image.cut_power(keeps)
    }

    /// A disk as this one may be after a power cut: of what was not synced nothing (`0`) or everything (`1`) is there, or
    /// some of it.
    pub fn after_power_cut(&self, seed: u64) -> Self {
        let left = Self::default();
        left.lock().image = self.lock().image.clone();
        let mut rng = Rng::with_seed(seed);
        left.cut_power(&mut |part| match (seed, part) {
            (0, _) => false,
            (1, _) => true,
            (_, Part::Name) => rng.u8(..4) != 0,
            // Some writes vanish as a whole.
            (_, Part::Write | Part::Sector) => rng.u8(..3) != 0,
        });
        left
    }

    /// Copies all that a reader sees now.
    pub fn copy(&self) -> Image {
        self.lock().image.synced()
    }

    /// Has the contents of a copy, once the process that used the disk has ended.
    pub fn turn_back(&self, copy: &Image) {
        self.lock().image = copy.clone();
    }

    /// The use of this disk by the process that runs now.
    pub fn in_use(&self) -> Use {
        Use { disk: self.clone(), process: self.lock().process }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while the disk is locked")
    }
}

impl Use {
    /// Counts an operation on something beside the files, and does it unless there is a fault.
    pub fn operate(
        &self,
        operation: Operation,
        what: impl Fn() -> String,
        work: impl FnOnce(),
    ) -> io::Result<()> {
        self.operate_on(operation, |_| what(), |_| work())
    }

    fn operate_on(
        &self,
        operation: Operation,
        what: impl Fn(&Image) -> String,
        work: impl FnOnce(&mut Image),
    ) -> io::Result<()> {
        let mut state = self.disk.lock();
        if state.is_off || state.process != self.process {
            return Err(io::Error::other("the machine has stopped"));
        }
        let number = state.operations.len();
        state.operations.push(operation);
        let fault = state.faults.iter().filter(|(at, _)| *at == number).map(|(_, fault)| *fault).min();
        if let Some(watch) = &state.watch {
            watch(&|| what(&state.image), fault);
        }
        match fault {
            None => work(&mut state.image),
            Some(Fault::LeftOut) => {}
            Some(Fault::Error) => {
                state.has_failed = true;
                return Err(io::Error::other("this operation fails"));
            }
            Some(Fault::Stop) => {
                state.is_off = true;
                if !operation.is_sync() {
                    work(&mut state.image);
                }
                return Err(io::Error::other("the machine stops"));
            }
        }
        Ok(())
    }

    /// Looks at the files.
    fn look<R>(&self, look: impl FnOnce(&Image) -> R) -> R {
        look(&self.disk.lock().image)
    }
}

impl Operation {
    fn is_sync(self) -> bool {
        matches!(self, Self::SyncData | Self::SyncAll | Self::SyncDir)
    }
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryDisk")
    }
}
