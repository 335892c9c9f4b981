//! The folder of a log: names of segments, and syncing the folder itself.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// A segment in the making. Never part of the log: it is renamed once it is complete and synced.
const TEMPORARY: &str = "segment.tmp";
const DIGITS: usize = 20;
const SUFFIX: &str = ".wal";

/// The file of the segment that starts with this sequence.
pub(crate) fn segment_path(dir: &Path, first_sequence: u64) -> PathBuf {
    dir.join(format!("{first_sequence:0DIGITS$}{SUFFIX}"))
}

/// The file in which the next segment is made.
pub(crate) fn temporary_path(dir: &Path) -> PathBuf {
    dir.join(TEMPORARY)
}

/// Opens a folder, to be synced.
pub(crate) fn open(dir: &Path) -> Result<File, OpenError> {
    File::open(dir).map_err(OpenError::io("open", dir))
}

/// Makes the names in a folder durable.
pub(crate) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Creates the folder if it is not there, and makes its name durable: also if it is there, for whoever made
/// it may have been killed before.
pub(crate) fn create(dir: &Path) -> Result<(), OpenError> {
    if !dir.is_dir() {
        fs::create_dir(dir).map_err(OpenError::io("create", dir))?;
    }
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    sync(parent).map_err(OpenError::io("sync", parent))
}

/// First sequences of all segments, in order. One that was never completed does not count.
pub(crate) fn list(dir: &Path) -> Result<Vec<u64>, OpenError> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(dir).map_err(OpenError::io("list", dir))? {
        let entry = entry.map_err(OpenError::io("list", dir))?;
        let name = entry.file_name();
        if name == TEMPORARY {
            continue;
        }
        match name.to_str().and_then(first_sequence) {
            Some(first) => segments.push(first),
            None => return Err(OpenError::Foreign { path: entry.path() }),
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// Removes what was left of a segment in the making.
pub(crate) fn remove_unfinished(dir: &Path) -> Result<(), OpenError> {
    let path = temporary_path(dir);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(OpenError::io("remove", &path)(error)),
        _ => Ok(()),
    }
}

fn first_sequence(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}
