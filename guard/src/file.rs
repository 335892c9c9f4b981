//! A file that late writers cannot overwrite.
//!
//! ```text
//!  ringfence-guard 1 4⏎     the format, and the number
//!  balance 130              the data, as given
//! ```
//! Number and data are in one file, which is replaced as a whole: written beside, synced, renamed, the directory synced. A
//! crash leaves the old file or the new one. Readers need no lock.
//!
//! A writer locks the file itself, from the check to the rename; to open it for reading suffices. If the writer before has
//! replaced the file meanwhile, what it locked is the old inode, and it starts again. There is no second file, to which
//! somebody could lack the rights, or which somebody could remove.
//!
//! A file that is missing or damaged is an error, not a new one: its number may have been higher than any.
//!
//! **What a replaced file keeps.** Its permissions; its owner and group, as far as this process may set them. If the group
//! cannot be kept, the file loses its group permissions rather than grant them to another group. Access control
//! lists and extended attributes are not kept, and other hard links keep the old contents. Symbolic links are followed:
//! the target is replaced, and all links to it share one number.
//!
//! **Not on a network file system.** A lock on NFS or SMB is itself a lease: the server gives it to the next client when the
//! first one is silent, and the first one's rename lands when it wakes up, after the next one's. Some mounts (`nolock`,
//! `local_lock`) keep locks local to each machine. Keep the file on a local disk and let one machine write it, or use
//! a database or an object store.

mod disk;

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use ringfence_wire::Token;

use self::disk::Locked;
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

    /// Creates the file, in which no token is dead yet. It must not exist. The file system needs hard links.
    ///
    /// A process that is killed meanwhile may leave a file beside it, named with 16 digits more. Nothing needs that one.
    pub fn create(path: impl Into<PathBuf>, data: &[u8]) -> Result<Self> {
        let file = Self::open(path);
        disk::create(&file.path, &encode(High::NEW, data))?;
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
        let locked = Locked::wait(&self.path)?;
        let (mut high, old_data) = read(locked.path())?;
        let admission = rule(&mut high);
        if admission.is_accepted() {
            // Even if nothing changes: what was read may have been renamed by a process that died before it synced the
            // directory.
            locked.replace(&encode(high, data.unwrap_or(&old_data)))?;
        }
        Ok(admission)
    }
}

