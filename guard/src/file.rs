//! A file that late writers cannot overwrite.
//!
//! ```text
//!  ringfence-guard 1 4⏎     the format, and the number
//!  balance 130              the data, as they were given
//! ```
//! How it is atomic: number and data stand in one file, which is replaced as a whole (written beside, synced, renamed,
//! the folder synced), so that a crash leaves the old file or the new one. A lock on a file beside it, which is never
//! replaced, keeps every other process out from the check to the end of the write. Readers need no lock.
//!
//! A file that is missing or damaged is an error, not a new one: its number may have been higher than any.
//!
//! **What else a replaced file keeps.** Its permissions; its owner and group, as far as this process may give them away. Where
//! the group cannot be kept, the file loses the rights of a group, rather than give them to another one. Access control
//! lists and extended attributes are not kept, and other hard links keep the old contents. A symbolic link is followed: the
//! file behind it is replaced, and all that follow links to it share one lock.
//!
//! **Not on a network file system.** A lock on NFS or SMB is itself a lease: the server gives it to the next client when the
//! first one is silent, and that one's rename lands when it wakes up, after the next one's. Some mounts (`nolock`,
//! `local_lock`) keep the lock on each machine alone. Keep the file on a local disk, and let one machine write it; else use
//! a database or an object store.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use ringfence_wire::Token;

use crate::{Admission, Claim, High, head};

/// A guarded file. Any number of handles, in any number of processes, may be used at once.
#[derive(Clone, Debug)]
pub struct GuardedFile {
    path: PathBuf,
}

/// What stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Every token below it is dead.
    pub high: Token,
    /// As they were last written.
    pub data: Vec<u8>,
}

impl GuardedFile {
    /// The guarded file at `path`, which was once created.
    pub fn open(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Makes the file, in which no token is dead yet. It must not be there.
    pub fn create(path: impl Into<PathBuf>, data: &[u8]) -> Result<Self> {
        let file = Self::open(path);
        let place = Place::lock(file.path.clone())?;
        match file.path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => place.replace(High::NEW, data, None)?,
            Err(error) => return Err(error),
            Ok(_) => {
                return Err(Error::new(ErrorKind::AlreadyExists, format!("{} exists", file.path.display())));
            }
        }
        Ok(file)
    }

    /// What stands in the file. A new holder touches it first.
    pub fn read(&self) -> Result<Contents> {
        let (high, data) = contents(&self.path)?;
        Ok(Contents { high: high.token(), data })
    }

    /// Shuts out every holder below the claim's fence: to be done before the first read. The data stay as they are.
    ///
    /// After an error it may or may not have been done.
    pub fn touch(&self, claim: Claim) -> Result<Admission> {
        self.update(claim, None)
    }

    /// Replaces the data, unless the token is dead; and shuts out every holder below the fence, as `touch` does.
    ///
    /// After an error it may or may not have been done.
    pub fn write(&self, claim: Claim, data: &[u8]) -> Result<Admission> {
        self.update(claim, Some(data))
    }

    /// The number.
    pub fn high(&self) -> Result<Token> {
        self.read().map(|contents| contents.high)
    }

    /// Sets the number, down as well, to a fence of the key that the cluster gave. The data stay as they are.
    pub fn reset(&self, fence: Token) -> Result<()> {
        let new = High::reset(fence).map_err(|why| Error::new(ErrorKind::InvalidInput, why))?;
        let place = self.lock()?;
        let (_, data) = contents(&place.path)?;
        place.replace(new, &data, Some(place.path.metadata()?))
    }

    fn update(&self, claim: Claim, data: Option<&[u8]>) -> Result<Admission> {
        let place = self.lock()?;
        let (mut high, old_data) = contents(&place.path)?;
        let admission = high.admit(claim);
        if admission.is_accepted() {
            // Even if nothing changes: what was read may have been renamed by a process that died before it synced the
            // folder.
            place.replace(high, data.unwrap_or(&old_data), Some(place.path.metadata()?))?;
        }
        Ok(admission)
    }

    fn lock(&self) -> Result<Place> {
        Place::lock(self.path.canonicalize()?)
    }
}

/// Where the file itself is, no link to it, and a lock that keeps every other process out of there.
struct Place {
    path: PathBuf,
    _lock: File,
}

impl Place {
    /// Waits until no other process, and no other call in this one, has the lock; until it is dropped.
    fn lock(path: PathBuf) -> Result<Self> {
        let lock = File::options().create(true).append(true).open(beside(&path, ".lock"))?;
        loop {
            match lock.lock() {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                locked => return locked.map(|()| Self { path, _lock: lock }),
            }
        }
    }

