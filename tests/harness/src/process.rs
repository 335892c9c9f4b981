use std::ffi::OsStr;
use std::fs::{DirEntry, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::spawner;

/// The start of a command that runs `program`, as the same process, so that it is killed when this program ends,
/// however it ends. For what cannot see to that itself.
pub(crate) fn mortal(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A child process that is ours until it is reaped: its pid cannot be anyone else's meanwhile.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    is_stopped: bool,
}

impl Process {
    /// Starts `command`. What it prints is appended to the file `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> io::Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        // What is set for a real node must not reach these.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RINGFENCE_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Self { child: spawner::spawn(command)?, is_stopped: false })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether [`Signal::STOP`] was the last of its kind that was sent.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether every thread of it is stopped.
    pub(crate) fn stands_still(&self) -> bool {
        let stands = |task: DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat"));
            // The state stands behind the name, which may contain anything.
            stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
        };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        tasks.is_ok_and(|tasks| tasks.flatten().all(stands))
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
        }
        kill_process(Pid::from_child(&self.child), signal)?;
        match signal {
            Signal::STOP => self.is_stopped = true,
            Signal::CONT => self.is_stopped = false,
            _ => {}
        }
        Ok(())
    }

    /// Sends SIGKILL, which works on a stopped process too.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Waits until it has ended. To be called only if it surely will.
    pub(crate) fn reap(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
    }
}
