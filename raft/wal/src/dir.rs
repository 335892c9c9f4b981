//! The directory of a log: the names of its segments.

use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::OpenError;

/// A segment under construction. Never part of the log: it is renamed once it is complete and synced.
const TEMPORARY: &str = "segment.tmp";
const DIGITS: usize = 20;
const SUFFIX: &str = ".wal";

/// The file of the segment that starts with this sequence.
pub(crate) fn segment_path(dir: &Path, first_sequence: u64) -> PathBuf {
    dir.join(format!("{first_sequence:0DIGITS$}{SUFFIX}"))
}

/// The file in which the next segment is constructed.
pub(crate) fn temporary_path(dir: &Path) -> PathBuf {
    dir.join(TEMPORARY)
}

/// Creates the directory unless it exists, and makes its name durable in either case: the process that created it may
/// have been killed before it did.
pub(crate) fn create(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    disk.create_dir(dir).map_err(OpenError::io("create", dir))?;
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    disk.sync_dir(parent).map_err(OpenError::io("sync", parent))
}

/// The first sequences of all segments, in order. A segment under construction does not count.
pub(crate) fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>, OpenError> {
    let mut segments = Vec::new();
    for name in disk.list(dir).map_err(OpenError::io("list", dir))? {
        match name.to_str().and_then(first_sequence) {
            Some(first) => segments.push(first),
            None if name == TEMPORARY => {}
            None => return Err(OpenError::Foreign { path: dir.join(name) }),
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

fn first_sequence(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}