fn read(path: &Path) -> Result<(High, Vec<u8>)> {
    let mut bytes = fs::read(path)?;
    let Some((high, data)) = decode(&bytes) else {
        return Err(Error::new(ErrorKind::InvalidData, format!("{} is no guarded file", path.display())));
    };
    bytes.drain(..data);
    Ok((high, bytes))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
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
        fs::write(
            file.path.with_extension("new"),
            "ringfence-guard 1 99\nmuch more than will be written now",
        )
        .unwrap();
        assert_eq!(file.read().unwrap(), contents(0, "100"));
        assert_eq!(write(&file, 2, "150"), Admission::Accepted(()));
        assert_eq!(file.read().unwrap(), contents(2, "150"));
    }

    /// Once the first write made a private file readable by all.
    #[test]
    fn permissions_owner_and_group_stay() {
        let (_dir, file) = made();
        // Only root can change the owner; then it stays changed.
        let _ = chown(&file.path, Some(65_534), Some(65_533));
        for mode in [0o600, 0o640, 0o444, 0o664] {
            fs::set_permissions(&file.path, Permissions::from_mode(mode)).unwrap();
            let rights =
                |path: &Path| fs::metadata(path).map(|of| (of.mode() & 0o7777, of.uid(), of.gid())).unwrap();
            let before = rights(&file.path);
            assert_eq!(before.0, mode);
            assert!(file.touch(exclusive(2)).unwrap().is_accepted());
            assert_eq!(rights(&file.path), before);
            assert!(file.write(exclusive(2), b"150").unwrap().is_accepted());
            file.reset(Token(2)).unwrap();
            assert_eq!(rights(&file.path), before);
        }
    }

    /// Once a write replaced the link and left its target as it was.
    #[test]
    fn a_link_and_its_target_share_one_number() {
        let (dir, file) = made();
        fs::create_dir(dir.path().join("elsewhere")).unwrap();
        let linked = GuardedFile::open(dir.path().join("elsewhere/link"));
        symlink("../account", &linked.path).unwrap();
        assert_eq!(write(&linked, 4, "130"), Admission::Accepted(()));
        assert_eq!(file.read().unwrap(), contents(4, "130"));
        assert_eq!(write(&file, 5, "150"), Admission::Accepted(()));
        assert_eq!(write(&linked, 4, "130"), Admission::Stale { high: Token(5) });
        linked.reset(Token(6)).unwrap();
        assert_eq!(linked.read().unwrap(), contents(6, "150"));
        assert!(linked.path.is_symlink());
        let names = |folder: &str| fs::read_dir(dir.path().join(folder)).unwrap().count();
        assert_eq!((names("elsewhere"), names("")), (1, 2), "the link; the file, and the folder");

        fs::remove_file(&file.path).unwrap();
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
            fs::write(&file.path, damage).unwrap();
            assert_eq!(file.touch(exclusive(9)).unwrap_err().kind(), ErrorKind::InvalidData, "{damage:?}");
        }
        let again = GuardedFile::create(&file.path, b"100");
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
        fs::remove_file(&file.path).unwrap();
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

    /// Once the lock was a second file. A job that removed it let a newer holder in beside a late writer.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_newer_holder_waits_for_a_writer_whatever_is_removed_beside_the_file() {
        let (dir, file) = made();
        let waiter = format!("-> FLOCK  ADVISORY  WRITE {} ", std::process::id());
        std::thread::scope(|scope| {
            let late = file.update(Some(b"A, late"), |high| {
                for entry in fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()) {
                    let _ = if entry == file.path { Ok(()) } else { fs::remove_file(entry) };
                }
                let newer = scope.spawn(|| file.touch(exclusive(9)).unwrap());
                while !newer.is_finished() && !fs::read_to_string("/proc/locks").unwrap().contains(&waiter) {
                    std::thread::yield_now();
                }
                high.admit(exclusive(5))
            });
            assert_eq!(late.unwrap(), Admission::Accepted(()));
        });
        assert_eq!(file.read().unwrap(), contents(9, "A, late"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stands beside the file");
    }

    /// Each of them leaves another inode to lock.
    #[test]
    fn no_update_of_many_at_once_is_lost() {
        let (_dir, file) = made();
        let next = |high: &mut High| {
            *high = High::reset(Token(high.token().0 + 1)).unwrap();
            Admission::Accepted(())
        };
        let updates = || (0..50).for_each(|_| assert!(file.update(None, next).unwrap().is_accepted()));
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(updates))));
        assert_eq!(file.high().unwrap(), Token(200));
    }

    #[test]
    fn of_many_that_create_a_file_one_does() {
        let dir = tempfile::tempdir().unwrap();
        let (path, together) = (dir.path().join("account"), Barrier::new(8));
        let create = |by: u64| {
            together.wait();
            GuardedFile::create(&path, by.to_string().as_bytes()).map(|_| by).map_err(|error| error.kind())
        };
        let made: Vec<_> = std::thread::scope(|scope| {
            let tasks: Vec<_> = (0..8).map(|by| scope.spawn(move || create(by))).collect();
            tasks.into_iter().map(|task| task.join().unwrap()).collect()
        });
        let [by] = made.iter().flatten().collect::<Vec<_>>()[..] else { panic!("{made:?}") };
        assert!(
            made.iter().all(|made| made.as_ref().err().is_none_or(|&kind| kind == ErrorKind::AlreadyExists))
        );
        assert_eq!(GuardedFile::open(&path).read().unwrap(), contents(0, &by.to_string()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
