//! A file that late writers cannot overwrite.
//!
//! ```text
//!  ringfence-guard 1 4⏎     the format, and the number
//!  balance 130              the data, as given
//! ```
//! Number and data are in one file, which is replaced as a whole: written beside, synced, renamed, the directory synced. A
//! crash leaves the old file or the new one. A lock on a second file, which is never replaced, keeps every other
//! process out from the check to the end of the write. Readers need no lock.
//!
//! A file that is missing or damaged is an error, not a new one: its number may have been higher than any.
//!
//! **What a replaced file keeps.** Its permissions; its owner and group, as far as this process may set them. If the group
//! cannot be kept, the file loses its group permissions rather than grant them to another group. Access control
//! lists and extended attributes are not kept, and other hard links keep the old contents. Symbolic links are followed:
//! the target is replaced, and all links to it share one lock.
//!
//! **Not on a network file system.** A lock on NFS or SMB is itself a lease: the server gives it to the next client when the
//! first one is silent, and the first one's rename lands when it wakes up, after the next one's. Some mounts (`nolock`,
//! `local_lock`) keep locks local to each machine. Keep the file on a local disk and let one machine write it, or use
//! a database or an object store.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use ringfence_wire::Token;

use crate::contents::{decode, encode};
use crate::{Admission, Claim, Contents, High};

/// A guarded file. Any number of handles, in any number of processes, may be used at once.
#[derive(Clone, Debug)]
pub struct GuardedFile {
    path: PathBuf,
}

impl GuardedFile {
    /// The guarded file at `path`, created before.
    pub fn open(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Creates the file, in which no token is dead yet. It must not exist.
    pub fn create(path: impl Into<PathBuf>, data: &[u8]) -> Result<Self> {
        let file = Self::open(path);
        let locked = Locked::wait(file.path.clone())?;
        match file.path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => locked.replace(High::NEW, data, None)?,
            Err(error) => return Err(error),
            Ok(_) => {
                return Err(Error::new(ErrorKind::AlreadyExists, format!("{} exists", file.path.display())));
            }
        }
        Ok(file)
    }

    /// Reads the file. A new holder touches it first.
    pub fn read(&self) -> Result<Contents> {
        let (high, data) = read(&self.path)?;
        Ok(Contents { high: high.token(), data })
    }

    /// Shuts out every holder below the claim's fence. Call it before the first read. The data stay.
    ///
    /// After an error it may or may not have been done.
    pub fn touch(&self, claim: Claim) -> Result<Admission> {
        self.update(None, |high| high.admit(claim))
    }

    /// Replaces the data, unless the token is dead, and shuts out every holder below the fence, as `touch` does.
    ///
    /// After an error it may or may not have been done.
    pub fn write(&self, claim: Claim, data: &[u8]) -> Result<Admission> {
        self.update(Some(data), |high| high.admit(claim))
    }

    /// The number.
    pub fn high(&self) -> Result<Token> {
        self.read().map(|contents| contents.high)
    }

    /// Sets the number, down as well, to a fence of the key from the cluster. The data stay.
    pub fn reset(&self, fence: Token) -> Result<()> {
        let new = High::reset(fence).map_err(|why| Error::new(ErrorKind::InvalidInput, why))?;
        let set = |high: &mut High| {
            *high = new;
            Admission::Accepted(())
        };
        self.update(None, set).map(drop)
    }

    fn update(&self, data: Option<&[u8]>, rule: impl FnOnce(&mut High) -> Admission) -> Result<Admission> {
        let locked = Locked::wait(self.path.canonicalize()?)?;
        let (mut high, old_data) = read(&locked.path)?;
        let admission = rule(&mut high);
        if admission.is_accepted() {
            // Even if nothing changes: what was read may have been renamed by a process that died before it synced the
            // directory.
            locked.replace(high, data.unwrap_or(&old_data), Some(locked.path.metadata()?))?;
        }
        Ok(admission)
    }
}

/// The path of the file itself, not of a link to it, locked against every other process.
struct Locked {
    path: PathBuf,
    _lock: File,
}

impl Locked {
    /// Waits for the lock, which also keeps out other calls in this process. Dropping it unlocks.
    fn wait(path: PathBuf) -> Result<Self> {
        let lock = File::options().create(true).append(true).open(beside(&path, ".lock"))?;
        loop {
            match lock.lock() {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                locked => return locked.map(|()| Self { path, _lock: lock }),
            }
        }
    }

