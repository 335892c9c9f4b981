//! A command that runs while a lease is held, and no longer.
//!
//! ```text
//! ringfence lock ─┬─▶ become ───▶ COMMAND ─▶ its children     a process group of their own
//!                 └─▶ watch-group                             reads a pipe; at its end it kills that group
//! ```
//! COMMAND is started by way of this program, which has the kernel kill it when `lock` ends, takes over the terminal where
//! there is one, and then becomes COMMAND. The kernel tells COMMAND alone; so a second process waits for the end of a pipe of
//! which `lock` has the other side, and kills whoever is left of the group. A child that has left the group on purpose
//! (`setsid`) gets away from all of this, as from a terminal that is closed.
//!
//! Nothing here helps where all of this is paused at once, and the lease ends meanwhile. There only the token does.

pub(crate) mod r#become;
mod terminal;
pub(crate) mod watch_group;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind, signal};

use terminal::Terminal;
use watch_group::Watcher;

/// A running command, with all that it has started. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    child: Child,
    group: Pid,
    terminal: Option<Terminal>,
    watcher: Option<Watcher>,
    children: unix::Signal,
}

/// What became of a command.
pub(crate) enum Change {
    Ended(ExitStatus),
    /// By a signal; it can go on.
    Stopped,
}

impl Held {
    /// Starts `command`, a program and its arguments, with these variables in addition to this process's own. To be called
    /// by the main thread: when the thread ends that starts it, so does the command.
    pub(crate) fn start(command: &[OsString], variables: &[(&str, String)]) -> anyhow::Result<Self> {
        let children = signal(SignalKind::child())?;
        let terminal = Terminal::of_stdin();
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut become_it = std::process::Command::new(program);
        become_it.arg("become").arg(format!("--parent={}", std::process::id()));
        become_it.arg(format!("--terminal={}", terminal.is_some())).arg("--").args(command);
        become_it.envs(variables.iter().map(|(name, value)| (name, value)));
        become_it.stdin(Stdio::inherit()).process_group(0);
        let child = Command::from(become_it).kill_on_drop(true).spawn().context("cannot start a process")?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        let group = pid.context("a process that was not waited for has an id")?;
        if let Some(terminal) = &terminal {
            terminal.give_to(group);
        }
        let mut held = Self { child, group, terminal, watcher: None, children };
        held.watcher = Some(Watcher::start(group)?);
        Ok(held)
    }

    /// Waits until the command has ended, or was stopped.
    pub(crate) async fn changed(&mut self) -> io::Result<Change> {
        loop {
            tokio::select! {
                status = self.child.wait() => return status.map(Change::Ended),
                _ = self.children.recv() => {}
            }
            let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            // Nobody else can have its id before it was waited for.
            if let Ok(Some(_)) = waitid(WaitId::Pid(self.group), stopped) {
                return Ok(Change::Stopped);
            }
        }
    }

    /// Sends `signal` to the command and all that it has started. What is stopped goes on, to notice.
    pub(crate) fn signal(&self, signal: Signal) {
        // They may have ended by now.
        let _ = kill_process_group(self.group, signal);
        if signal != Signal::TSTP {
            let _ = kill_process_group(self.group, Signal::CONT);
        }
    }

    /// Kills the command and all that it has started, and waits for its end.
    pub(crate) async fn kill(&mut self) -> io::Result<ExitStatus> {
        let _ = kill_process_group(self.group, Signal::KILL);
        self.child.wait().await
    }

    /// Whether it has the terminal that this process was given.
    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// The terminal is this process's own, from then on or until [`Held::go_on`].
    pub(crate) fn take_terminal(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back_from(self.group);
        }
    }

    /// Lets the command go on, with the terminal, after it was stopped.
    pub(crate) fn go_on(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.give_to(self.group);
        }
        let _ = kill_process_group(self.group, Signal::CONT);
    }

    /// To be called when the command has ended. What it has left behind on purpose goes on.
    pub(crate) fn let_go(mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.dismiss();
        }
    }
}

/// Where it was not let go, its group is killed.
impl Drop for Held {
    fn drop(&mut self) {
        self.take_terminal();
        if self.watcher.is_some() {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
    }
}
