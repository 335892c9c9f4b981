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

use std::fs::File;
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
        let _lock = file.lock()?;
        if file.path.try_exists()? {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{} exists", file.path.display())));
        }
        file.replace(High::NEW, data)?;
        Ok(file)
    }

    /// What stands in the file. A new holder touches it first.
    pub fn read(&self) -> Result<Contents> {
        let bytes = std::fs::read(&self.path)?;
        let (high, data) = head::decode(&bytes).ok_or_else(|| {
            Error::new(ErrorKind::InvalidData, format!("{} is no guarded file", self.path.display()))
        })?;
        Ok(Contents { high: high.token(), data: bytes[data..].to_vec() })
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
        let _lock = self.lock()?;
        let old = self.read()?;
        self.replace(new, &old.data)
    }

    fn update(&self, claim: Claim, data: Option<&[u8]>) -> Result<Admission> {
        let _lock = self.lock()?;
        let old = self.read()?;
        let mut high = High::new(old.high);
        let admission = high.admit(claim);
        if admission.is_accepted() {
            // Even if nothing changes: what was read may have been renamed by a process that died before it synced the
            // folder.
            self.replace(high, data.unwrap_or(&old.data))?;
        }
        Ok(admission)
    }

    /// Waits until no other process, and no other call in this one, has the lock; until it is dropped.
    fn lock(&self) -> Result<File> {
        let file = File::options().create(true).append(true).open(self.beside(".lock"))?;
        loop {
            match file.lock() {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                locked => return locked.map(|()| file),
            }
        }
    }

    fn replace(&self, high: High, data: &[u8]) -> Result<()> {
        let new = self.beside(".new");
        let mut file = File::create(&new)?;
        file.write_all(&head::encode(high, data))?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        name.into()
    }
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
        std::fs::write(file.beside(".new"), "ringfence-guard 1 99\nmuch more than will be written now")
            .unwrap();
        assert_eq!(file.read().unwrap(), contents(0, "100"));
        assert_eq!(write(&file, 2, "150"), Admission::Accepted);
        assert_eq!(file.read().unwrap(), contents(2, "150"));
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
