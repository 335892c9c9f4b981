//! The seam between a log and its disk: files, and the threads that wait for them.
//!
//! A node runs on [`System`]. A simulator brings a [`Disk`] of its own, which can lose what was not synced, tear a write,
//! fill up, or hang, and which decides when a flush or other work runs.
//!
//! Calls are dynamic: each is a system call, next to which an indirect call costs nothing, and a type parameter would
//! spread to every type that holds a log.

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{self, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::process::setpriority_process;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To read, or to sync. Opens a directory, too.
    Read,
    /// To read and write; the file must exist.
    Write,
    /// To read and write; the file is created, or emptied.
    Create,
    /// To read and write whole 4 KiB blocks past the page cache; the file must exist. A file system may refuse.
    Direct,
}

/// A file system, and the threads that use it.
pub trait Disk: Debug + Send + Sync {
    /// Opens a file or, in [`Mode::Read`], a directory.
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Box<dyn File>>;

    /// The names in a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;

    /// Creates a directory and its parents; succeeds if it exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Renames a file, over another if there is one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Whether there is a file or directory.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// The whole contents of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path, Mode::Read)?;
        let mut bytes = vec![0; file.length()? as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.open(dir, Mode::Read)?.sync_all()
    }

    /// The monotonic clock that times flushes.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Runs `work`, which waits for the disk, on a thread of its own of this niceness.
    fn spawn(&self, name: &'static str, nice: i32, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let work = move || {
            if nice != 0 {
                // Only a courtesy: it works at full priority as well.
                let _ = setpriority_process(None, nice);
            }
            work();
        };
        thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }

    /// Runs the flusher of a log until that is closed, on a thread of its own. A simulator keeps the flusher to step it,
    /// and returns `None`.
    fn start(&self, flusher: Box<dyn Flush>) -> io::Result<Option<JoinHandle<io::Result<()>>>> {
        thread::Builder::new().name("wal-flusher".to_owned()).spawn(move || flusher.run()).map(Some)
    }
}

/// An open file or directory.
pub trait File: Debug + Send + Sync {
    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Fills `into` from the bytes at `at`; an error if the file ends before.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `at`.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Makes the contents durable (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;

    /// Makes contents and metadata durable, or the names in a directory (`fsync`).
    fn sync_all(&self) -> io::Result<()>;

    /// Locks the file until it is closed, against other processes and other openings by this one. Never waits.
    fn try_lock(&self) -> Result<(), TryLockError>;
}

/// The flusher of a log, which is all that writes to it.
pub trait Flush: Send {
    /// Takes what is queued; `false` if nobody waits for any of it.
    fn begin(&mut self) -> bool;

    /// Writes and syncs what was taken, and completes the appends.
    fn finish(&mut self);

    /// Waits, begins and finishes until the log is closed and all of it is written. The error that ended the log, if one
    /// did.
    fn run(self: Box<Self>) -> io::Result<()>;
}

/// The file system of this machine.
#[derive(Clone, Copy, Debug)]
pub struct System;

impl Disk for System {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Box<dyn File>> {
        let mut options = OpenOptions::new();
        options.read(true).write(mode != Mode::Read);
        match mode {
            Mode::Read | Mode::Write => {}
            Mode::Create => drop(options.create(true).truncate(true)),
            Mode::Direct => drop(options.custom_flags(OFlags::DIRECT.bits().cast_signed())),
        }
        Ok(Box::new(options.open(path)?))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }
}

impl File for fs::File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(into, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn try_lock(&self) -> Result<(), TryLockError> {
        self.try_lock()
    }
}
