//! Files and directories, as the log uses them.

use std::ffi::OsString;
use std::fs::TryLockError;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

use ringfence_wal::disk::{Disk, File, Flush, Mode};

use crate::contents::Contents;
use crate::image::Image;
use crate::names::Change;
use crate::{MemoryDisk, Operation, Use, Work};

const BLOCK: usize = 4_096;

impl Disk for MemoryDisk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Box<dyn File>> {
        let by = self.in_use();
        let (mut file, is_dir) =
            by.look(|image| (image.names.known.get(path).copied(), image.dirs.contains(path)));
        if is_dir {
            return Ok(Box::new(Dir { by, path: path.to_owned() }));
        }
        if mode == Mode::Create {
            let what = if file.is_some() { "empties" } else { "creates" };
            let create = |image: &mut Image| match file {
                Some(file) => image.files[file].empty(),
                None => {
                    file = Some(image.files.len());
                    image.names.change(Change::Bound(path.to_owned(), image.files.len()));
                    image.files.push(Contents::default());
                }
            };
            by.operate_on(Operation::Create, |_| format!("{what} {}", path.display()), create)?;
        }
        let file = file.ok_or(ErrorKind::NotFound)?;
        Ok(Box::new(Opened { by, file, is_direct: mode == Mode::Direct, is_locked: AtomicBool::new(false) }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.in_use().look(|image| {
            if !image.dirs.contains(dir) {
                return Err(ErrorKind::NotFound.into());
            }
            let within = |path: &&PathBuf| path.parent() == Some(dir);
            let paths = image.names.known.keys().chain(&image.dirs).filter(within);
            Ok(paths.filter_map(|path| path.file_name()).map(OsString::from).collect())
        })
    }

    /// Directories are durable at once: it is files that this disk loses.
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.lock().image.dirs.extend(dir.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let change = Change::Renamed(from.to_owned(), to.to_owned());
        let what = |_: &Image| format!("renames {} to {}", from.display(), to.display());
        self.in_use().operate_on(Operation::Rename, what, |image| image.names.change(change))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let by = self.in_use();
        if !by.look(|image| image.names.known.contains_key(path)) {
            return Err(ErrorKind::NotFound.into());
        }
        let change = Change::Removed(path.to_owned());
        let what = |_: &Image| format!("removes {}", path.display());
        by.operate_on(Operation::Remove, what, |image| image.names.change(change))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.in_use().look(|image| image.exists(path)))
    }

    fn now(&self) -> Instant {
        self.lock().clock.as_ref().map_or_else(Instant::now, |now| now())
    }

    fn spawn(&self, _: &'static str, _: i32, work: Work) -> io::Result<()> {
        let mut state = self.lock();
        if state.keeps_work {
            state.work.push(work);
        } else {
            drop(state);
            work();
        }
        Ok(())
    }

    fn start(&self, flusher: Box<dyn Flush>) -> io::Result<Option<JoinHandle<io::Result<()>>>> {
        self.lock().flusher = Some(flusher);
        Ok(None)
    }
}

#[derive(Debug)]
struct Opened {
    by: Use,
    file: usize,
    is_direct: bool,
    is_locked: AtomicBool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if *self.is_locked.get_mut() {
            let mut state = self.by.disk.lock();
            if state.process == self.by.process {
                state.locked.remove(&self.file);
            }
        }
    }
}

impl Opened {
    fn sync(&self, operation: Operation) -> io::Result<()> {
        let what = |image: &Image| format!("syncs {}", image.name(self.file));
        self.by.operate_on(operation, what, |image| image.files[self.file].sync())
    }
}

impl File for Opened {
    fn length(&self) -> io::Result<u64> {
        Ok(self.by.look(|image| image.files[self.file].length as u64))
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.by.look(|image| image.files[self.file].read(into, at as usize))
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.is_direct {
            let places = [at as usize, bytes.len(), bytes.as_ptr().addr()];
            assert!(places.iter().all(|place| place.is_multiple_of(BLOCK)), "not in blocks: {places:?}");
        }
        let what =
            |image: &Image| format!("writes {} bytes at {at} of {}", bytes.len(), image.name(self.file));
        let write = |image: &mut Image| image.files[self.file].write(at as usize, bytes);
        self.by.operate_on(Operation::Write, what, write)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(Operation::SyncData)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync(Operation::SyncAll)
    }

    fn try_lock(&self) -> Result<(), TryLockError> {
        if !self.by.disk.lock().locked.insert(self.file) {
            return Err(TryLockError::WouldBlock);
        }
        self.is_locked.store(true, Relaxed);
        Ok(())
    }
}

#[derive(Debug)]
struct Dir {
    by: Use,
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
        let what = |_: &Image| format!("syncs {}", self.path.display());
        self.by.operate_on(Operation::SyncDir, what, |image| image.names.sync(|dir| dir == self.path))
    }

    fn try_lock(&self) -> Result<(), TryLockError> {
        Err(TryLockError::Error(ErrorKind::IsADirectory.into()))
    }
}
