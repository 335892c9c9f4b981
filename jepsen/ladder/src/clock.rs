//! A time of day that jumps, for a server or a holder: a small library, compiled by `cc` for the run and loaded before the
//! C library. (Debian's `redis-server` does not start under libfaketime.) Programs in Go do not ask that one: see `vdso`.

pub(crate) mod vdso;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ringfence_harness::preload;

const SOURCE: &str = include_str!("clock.c");

/// The clock of the processes that are started with its [variables](Clock::variables).
#[derive(Debug)]
pub(crate) struct Clock {
    library: PathBuf,
    offset: PathBuf,
}

impl Clock {
    /// A clock that is right, with its files in `folder`. An error where there is no C compiler.
    pub(crate) fn new(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let library = folder.join("clock.so");
        preload::compile(SOURCE, &library)?;
        let clock = Self { library, offset: folder.join(format!("clock-{name}")) };
        std::fs::write(&clock.offset, [0; 8])?;
        Ok(clock)
    }

    /// What the environment of a process needs.
    pub(crate) fn variables(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("RINGFENCE_LADDER_CLOCK", self.offset.display().to_string()),
        ]
    }

    /// Sets it off by this many seconds, at once and in one step.
    pub(crate) fn throw(&self, offset_s: i64) -> anyhow::Result<()> {
        let file = std::fs::OpenOptions::new().write(true).open(&self.offset)?;
        Ok(file.write_all_at(&offset_s.to_ne_bytes(), 0)?)
    }
}