    /// `old` is the file that is replaced.
    fn replace(&self, high: High, data: &[u8], old: Option<Metadata>) -> Result<()> {
        let new = beside(&self.path, ".new");
        // What a killed writer left may be another's, with other rights.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = create(&new, old.as_ref())?;
        file.write_all(&head::encode(high, data))?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// A new file with the rights of the old one, before there is anything in it to read.
#[cfg(unix)]
fn create(path: &Path, old: Option<&Metadata>) -> Result<File> {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
    const OF_THE_GROUP: u32 = 0o070;
    let Some(old) = old else { return File::create_new(path) };
    let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let mut mode = old.mode() & 0o777;
    // Only root can give a file to another owner; and to a group, who is in it.
    if fchown(&file, Some(old.uid()), Some(old.gid())).is_err()
        && fchown(&file, None, Some(old.gid())).is_err()
    {
        mode &= !OF_THE_GROUP;
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

#[cfg(not(unix))]
fn create(path: &Path, old: Option<&Metadata>) -> Result<File> {
    let file = File::create_new(path)?;
    old.map_or(Ok(()), |old| file.set_permissions(old.permissions())).map(|()| file)
}

fn contents(path: &Path) -> Result<(High, Vec<u8>)> {
    let mut bytes = std::fs::read(path)?;
    let Some((high, data)) = head::decode(&bytes) else {
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
        assert_eq!(write(&file, 2, "150"), Admission::Accepted);
        assert_eq!(write(&file, 4, "130"), Admission::Accepted);
        assert_eq!(write(&file, 2, "150"), Admission::Stale { high: Token(4) });
        assert_eq!(write(&file, 3, "150"), Admission::Stale { high: Token(4) });
        assert_eq!(file.read().unwrap(), contents(4, "130"));
        assert_eq!(write(&file, 4, "131"), Admission::Accepted, "a holder writes as often as it likes");
        assert_eq!(file.read().unwrap(), contents(4, "131"));
    }

    #[test]
    fn a_touch_shuts_out_earlier_holders_before_anything_is_written() {
        let (_dir, file) = made();
        assert_eq!(file.touch(exclusive(4)).unwrap(), Admission::Accepted);
        assert_eq!(write(&file, 2, "150"), Admission::Stale { high: Token(4) });
        assert_eq!(file.touch(exclusive(2)).unwrap(), Admission::Stale { high: Token(4) });
        assert_eq!(file.read().unwrap(), contents(4, "100"));
    }

    #[test]
    fn shared_holders_are_shut_out_below_the_fence_only() {
        let (_dir, file) = made();
        assert_eq!(file.write(shared(9, 5), b"by 9").unwrap(), Admission::Accepted);
        assert_eq!(file.write(shared(7, 5), b"by 7").unwrap(), Admission::Accepted);
        assert_eq!(file.write(shared(4, 3), b"by 4").unwrap(), Admission::Stale { high: Token(5) });
        assert_eq!(file.write(shared(6, 2), b"by 6").unwrap(), Admission::Accepted);
        assert_eq!(file.read().unwrap(), contents(5, "by 6"), "an older fence does not lower the number");
    }

    #[test]
    fn an_operator_frees_a_file_that_was_shown_a_timestamp() {
        let (_dir, file) = made();
        assert_eq!(write(&file, 1_790_000_000_000, "150"), Admission::Accepted);
        assert_eq!(file.touch(exclusive(6)).unwrap(), Admission::Stale { high: file.high().unwrap() });
        assert_eq!(file.reset(Token(u64::MAX)).unwrap_err().kind(), ErrorKind::InvalidInput);
        file.reset(Token(6)).unwrap();
        assert_eq!(file.read().unwrap(), contents(6, "150"));
        assert_eq!(write(&file, 5, "130"), Admission::Stale { high: Token(6) });
        assert_eq!(write(&file, 6, "130"), Admission::Accepted);
    }

    #[test]
    fn any_bytes_come_back_as_they_were_written() {
        let (_dir, file) = made();
        for data in [&b""[..], b"\n\n", b"ringfence-guard 1 9\n", &[0, 255, 10, 13]] {
            assert_eq!(file.write(exclusive(2), data).unwrap(), Admission::Accepted);
            assert_eq!(file.read().unwrap(), Contents { high: Token(2), data: data.to_vec() });
        }
    }

    #[test]
    fn what_a_killed_writer_left_beside_the_file_does_not_count() {
        let (_dir, file) = made();
        std::fs::write(
            beside(&file.path, ".new"),
            "ringfence-guard 1 99\nmuch more than will be written now",
        )
        .unwrap();
        assert_eq!(file.read().unwrap(), contents(0, "100"));
        assert_eq!(write(&file, 2, "150"), Admission::Accepted);
        assert_eq!(file.read().unwrap(), contents(2, "150"));
    }

    /// A file that only its owner could read was once readable by all after the first write.
    #[cfg(unix)]
    #[test]
    fn permissions_owner_and_group_stay() {
        use std::fs::{Permissions, metadata, set_permissions};
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let (_dir, file) = made();
        // Only root can give it away; then it is another's, and stays so.
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
    fn a_group_that_cannot_be_kept_leaves_its_rights_to_no_other() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        // Only root, and who is in its group, can make another such file.
        let of_root = std::fs::metadata("/etc/passwd").unwrap();
        let made = create(&dir.path().join("new"), Some(&of_root)).unwrap().metadata().unwrap();
        let is_kept = made.gid() == of_root.gid();
        let rights = if is_kept { of_root.mode() } else { of_root.mode() & !0o070 };
        assert_eq!(made.mode() & 0o777, rights & 0o777, "the group is kept: {is_kept}");
    }

    /// A write once replaced the link, and left the file behind it as it was.
    #[cfg(unix)]
    #[test]
    fn a_file_behind_a_link_is_one_file_with_one_number() {
        use std::os::unix::fs::symlink;
        let (dir, file) = made();
        std::fs::create_dir(dir.path().join("elsewhere")).unwrap();
        let linked = GuardedFile::open(dir.path().join("elsewhere/link"));
        symlink("../account", &linked.path).unwrap();
        assert_eq!(write(&linked, 4, "130"), Admission::Accepted);
        assert_eq!(file.read().unwrap(), contents(4, "130"));
        assert_eq!(write(&file, 5, "150"), Admission::Accepted);
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
    fn a_missing_or_damaged_file_lets_nobody_in() {
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
    fn of_two_writers_at_once_the_larger_token_wins() {
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
            assert_eq!(second, Admission::Accepted);
            let was_told = first == Admission::Stale { high: Token(newer) };
            assert!(first == Admission::Accepted || was_told, "{first:?}");
            assert_eq!(file.read().unwrap(), contents(newer, &format!("by {newer}")));
        }
    }
}
