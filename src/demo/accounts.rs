//! The balance of one account, in a file that checks tokens and in one that does not.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ringfence_guard::{Admission, Claim, GuardedFile};

/// Both files.
#[derive(Debug)]
pub(crate) struct Accounts {
    guarded: GuardedFile,
    plain: PathBuf,
}

/// The balance in each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Balances {
    pub(crate) guarded: u64,
    pub(crate) plain: u64,
}

impl Accounts {
    /// The files in `dir`.
    pub(crate) fn open(dir: &Path) -> Self {
        Self { guarded: GuardedFile::open(dir.join("guarded")), plain: dir.join("plain") }
    }

    /// Creates both files with this balance.
    pub(crate) fn create(dir: &Path, balance: u64) -> anyhow::Result<Self> {
        let accounts = Self::open(dir);
        GuardedFile::create(dir.join("guarded"), balance.to_string().as_bytes())?;
        std::fs::write(&accounts.plain, balance.to_string())?;
        Ok(accounts)
    }

    /// Raises the fence of the guarded file to `claim`, then reads both.
    pub(crate) fn read_as(&self, claim: Claim) -> anyhow::Result<Balances> {
        if let Admission::Stale { high } = self.guarded.touch(claim)? {
            bail!("token {} is stale: the fence is {high}", claim.token());
        }
        self.read()
    }

    /// Reads both files.
    pub(crate) fn read(&self) -> anyhow::Result<Balances> {
        let guarded = String::from_utf8(self.guarded.read()?.data)?;
        let plain = std::fs::read_to_string(&self.plain)?;
        let parse = |balance: &str| balance.parse().with_context(|| format!("`{balance}` is not a balance"));
        Ok(Balances { guarded: parse(&guarded)?, plain: parse(&plain)? })
    }

    /// Writes both files. The plain one takes every write; the result is the guarded one's.
    pub(crate) fn write(&self, claim: Claim, new: Balances) -> anyhow::Result<Admission> {
        std::fs::write(&self.plain, new.plain.to_string())?;
        Ok(self.guarded.write(claim, new.guarded.to_string().as_bytes())?)
    }
}
