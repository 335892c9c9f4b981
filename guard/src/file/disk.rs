//! Files that are created and replaced as a whole, each by one writer at a time.

use std::fs::{self, File, Metadata, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Creates a file, which must not exist.
pub(super) fn create(path: &Path, contents: &[u8]) -> Result<()> {
    // A name of its own: a writer of an existing file may be about to rename its `.new`.
    let new = beside(path, &format!(".{:016x}", RandomState::new().hash_one(())));
    // Unlike a rename, a link replaces nothing.
    let made =
        File::create_new(&new).and_then(|new| fill(new, contents)).and_then(|()| fs::hard_link(&new, path));
    let removed = fs::remove_file(&new);
    made.and(removed)?;
    sync_directory_of(path)
}

/// The file itself, not a link to it, locked against every other writer.
pub(super) struct Locked {
    path: PathBuf,
    file: File,
}

impl Locked {
    /// Waits for the lock, which also keeps out other calls in this process. Dropping it unlocks.
    pub(super) fn wait(path: &Path) -> Result<Self> {
        loop {
            let path = path.canonicalize()?;
            let file = File::open(&path)?;
            lock(&file)?;
            // Otherwise the writer before has replaced it, and others lock the new one.
            let [locked, named] = [file.metadata()?, path.symlink_metadata()?];
            if (locked.dev(), locked.ino()) == (named.dev(), named.ino()) {
                return Ok(Self { path, file });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// From the rename on, others may lock the new file: nothing may be left to do but to sync the directory.
    pub(super) fn replace(self, contents: &[u8]) -> Result<()> {
        let new = beside(&self.path, ".new");
        // A file left by a killed writer may have another owner and other permissions.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fill(create_like(&new, &self.file.metadata()?)?, contents)?;
        fs::rename(&new, &self.path)?;
        sync_directory_of(&self.path)
    }
}

fn lock(file: &File) -> Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            locked => return locked,
        }
    }
}

/// Creates a file with the permissions of the old one, before it has any contents.
fn create_like(path: &Path, old: &Metadata) -> Result<File> {
    const GROUP: u32 = 0o070;
    let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let mut mode = old.mode() & 0o777;
    // Only root can set another owner; only root and members can set a group.
    if fchown(&file, Some(old.uid()), Some(old.gid())).is_err()
        && fchown(&file, None, Some(old.gid())).is_err()
    {
        mode &= !GROUP;
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// Writes the contents of a new file, to the disk.
fn fill(mut file: File, contents: &[u8]) -> Result<()> {
    file.write_all(contents)?;
    file.sync_all()
}

fn sync_directory_of(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_cannot_be_kept_loses_its_permissions() {
        let dir = tempfile::tempdir().unwrap();
        // Only root and members of its group can create another such file.
        let of_root = fs::metadata("/etc/passwd").unwrap();
        let made = create_like(&dir.path().join("new"), &of_root).unwrap().metadata().unwrap();
        let is_kept = made.gid() == of_root.gid();
        let rights = if is_kept { of_root.mode() } else { of_root.mode() & !0o070 };
        assert_eq!(made.mode() & 0o777, rights & 0o777, "the group is kept: {is_kept}");
    }
}
