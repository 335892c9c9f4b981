//! Clocks that lie: the nodes run with a library that answers for the clock (libfaketime), and reads from a file how far
//! it is off.
//!
//! Which clocks lie is decided when a node is started: the time of day alone, or with it the monotonic one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Nemesis, Scene, named};
use crate::history::Fault;

/// How often clocks jump back and forth.
const STROBE: Duration = Duration::from_millis(100);

/// The clocks of all nodes.
#[derive(Debug)]
pub(crate) struct Clocks {
    library: PathBuf,
    dir: TempDir,
    with_monotonic: bool,
    offsets_s: Mutex<BTreeMap<u64, i64>>,
    started: Mutex<Vec<u32>>,
}

impl Clocks {
    /// Clocks that are right, of nodes that are about to be started.
    pub(crate) fn new(nodes: u64, with_monotonic: bool) -> anyhow::Result<Self> {
        let library = Self::library().context("there is no libfaketime")?;
        let dir = tempfile::tempdir()?;
        let clocks =
            Self { library, dir, with_monotonic, offsets_s: Mutex::default(), started: Mutex::default() };
        (1..=nodes).try_for_each(|id| clocks.throw(id, 0))?;
        Ok(clocks)
    }

    /// Where the library is, if it is there.
    pub(crate) fn library() -> Option<PathBuf> {
        let places = std::fs::read_dir("/usr/lib").ok()?.flatten();
        places.map(|place| place.path().join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
    }

    /// Has the node that `command` starts ask these clocks.
    pub(crate) fn wind(&self, id: u64, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_TIMESTAMP_FILE", self.file(id));
        if !self.with_monotonic {
            command.env("DONT_FAKE_MONOTONIC", "1");
        }
    }

    /// What the library shares between processes stays behind a process that is killed.
    pub(crate) fn started(&self, pid: Option<u32>) {
        self.started.lock().expect("no panic while it is locked").extend(pid);
    }

    /// From now on the clock of this node is off by so many seconds.
    pub(crate) fn throw(&self, id: u64, offset_s: i64) -> anyhow::Result<()> {
        let mut offsets_s = self.offsets_s.lock().expect("no panic while it is locked");
        let new = self.dir.path().join("new");
        std::fs::write(&new, format!("{offset_s:+}")).context("cannot set a clock")?;
        std::fs::rename(new, self.file(id)).context("cannot set a clock")?;
        offsets_s.insert(id, offset_s);
        Ok(())
    }

    /// All clocks are right again, unless that would turn back the monotonic one.
    pub(crate) fn right(&self) -> anyhow::Result<()> {
        let nodes: Vec<u64> =
            self.offsets_s.lock().expect("no panic while it is locked").keys().copied().collect();
        if self.with_monotonic { Ok(()) } else { nodes.into_iter().try_for_each(|id| self.throw(id, 0)) }
    }

    fn offset_s(&self, id: u64) -> i64 {
        self.offsets_s.lock().expect("no panic while it is locked").get(&id).copied().unwrap_or(0)
    }

    fn file(&self, id: u64) -> PathBuf {
        self.dir.path().join(format!("clock-{id}"))
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        for pid in self.started.get_mut().expect("no panic while it is locked") {
            for name in ["faketime_shm", "sem.faketime_sem"] {
                let _ = std::fs::remove_file(format!("/dev/shm/{name}_{pid}"));
            }
        }
    }
}

impl Scene<'_> {
    pub(super) async fn jump_wall_clock(
        self,
        nodes: &[u64],
        by_s: i64,
        lasts: Duration,
    ) -> anyhow::Result<Vec<Fault>> {
        let what = format!("the wall clock of {} is off by {by_s:+} s", named(nodes));
        let fault = self.begun(Nemesis::WallClock, nodes, what);
        self.throw(nodes, by_s)?;
        sleep(lasts).await;
        self.throw(nodes, 0)?;
        Ok(self.over(fault))
    }

    pub(super) async fn strobe_wall_clock(
        self,
        nodes: &[u64],
        by_s: i64,
        lasts: Duration,
    ) -> anyhow::Result<Vec<Fault>> {
        let what = format!("the wall clock of {} jumps by {by_s:+} s and back all the time", named(nodes));
        let fault = self.begun(Nemesis::WallClock, nodes, what);
        let end = Instant::now() + lasts;
        for offset_s in [by_s, 0].into_iter().cycle() {
            self.throw(nodes, offset_s)?;
            if Instant::now() + STROBE > end {
                break;
            }
            sleep(STROBE).await;
        }
        sleep_until(end).await;
        self.throw(nodes, 0)?;
        Ok(self.over(fault))
    }

    pub(super) fn jump_monotonic_clock(self, nodes: &[u64], by_s: u64) -> anyhow::Result<Vec<Fault>> {
        let what = format!("both clocks of {} jump forward by {by_s} s", named(nodes));
        let fault = self.begun(Nemesis::MonotonicClock, nodes, what);
        let clocks = self.field.clocks()?;
        for id in nodes {
            clocks.throw(*id, clocks.offset_s(*id).saturating_add_unsigned(by_s))?;
        }
        Ok(self.over(fault))
    }

    fn throw(self, nodes: &[u64], offset_s: i64) -> anyhow::Result<()> {
        let clocks = self.field.clocks()?;
        nodes.iter().try_for_each(|id| clocks.throw(*id, offset_s))
    }
}
