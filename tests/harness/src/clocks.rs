//! Wrong clocks: nodes run with libfaketime, which shifts their clocks by the offset in a file.
//!
//! It shifts the time of day alone, or the monotonic clock, too; that is fixed when a node is started.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use tempfile::TempDir;

use crate::process::folder;
use crate::{Error, Node, until};

/// The tolerance of [`clock_is_off`].
const NEAR_S: i64 = 1_800;

/// The clocks of some nodes, by node id.
#[derive(Debug)]
pub struct Clocks {
    library: PathBuf,
    dir: TempDir,
    with_monotonic: bool,
    offsets_s: Mutex<BTreeMap<u64, i64>>,
    started: Mutex<Vec<u32>>,
}

impl Clocks {
    /// Correct clocks for nodes that are about to be started, with ids from 1. [`Error::Unavailable`] where the library is
    /// not installed.
    pub fn new(nodes: u64, with_monotonic: bool) -> Result<Self, Error> {
        let library = Self::library()
            .ok_or_else(|| Error::Unavailable("needs libfaketime, of the package faketime".to_owned()))?;
        let dir = folder("clocks")?;
        let clocks =
            Self { library, dir, with_monotonic, offsets_s: Mutex::default(), started: Mutex::default() };
        (1..=nodes).try_for_each(|id| clocks.throw(id, 0))?;
        Ok(clocks)
    }

    /// The library, if it is installed.
    pub fn library() -> Option<PathBuf> {
        let places = std::fs::read_dir("/usr/lib").ok()?.flatten();
        places.map(|place| place.path().join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
    }

    /// Makes the node that `command` starts use these clocks.
    pub fn wind(&self, id: u64, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_TIMESTAMP_FILE", self.file(id));
        if !self.with_monotonic {
            command.env("DONT_FAKE_MONOTONIC", "1");
        }
    }

    /// Call this for each process started with these clocks: one that is killed leaves the library's shared memory behind,
    /// which is removed when this is dropped.
    pub fn started(&self, pid: Option<u32>) {
        self.started.lock().expect("no panic while it is locked").extend(pid);
    }

    /// Sets the offset of the clock of a node.
    pub fn throw(&self, id: u64, offset_s: i64) -> Result<(), Error> {
        let mut offsets_s = self.offsets_s();
        let new = self.dir.path().join("new");
        let thrown =
            std::fs::write(&new, format!("{offset_s:+}")).and_then(|()| std::fs::rename(new, self.file(id)));
        thrown.map_err(Error::io("cannot set a clock"))?;
        offsets_s.insert(id, offset_s);
        Ok(())
    }

    /// Resets all clocks, unless that would set back a monotonic one.
    pub fn right(&self) -> Result<(), Error> {
        let nodes: Vec<u64> = self.offsets_s().keys().copied().collect();
        if self.with_monotonic { Ok(()) } else { nodes.into_iter().try_for_each(|id| self.throw(id, 0)) }
    }

    /// The offset of the clock of a node, in seconds.
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

/// Waits until a node logs with a clock that is off by about `by_s`.
pub async fn clock_is_off(node: &Node, by_s: i64, within: Duration) -> Result<(), Error> {
    let look = || async {
        let before = node.log().len();
        // A stranger on the peer port makes it log a line. A node in a namespace cannot be reached, but logs under load.
        if let Ok(mut stream) = TcpStream::connect(node.peer()) {
            let _ = stream.write_all(b"no peer's words");
        }
        let logged = || async { node.log().get(before..)?.lines().find_map(offset_s) };
        let offset_s = until(within, "a line with its time", logged).await.ok()?;
        ((offset_s - by_s).abs() < NEAR_S).then_some(())
    };
    until(within, format!("node {} logs with a clock that is off by {by_s} s", node.id()), look).await
}

/// How many seconds the clock that stamped this line was off.
fn offset_s(line: &str) -> Option<i64> {
    let at = Command::new("date").arg("+%s").arg("--date").arg(line.split(' ').next()?).output().ok()?;
    let at: i64 = String::from_utf8(at.stdout).ok()?.trim().parse().ok()?;
    Some(at - UNIX_EPOCH.elapsed().ok()?.as_secs() as i64)
}
