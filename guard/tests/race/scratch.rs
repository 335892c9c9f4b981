use std::path::Path;

use tempfile::TempDir;

/// A temporary folder; in memory where there is one: a race is about what comes between, not about what a disk keeps.
pub(crate) fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}
