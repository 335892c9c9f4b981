//! A command that runs while a lease is held, and no longer.
//!
//! ```text
//! ringfence lock ─┬─▶ become ───▶ COMMAND ─▶ its children     a process group of their own
//!                 └─▶ watch-group                             reads a pipe; at its end it kills that group
//! ```
//! COMMAND is started by way of this program, which has the kernel kill it when `lock` ends, takes over the terminal where
//! there is one, and then becomes COMMAND. The kernel tells COMMAND alone; so a second process waits for the end of a pipe of
//! which `lock` has the other side, and kills whoever is left of the group. A child that has left the group on purpose
//! (`setsid`) gets away from all of this, as from a terminal that is closed. So does a command that becomes another user (`sudo`): this one may not
//! kill it, and `lock` can but say so.
//!
//! Nothing here helps where all of this is paused at once, and the lease ends meanwhile. There only the token does.

pub(crate) mod r#become;
mod group;
mod terminal;
pub(crate) mod watch_group;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::sleep;

use terminal::Terminal;
use watch_group::Watcher;

/// How often it is looked whether all have died who were told to.
const LOOKS: Duration = Duration::from_millis(20);

/// A running command, with all that it has started. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    child: Child,
    group: Pid,
    terminal: Option<Terminal>,
    watcher: Option<Watcher>,
    children: unix::Signal,
    has_ended: bool,
    is_let_go: bool,
}

/// What became of a command.
pub(crate) enum Change {
    /// What it has started may live on.
    Ended,
    /// After its end: nobody of all that it has started lives any more.
    Emptied,
    /// By a signal; it can go on.
    Stopped,
}

impl Held {
    /// Starts `command`, a program and its arguments, with these variables in addition to this process's own. To be called
    /// by the main thread: when the thread ends that starts it, so does the command.
    pub(crate) fn start(command: &[OsString], variables: &[(&str, String)]) -> anyhow::Result<Self> {
        let children = signal(SignalKind::child())?;
        let terminal = Terminal::of_stdin();
        let mut become_it = this_program("become");
        become_it.arg(format!("--parent={}", std::process::id()));
        become_it.arg(format!("--terminal={}", terminal.is_some())).arg("--").args(command);
        become_it.envs(variables.iter().map(|(name, value)| (name, value)));
        become_it.stdin(Stdio::inherit()).process_group(0);
        let child = become_it.spawn().context("cannot start a process")?;
        let group = Pid::from_child(&child);
        if let Some(terminal) = &terminal {
            terminal.give_to(group);
        }
        let mut held =
            Self { child, group, terminal, watcher: None, children, has_ended: false, is_let_go: false };
        held.watcher = Some(Watcher::start(group)?);
        Ok(held)
    }

    /// Waits until the command has ended, or was stopped; after its end, until all that it has started has ended, too.
    pub(crate) async fn changed(&mut self) -> io::Result<Change> {
        let look = |what| waitid(WaitId::Pid(self.group), what | WaitIdOptions::NOHANG);
        if self.has_ended {
            while group::lives(self.group)? {
                sleep(LOOKS).await;
            }
            return Ok(Change::Emptied);
        }
        loop {
            // It is left as a corpse: until that is fetched, nobody else can have its id, nor a group of that id.
            if look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?.is_some() {
                self.has_ended = true;
                return Ok(Change::Ended);
            }
            if look(WaitIdOptions::STOPPED)?.is_some() {
                return Ok(Change::Stopped);
            }
            self.children.recv().await;
        }
    }

    /// Sends `signal` to the command and all that it has started. What is stopped goes on, to notice. Fails where nobody of
    /// them may be sent one.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        self.send(signal)?;
        if signal != Signal::TSTP { self.send(Signal::CONT) } else { Ok(()) }
    }

    /// Kills the command and all that it has started.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.send(Signal::KILL)
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.group, signal) {
            // They have ended by now.
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
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
    pub(crate) fn let_go(mut self) -> io::Result<ExitStatus> {
        self.is_let_go = true;
        if let Some(watcher) = self.watcher.take() {
            watcher.dismiss();
        }
        self.child.wait()
    }
}

/// As it runs: the file may have been replaced since.
fn this_program(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ringfence").arg(subcommand);
    command
}

/// Where it was not let go, its group is killed.
impl Drop for Held {
    fn drop(&mut self) {
        self.take_terminal();
        if !self.is_let_go {
            let _ = self.kill();
        }
    }
}
