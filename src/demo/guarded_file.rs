//! A file that late writers cannot overwrite.
//!
//! It keeps one number, `high`, with the data: every token below it is dead. The guard rule: *atomically with the write*,
//! a token below `high` is rejected; otherwise `high` rises to the fence that the cluster gave with the token, if it
//! is not there already. Who comes to hold the lease *touches* the file before it first reads it; else a late write
//! could land between its read and its write.
//!
//! ```text
//!  ringfence-guard 1 4⏎     the format, and `high`
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

const FORMAT: &str = "ringfence-guard 1 ";

/// A guarded file. Any number of handles, in any number of processes, may be used at once.
#[derive(Clone, Debug)]
pub(crate) struct GuardedFile {
    path: PathBuf,
}

/// What the guard says to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Admission {
    /// What was asked for was done, and is on disk.
    Accepted,
    /// Nothing was done: every token below `high` is dead.
    Stale {
        /// The number that stands in the file.
        high: Token,
    },
}

/// What stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Every token below it is dead.
    pub(crate) high: Token,
    /// As they were last written.
    pub(crate) data: Vec<u8>,
}

impl GuardedFile {
    /// The guarded file at `path`, which was once created.
    pub(crate) fn open(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Makes the file, in which no token is dead yet. It must not be there.
    pub(crate) fn create(path: impl Into<PathBuf>, data: &[u8]) -> Result<Self> {
        let file = Self::open(path);
        let _lock = file.lock()?;
        if file.path.try_exists()? {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{} exists", file.path.display())));
        }
        file.replace(Token(0), data)?;
        Ok(file)
    }

    /// What stands in the file. A new holder touches it first.
    pub(crate) fn read(&self) -> Result<Contents> {
        let bytes = std::fs::read(&self.path)?;
        let parse = || {
            let end = bytes.iter().position(|&byte| byte == b'\n')?;
            let high = str::from_utf8(&bytes[..end]).ok()?.strip_prefix(FORMAT)?.parse().ok()?;
            Some(Contents { high: Token(high), data: bytes[end + 1..].to_vec() })
        };
        parse().ok_or_else(|| {
            Error::new(ErrorKind::InvalidData, format!("{} is no guarded file", self.path.display()))
        })
    }

    /// Shuts out every holder before `token`, whose grant or renewal gave `fence`. The data stay as they are.
    ///
    /// After an error it may or may not have been done.
    pub(crate) fn touch(&self, token: Token, fence: Token) -> Result<Admission> {
        self.update(token, fence, None)
    }

    /// Replaces the data, unless `token` is dead; and shuts out every holder before it, as `touch` does.
    ///
    /// After an error it may or may not have been done.
    pub(crate) fn write(&self, token: Token, fence: Token, data: &[u8]) -> Result<Admission> {
        self.update(token, fence, Some(data))
    }

    fn update(&self, token: Token, fence: Token, data: Option<&[u8]>) -> Result<Admission> {
        if fence > token {
            let why = format!("a live token, {token}, is not below its fence, {fence}");
            return Err(Error::new(ErrorKind::InvalidInput, why));
        }
        let _lock = self.lock()?;
        let old = self.read()?;
        if token < old.high {
            return Ok(Admission::Stale { high: old.high });
        }
        // Even if nothing changes: what was read may have been renamed by a process that died before it synced the folder.
        self.replace(old.high.max(fence), data.unwrap_or(&old.data))?;
        Ok(Admission::Accepted)
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

    fn replace(&self, high: Token, data: &[u8]) -> Result<()> {
        let new = self.beside(".new");
        let mut file = File::create(&new)?;
        writeln!(file, "{FORMAT}{high}")?;
        file.write_all(data)?;
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

    /// A write of an exclusive holder: its fence is its token.
    fn write(file: &GuardedFile, token: u64, data: &str) -> Admission {
        file.write(Token(token), Token(token), data.as_bytes()).unwrap()
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
        assert_eq!(file.touch(Token(4), Token(4)).unwrap(), Admission::Accepted);
        assert_eq!(write(&file, 2, "150"), Admission::Stale { high: Token(4) });
        assert_eq!(file.touch(Token(2), Token(2)).unwrap(), Admission::Stale { high: Token(4) });
        assert_eq!(file.read().unwrap(), contents(4, "100"));
    }

    #[test]
    fn shared_holders_are_shut_out_below_the_fence_only() {
        let (_dir, file) = made();
        assert_eq!(file.write(Token(9), Token(5), b"by 9").unwrap(), Admission::Accepted);
        assert_eq!(file.write(Token(7), Token(5), b"by 7").unwrap(), Admission::Accepted);
        assert_eq!(file.write(Token(4), Token(3), b"by 4").unwrap(), Admission::Stale { high: Token(5) });
        assert_eq!(file.write(Token(6), Token(2), b"by 6").unwrap(), Admission::Accepted);
        assert_eq!(file.read().unwrap(), contents(5, "by 6"), "an older fence does not lower the number");
    }

    #[test]
    fn a_fence_above_its_token_is_refused() {
        let (_dir, file) = made();
        assert_eq!(file.touch(Token(4), Token(5)).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(file.read().unwrap(), contents(0, "100"));
    }

    #[test]
    fn any_bytes_come_back_as_they_were_written() {
        let (_dir, file) = made();
        for data in [&b""[..], b"\n\n", b"ringfence-guard 1 9\n", &[0, 255, 10, 13]] {
            assert_eq!(file.write(Token(2), Token(2), data).unwrap(), Admission::Accepted);
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
            assert_eq!(
                file.touch(Token(9), Token(9)).unwrap_err().kind(),
                ErrorKind::InvalidData,
                "{damage:?}"
            );
        }
        let again = GuardedFile::create(&file.path, b"100");
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
        std::fs::remove_file(&file.path).unwrap();
        assert_eq!(file.touch(Token(9), Token(9)).unwrap_err().kind(), ErrorKind::NotFound);
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
