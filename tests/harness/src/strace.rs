//! Makes system calls of a node fail or delays them, with `strace`.

use std::future::ready;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Server, folder, output};
use crate::{Error, Node};

/// Faults of the system calls of a node, until this is dropped.
#[derive(Debug)]
pub struct Injection {
    strace: Server,
    dir: TempDir,
}

/// Whether faults can be injected here; if not, prints why, and the test returns.
pub fn may_inject() -> bool {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal = REFUSAL.get_or_init(|| {
        if !rustix::process::geteuid().is_root() {
            return Some("needs root".to_owned());
        }
        let arguments = ["-qq", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=1", "true"];
        output(Command::new("strace").args(arguments), "").err().map(|error| error.to_string())
    });
    if let Some(why) = refusal {
        eprintln!("skipped: {why}");
    }
    refusal.is_none()
}

impl Injection {
    /// Injects `what` into the system calls named `call` of `node`, in the syntax of strace's `inject`: as
    /// `error=EIO:when=1`, or `delay_enter=` and microseconds. `when` counts the calls of each thread.
    pub async fn start(node: &Node, call: &str, what: &str) -> Result<Self, Error> {
        let pid = node.pid().ok_or_else(|| Error::Failed(format!("node {} has no process", node.id())))?;
        let dir = folder("strace")?;
        let mut command = Command::new("strace");
        command.args(["-f", "-e", &format!("trace={call}"), "-e", &format!("inject={call}:{what}"), "-o"]);
        command.arg(dir.path().join("calls")).args(["-p", &pid.to_string()]);
        let strace =
            Server::start_new(format!("strace of node {}", node.id()), dir.path().join("said"), command)?;
        strace.ready(|| ready(strace.log().contains("attached"))).await?;
        Ok(Self { strace, dir })
    }

    /// The number of affected calls.
    pub fn count(&self) -> usize {
        let calls = std::fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        calls.lines().filter(|line| line.contains("(INJECTED)") || line.contains("(DELAYED)")).count()
    }
}

impl Drop for Injection {
    /// After SIGKILL, strace would leave a call half done.
    fn drop(&mut self) {
        if self.strace.signal(Signal::TERM).is_ok() {
            let _ = self.strace.finish_kill();
        }
    }
}
