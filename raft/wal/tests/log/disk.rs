//! Disks to break: an ext4 file system in an image file in memory. Needs root.
//!
//! A loop device writes everything to its file at once. With a single one, the image would hold direct writes that were
//! never synced. So there are two, one on the other: the page cache of the lower one is the disk's write cache, and the
//! image holds what was flushed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::folder;

/// Something mounted; unmounted when dropped, which frees its loop device too.
pub(crate) struct Mount {
    at: PathBuf,
}

impl Mount {
    /// Mounts an image file as a disk with a write cache. The folder is made if it is not there.
    pub(crate) fn image(image: &Path, at: &Path) -> Result<Self, String> {
        fs::create_dir_all(at).unwrap();
        let lower = run(Command::new("losetup").args(["--find", "--show"]).arg(image))?;
        // Nothing but a sync is to flush the write cache: no commit of the journal that only time demands.
        let mounted = run(Command::new("mount").args(["-o", "loop,commit=3600", lower.trim()]).arg(at));
        // It stays until the upper one closes it, at the unmount.
        run(Command::new("losetup").args(["--detach", lower.trim()]))?;
        mounted.map(|_| Self { at: at.to_owned() })
    }

    /// Mounts an empty file system in memory, of so many bytes.
    pub(crate) fn memory(bytes: u64, at: &Path) -> Result<Self, String> {
        fs::create_dir_all(at).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(at))?;
        Ok(Self { at: at.to_owned() })
    }

    pub(crate) fn at(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if run(Command::new("umount").arg(&self.at)).is_err() {
            let _ = run(Command::new("umount").arg("-l").arg(&self.at));
        }
    }
}

/// Runs a command to its end and gives what it printed; its error output is the error.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Makes an ext4 file system in a sparse file.
pub(crate) fn format(image: &Path, bytes: u64) -> Result<(), String> {
    fs::File::create(image).unwrap().set_len(bytes).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(image)).map(drop)
}

/// Whether there may be mounts at all; says so if not.
pub(crate) fn may_mount() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: needs root");
    }
    is_root
}

/// A new file system, with its image; `None`, said why, where that cannot be. The mount stands last, to be
/// dropped before the folder.
pub(crate) fn file_system(bytes: u64) -> Option<(TempDir, PathBuf, Mount)> {
    if !may_mount() {
        return None;
    }
    let dir = folder();
    let image = dir.path().join("image");
    match format(&image, bytes).and_then(|()| Mount::image(&image, &dir.path().join("disk"))) {
        Ok(mount) => Some((dir, image, mount)),
        Err(error) => {
            println!("skipped: cannot mount an image file here: {error}");
            None
        }
    }
}
