use std::path::Path;

use tempfile::TempDir;

/// A temporary directory, in memory if possible: a race tests interleavings, not durability.
pub(crate) fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}