    /// `old` is the file to be replaced.
    fn replace(&self, high: High, data: &[u8], old: Option<Metadata>) -> Result<()> {
        let new = beside(&self.path, ".new");
        // A file left by a killed writer may have another owner and other permissions.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = create(&new, old.as_ref())?;
        file.write_all(&encode(high, data))?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        let directory = self.path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Creates a file with the permissions of the old one, before it has any contents.
#[cfg(unix)]
fn create(path: &Path, old: Option<&Metadata>) -> Result<File> {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
    const GROUP: u32 = 0o070;
    let Some(old) = old else { return File::create_new(path) };
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

#[cfg(not(unix))]
fn create(path: &Path, old: Option<&Metadata>) -> Result<File> {
    let file = File::create_new(path)?;
    old.map_or(Ok(()), |old| file.set_permissions(old.permissions())).map(|()| file)
}

fn read(path: &Path) -> Result<(High, Vec<u8>)> {
    let mut bytes = std::fs::read(path)?;
    let Some((high, data)) = decode(&bytes) else {
        return Err(Error::new(ErrorKind::InvalidData, format!("{} is no guarded file", path.display())));
    };
    bytes.drain(..data);
    Ok((high, bytes))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use tempfile::TempDir;

    use super::*;

    fn made() -> (TempDir, GuardedFile) {
        let dir = tempfile::tempdir().unwrap();
        let file = GuardedFile::create(dir.path().join("account"), b"100").unwrap();
        (dir, file)
    }

    fn contents(high: u64, data: &str) -> Contents {
        Contents { high: Token(high), data: data.into() }
    }

    fn exclusive(token: u64) -> Claim {
        Claim::exclusive(Token(token)).unwrap()
    }

    fn shared(token: u64, fence: u64) -> Claim {
        Claim::new(Token(token), Token(fence)).unwrap()
    }

    fn write(file: &GuardedFile, token: u64, data: &str) -> Admission {
        file.write(exclusive(token), data.as_bytes()).unwrap()
    }

    #[test]
    fn a_late_write_is_rejected_and_changes_nothing() {
        let (_dir, file) = made();
        assert_eq!(write(&file, 2, "150"), Admission::Accepted(()));
        assert_eq!(write(&file, 4, "130"), Admission::Accepted(()));
        assert_eq!(write(&file, 2, "150"), Admission::Stale { high: Token(4) });
        assert_eq!(write(&file, 3, "150"), Admission::Stale { high: Token(4) });
        assert_eq!(file.read().unwrap(), contents(4, "130"));
        assert_eq!(write(&file, 4, "131"), Admission::Accepted(()), "a holder writes as often as it likes");
        assert_eq!(file.read().unwrap(), contents(4, "131"));
    }

    #[test]
    fn a_touch_shuts_out_earlier_holders_before_anything_is_written() {
        let (_dir, file) = made();
        assert_eq!(file.touch(exclusive(4)).unwrap(), Admission::Accepted(()));
        assert_eq!(write(&file, 2, "150"), Admission::Stale { high: Token(4) });
        assert_eq!(file.touch(exclusive(2)).unwrap(), Admission::Stale { high: Token(4) });
        assert_eq!(file.read().unwrap(), contents(4, "100"));
    }

    #[test]
    fn shared_holders_are_shut_out_below_the_fence_only() {
        let (_dir, file) = made();
        assert_eq!(file.write(shared(9, 5), b"by 9").unwrap(), Admission::Accepted(()));
        assert_eq!(file.write(shared(7, 5), b"by 7").unwrap(), Admission::Accepted(()));
        assert_eq!(file.write(shared(4, 3), b"by 4").unwrap(), Admission::Stale { high: Token(5) });
        assert_eq!(file.write(shared(6, 2), b"by 6").unwrap(), Admission::Accepted(()));
        assert_eq!(file.read().unwrap(), contents(5, "by 6"), "an older fence does not lower the number");
    }

    #[test]
    fn an_operator_frees_a_file_that_was_shown_a_timestamp() {
        let (_dir, file) = made();
        assert_eq!(write(&file, 1_790_000_000_000, "150"), Admission::Accepted(()));
        assert_eq!(file.touch(exclusive(6)).unwrap(), Admission::Stale { high: file.high().unwrap() });
        assert_eq!(file.reset(Token(u64::MAX)).unwrap_err().kind(), ErrorKind::InvalidInput);
        file.reset(Token(6)).unwrap();
        assert_eq!(file.read().unwrap(), contents(6, "150"));
        assert_eq!(write(&file, 5, "130"), Admission::Stale { high: Token(6) });
        assert_eq!(write(&file, 6, "130"), Admission::Accepted(()));
    }

    #[test]
    fn any_bytes_are_read_as_written() {
        let (_dir, file) = made();
        for data in [&b""[..], b"\n\n", b"ringfence-guard 1 9\n", &[0, 255, 10, 13]] {
            assert_eq!(file.write(exclusive(2), data).unwrap(), Admission::Accepted(()));
            assert_eq!(file.read().unwrap(), Contents { high: Token(2), data: data.to_vec() });
        }
    }

    #[test]
    fn a_file_left_by_a_killed_writer_is_ignored() {
        let (_dir, file) = made();
        std::fs::write(
            beside(&file.path, ".new"),
            "ringfence-guard 1 99\nmuch more than will be written now",
        )
        .unwrap();
        assert_eq!(file.read().unwrap(), contents(0, "100"));
        assert_eq!(write(&file, 2, "150"), Admission::Accepted(()));
        assert_eq!(file.read().unwrap(), contents(2, "150"));
    }

    /// Once the first write made a private file readable by all.
    #[cfg(unix)]
    #[test]
    fn permissions_owner_and_group_stay() {
        use std::fs::{Permissions, metadata, set_permissions};
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let (_dir, file) = made();
        // Only root can change the owner; then it stays changed.
        let _ = chown(&file.path, Some(65_534), Some(65_533));
        for mode in [0o600, 0o640, 0o444, 0o664] {
            set_permissions(&file.path, Permissions::from_mode(mode)).unwrap();
            let rights =
                |path: &Path| metadata(path).map(|of| (of.mode() & 0o7777, of.uid(), of.gid())).unwrap();
            let before = rights(&file.path);
            assert_eq!(before.0, mode);
            assert!(file.touch(exclusive(2)).unwrap().is_accepted());
            assert_eq!(rights(&file.path), before);
            assert!(file.write(exclusive(2), b"150").unwrap().is_accepted());
            file.reset(Token(2)).unwrap();
            assert_eq!(rights(&file.path), before);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_group_that_cannot_be_kept_loses_its_permissions() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        // Only root and members of its group can create another such file.
        let of_root = std::fs::metadata("/etc/passwd").unwrap();
        let made = create(&dir.path().join("new"), Some(&of_root)).unwrap().metadata().unwrap();
        let is_kept = made.gid() == of_root.gid();
        let rights = if is_kept { of_root.mode() } else { of_root.mode() & !0o070 };
        assert_eq!(made.mode() & 0o777, rights & 0o777, "the group is kept: {is_kept}");
    }

    /// Once a write replaced the link and left its target as it was.
    #[cfg(unix)]
    #[test]
    fn a_link_and_its_target_share_one_number() {
        use std::os::unix::fs::symlink;
        let (dir, file) = made();
        std::fs::create_dir(dir.path().join("elsewhere")).unwrap();
        let linked = GuardedFile::open(dir.path().join("elsewhere/link"));
        symlink("../account", &linked.path).unwrap();
        assert_eq!(write(&linked, 4, "130"), Admission::Accepted(()));
        assert_eq!(file.read().unwrap(), contents(4, "130"));
        assert_eq!(write(&file, 5, "150"), Admission::Accepted(()));
        assert_eq!(write(&linked, 4, "130"), Admission::Stale { high: Token(5) });
        linked.reset(Token(6)).unwrap();
        assert_eq!(linked.read().unwrap(), contents(6, "150"));
        assert!(linked.path.is_symlink());
        let locks = |folder: &str| std::fs::read_dir(dir.path().join(folder)).unwrap().count();
        assert_eq!((locks("elsewhere"), locks("")), (1, 3), "link; file, its lock, and the folder");

        std::fs::remove_file(&file.path).unwrap();
        assert_eq!(linked.touch(exclusive(9)).unwrap_err().kind(), ErrorKind::NotFound);
        let made = GuardedFile::create(&linked.path, b"100");
        assert_eq!(made.unwrap_err().kind(), ErrorKind::AlreadyExists, "a link to nothing is not replaced");
    }

    #[test]
    fn a_missing_or_damaged_file_accepts_nobody() {
        let (_dir, file) = made();
        for damage in
            ["", "130", "ringfence-guard 1 \n130", "ringfence-guard 1 x\n130", "ringfence-guard 2 4\n130"]
        {
            std::fs::write(&file.path, damage).unwrap();
            assert_eq!(file.touch(exclusive(9)).unwrap_err().kind(), ErrorKind::InvalidData, "{damage:?}");
        }
        let again = GuardedFile::create(&file.path, b"100");
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
        std::fs::remove_file(&file.path).unwrap();
        assert_eq!(file.touch(exclusive(9)).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn of_two_concurrent_writers_the_larger_token_wins() {
        let (_dir, file) = made();
        for round in 1..=100 {
            let (older, newer) = (2 * round, 2 * round + 1);
            let together = Barrier::new(2);
            let at_once = |token: u64| {
                together.wait();
                write(&file, token, &format!("by {token}"))
            };
            let (first, second) = std::thread::scope(|scope| {
                let first = scope.spawn(|| at_once(older));
                let second = at_once(newer);
                (first.join().unwrap(), second)
            });
            assert_eq!(second, Admission::Accepted(()));
            let rejected = first == Admission::Stale { high: Token(newer) };
            assert!(first == Admission::Accepted(()) || rejected, "{first:?}");
            assert_eq!(file.read().unwrap(), contents(newer, &format!("by {newer}")));
        }
    }
}
