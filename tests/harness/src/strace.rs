//! System calls of a node that fail, or take long: `strace`, attached to it.

use std::future::ready;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::Process;
use crate::{Error, Node, until};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

/// What happens to the system calls of a node, until this is dropped.
#[derive(Debug)]
pub struct Injection {
    strace: Process,
    dir: TempDir,
}

/// Whether faults can be injected here; says so if not. A test that needs them ends then.
pub fn may_inject() -> bool {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal = REFUSAL.get_or_init(|| {
        if !rustix::process::geteuid().is_root() {
            return Some("needs root".to_owned());
        }
        let mut strace = Command::new("strace");
        let tried = strace
            .args(["-qq", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=1", "true"])
            .output();
        match tried {
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                Some(format!("root may not trace here: {}", String::from_utf8_lossy(&output.stderr)))
            }
            Err(error) => Some(format!("strace cannot be run: {error}")),
        }
    });
    if let Some(why) = refusal {
        eprintln!("skipped: {why}");
    }
    refusal.is_none()
}

impl Injection {
    /// From now on happens `what` to the system calls named `call` of `node`, in the words of strace's `inject`: as
    /// `error=EIO:when=1`, or `delay_enter=` and microseconds. `when` counts the calls of each thread.
    pub async fn start(node: &Node, call: &str, what: &str) -> Result<Self, Error> {
        let pid = node.pid().ok_or(Error::State { id: node.id(), why: "has no process" })?;
        let dir = tempfile::tempdir().map_err(Error::io("cannot make a directory"))?;
        let said = dir.path().join("said");
        let mut command = Command::new("strace");
        command.args(["-f", "-e", &format!("trace={call}"), "-e", &format!("inject={call}:{what}"), "-o"]);
        command.arg(dir.path().join("calls")).args(["-p", &pid.to_string()]);
        let mut strace = Process::start(command, &said).map_err(Error::io("cannot start strace"))?;
        let look = || {
            let said = std::fs::read_to_string(&said).unwrap_or_default();
            let failed = || Error::io("cannot attach strace")(std::io::Error::other(said.clone()));
            ready(match strace.ended() {
                _ if said.contains("attached") => Some(Ok(())),
                Ok(None) => None,
                _ => Some(Err(failed())),
            })
        };
        until(SOON, format!("strace is attached to node {}", node.id()), look).await??;
        Ok(Self { strace, dir })
    }

    /// How many of the calls something was done to.
    pub fn count(&self) -> usize {
        let calls = std::fs::read_to_string(self.calls()).unwrap_or_default();
        calls.lines().filter(|line| line.contains("(INJECTED)") || line.contains("(DELAYED)")).count()
    }

    fn calls(&self) -> PathBuf {
        self.dir.path().join("calls")
    }
}

impl Drop for Injection {
    /// Killed, strace would leave a call half done.
    fn drop(&mut self) {
        if self.strace.signal(Signal::TERM).is_ok() {
            let _ = self.strace.reap();
        }
    }
}
