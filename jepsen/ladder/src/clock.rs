//! A time of day that jumps, for a server or a holder: a small library, compiled by `cc` for the run and loaded before the
//! C library. (Debian's `redis-server` does not start under libfaketime.) Programs in Go do not ask that one: see `vdso`.

pub(crate) mod vdso;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use ringfence_harness::preload;

use crate::fault::Fault;

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

    /// One for servers, if the fault is about their clock.
    pub(crate) fn of_servers(fault: Fault, folder: &Path) -> anyhow::Result<Option<Self>> {
        let name = format!("server-{}", fastrand::u64(..));
        fault.server_clock_h().map(|_| Self::new(folder, &name)).transpose()
    }

    /// Throws a clock by so many hours. Returns by how much `what` has moved, the time of a server in seconds.
    pub(crate) async fn moves<F: Future<Output = anyhow::Result<i64>>>(
        clock: Option<&Self>,
        hours: i64,
        what: &str,
        time: impl Fn() -> F,
    ) -> anyhow::Result<String> {
        let before = time().await?;
        clock.context("there is no clock to throw")?.throw(hours * 3_600)?;
        let moved = time().await? - before;
        ensure!((moved - hours * 3_600).abs() < 600, "{what} has moved by {moved} s");
        Ok(format!("{what} has moved by {moved} s"))
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
