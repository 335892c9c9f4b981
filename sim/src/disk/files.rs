//! Files and directories, as the log uses them.

use std::ffi::OsString;
use std::fs::TryLockError;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfence_wal::disk::{Disk, File, Flush, Mode};

use super::contents::Contents;
use super::names::Change;
use super::{MemoryDisk, State};

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
