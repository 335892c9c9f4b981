//! Processes of this program that end with the one that started them, however it ends: they are killed when they are
//! dropped, and by the kernel ([`die_with_parent`]) where nothing can be dropped any more.
//!
//! To the kernel the parent is the *thread* that started them. All are started by the main thread, which lives as long
//! as the process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, bail};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process, set_parent_process_death_signal, waitid,
};

/// A process that is ours until it is reaped: its pid cannot be anyone else's meanwhile.
#[derive(Debug)]
pub(crate) struct Child(std::process::Child);

/// A command that runs this program with `subcommand`, which hands `--die-with-parent` to [`die_with_parent`].
pub(crate) fn this_program(subcommand: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    // What is set for a real node must not reach these.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGFENCE_"))
    {
        command.env_remove(name);
    }
    command.arg(subcommand).arg(format!("--die-with-parent={}", std::process::id()));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // Ctrl-C in the terminal reaches the whole group; this process ends its children itself.
    command.process_group(0);
    Ok(command)
}

/// Lets this process be killed when the one that started it, `parent`, ends.
pub(crate) fn die_with_parent(parent: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before: the kernel has given this process another parent then, and does not tell.
    if Pid::as_raw(getppid()) != parent {
        bail!("the process that started this one has ended");
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

    /// What it prints, if that is piped and was not taken before.
    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Whether a signal has stopped it since this was last asked.
    pub(crate) fn has_stopped(&self) -> io::Result<bool> {
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.0)), stopped)?.is_some())
    }

    /// Lets it go on after it was stopped.
    pub(crate) fn resume(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), Signal::CONT)?)
    }

    /// Sends SIGKILL, which works on a stopped process too. It is gone once it is dropped.
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
