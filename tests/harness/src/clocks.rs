//! Clocks that lie: nodes run with a library that answers for the clock (libfaketime), and reads from a file how far it is
//! off.
//!
//! Which clocks lie is decided when a node is started: the time of day alone, or with it the monotonic one.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use tempfile::TempDir;

use crate::{Error, Node, until};

/// How near a node's clock must be to where it was thrown.
const NEAR_S: i64 = 1_800;

/// The clocks of some nodes, by the ids of those.
#[derive(Debug)]
pub struct Clocks {
    library: PathBuf,
    dir: TempDir,
    with_monotonic: bool,
    offsets_s: Mutex<BTreeMap<u64, i64>>,
    started: Mutex<Vec<u32>>,
}

impl Clocks {
    /// Clocks that are right, of nodes that are about to be started, with ids from 1. [`Error::Unavailable`] where the
    /// library is not installed.
    pub fn new(nodes: u64, with_monotonic: bool) -> Result<Self, Error> {
        let library = Self::library()
            .ok_or_else(|| Error::Unavailable("needs libfaketime, of the package faketime".to_owned()))?;
        let dir = tempfile::tempdir().map_err(Error::io("cannot make a directory"))?;
        let clocks =
            Self { library, dir, with_monotonic, offsets_s: Mutex::default(), started: Mutex::default() };
        (1..=nodes).try_for_each(|id| clocks.throw(id, 0))?;
        Ok(clocks)
    }

    /// Where the library is, if it is there.
    pub fn library() -> Option<PathBuf> {
        let places = std::fs::read_dir("/usr/lib").ok()?.flatten();
        places.map(|place| place.path().join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
    }

    /// Has the node that `command` starts ask these clocks.
    pub fn wind(&self, id: u64, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_TIMESTAMP_FILE", self.file(id));
        if !self.with_monotonic {
            command.env("DONT_FAKE_MONOTONIC", "1");
        }
    }

    /// To be told of each process that was started with them: what the library shares between processes stays behind one
    /// that is killed.
    pub fn started(&self, pid: Option<u32>) {
        self.started.lock().expect("no panic while it is locked").extend(pid);
    }

    /// From now on the clock of this node is off by so many seconds.
    pub fn throw(&self, id: u64, offset_s: i64) -> Result<(), Error> {
        let mut offsets_s = self.offsets_s();
        let new = self.dir.path().join("new");
        let thrown =
            std::fs::write(&new, format!("{offset_s:+}")).and_then(|()| std::fs::rename(new, self.file(id)));
        thrown.map_err(Error::io("cannot set a clock"))?;
        offsets_s.insert(id, offset_s);
        Ok(())
    }

    /// All clocks are right again, unless that would turn back the monotonic one.
    pub fn right(&self) -> Result<(), Error> {
        let nodes: Vec<u64> = self.offsets_s().keys().copied().collect();
        if self.with_monotonic { Ok(()) } else { nodes.into_iter().try_for_each(|id| self.throw(id, 0)) }
    }

    /// By how many seconds the clock of this node is off.
    pub fn offset_s(&self, id: u64) -> i64 {
        self.offsets_s().get(&id).copied().unwrap_or(0)
    }

    fn offsets_s(&self) -> MutexGuard<'_, BTreeMap<u64, i64>> {
        self.offsets_s.lock().expect("no panic while it is locked")
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

/// Waits until what a node logs shows a clock that is off by about so much.
pub async fn clock_is_off(node: &Node, by_s: i64, within: Duration) -> Result<(), Error> {
    let look = || async {
        let before = node.log().len();
        // A caller that is no peer is worth a line. In a namespace nobody reaches it from here: the load is worth some.
        if let Ok(mut stream) = TcpStream::connect(node.peer()) {
            let _ = stream.write_all(b"no peer's words");
        }
        let logged = || async { node.log().get(before..)?.lines().find_map(offset_s) };
        let offset_s = until(within, "a line with its time", logged).await.ok()?;
        ((offset_s - by_s).abs() < NEAR_S).then_some(())
    };
    until(within, format!("node {} logs with a clock that is off by {by_s} s", node.id()), look).await
}

/// By how many seconds the clock was off that stamped this line.
fn offset_s(line: &str) -> Option<i64> {
    let at = Command::new("date").arg("+%s").arg("--date").arg(line.split(' ').next()?).output().ok()?;
    let at: i64 = String::from_utf8(at.stdout).ok()?.trim().parse().ok()?;
    Some(at - UNIX_EPOCH.elapsed().ok()?.as_secs() as i64)
}
