//! Child processes that run this program and never outlive it. They are killed on drop, and by the kernel
//! ([`die_with_parent`]) if this process ends without running destructors.
//!
//! The kernel's parent is the *thread* that forked. So all children are started by the main thread, which lives as long
//! as the process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, bail};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process, set_parent_process_death_signal, waitid,
};

/// A child that only this type reaps: until then its pid cannot be reused.
#[derive(Debug)]
pub(crate) struct Child(std::process::Child);

/// A command that runs this program with `subcommand`, which passes `--die-with-parent` to [`die_with_parent`].
pub(crate) fn this_program(subcommand: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this executable")?);
    // The caller's settings for its real node must not reach these.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGFENCE_"))
    {
        command.env_remove(name);
    }
    command.arg(subcommand).arg(format!("--die-with-parent={}", std::process::id()));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // Ctrl-C goes to the whole foreground group; this process ends its children itself.
    command.process_group(0);
    Ok(command)
}

/// Has the kernel kill this process when its parent, which must be `parent`, ends.
pub(crate) fn die_with_parent(parent: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent that ended earlier sends no signal.
    if Pid::as_raw(getppid()) != parent {
        bail!("the parent process has exited");
    }
    Ok(())
}

impl Child {
    pub(crate) fn start(mut command: Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its standard output, if that is piped and was not taken before.
    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Its status, once it exited.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Fails if it exited.
    pub(crate) fn fail_if_ended(&mut self, name: &str) -> anyhow::Result<()> {
        match self.ended()? {
            Some(status) => bail!("{name} exited ({status})"),
            None => Ok(()),
        }
    }

    /// Whether it was stopped by a signal since the last call.
    pub(crate) fn has_stopped(&self) -> io::Result<bool> {
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.0)), stopped)?.is_some())
    }

    /// Sends SIGCONT.
    pub(crate) fn resume(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), Signal::CONT)?)
    }

    /// Sends SIGKILL, which also ends a stopped process. Drop reaps it.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.0.kill()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.0.kill().is_ok() {
            let _ = self.0.wait();
        }
    }
}
