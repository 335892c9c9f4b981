//! A command that runs while a lease is held, and no longer.
//!
//! ```text
//! ringfence lock ─┬─▶ become ───▶ COMMAND ─▶ its children     a process group of their own
//!                 └─▶ watch-group                             reads a pipe; at its end it kills that group
//! ```
//! COMMAND is started by way of this program, which has the kernel kill it when `lock` ends, takes over the terminal where
//! there is one, and then becomes COMMAND. The kernel tells COMMAND alone; so a second process waits for the end of a pipe of
//! which `lock` has the other side, and kills whoever is left of the group. A child that has left the group on purpose
//! (`setsid`) gets away from all of this, as from a terminal that is closed. So does a command that becomes another user
//! (`sudo`): this one may not kill it, and `lock` can but say so.
//!
//! In a terminal, COMMAND's group is in front from the start where standard input is that terminal, else from when it asks for
//! it: until then those that `lock` shares a pipeline with may need it.
//!
//! Nothing here helps where all of this is paused at once, and the lease ends meanwhile. There only the token does.

pub(crate) mod r#become;
mod group;
pub(crate) mod terminal;
pub(crate) mod watch_group;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_current_process_group, kill_process_group, waitid,
};
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
    /// Because this process was given it as standard input, or because the command has asked for it.
    uses_terminal: bool,
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
    /// By this signal; it can go on.
    Stopped(Option<i32>),
}

impl Held {
    /// Starts `command`, a program and its arguments, with these variables in addition to this process's own. To be called
    /// by the main thread: when the thread ends that starts it, so does the command.
    pub(crate) fn start(command: &[OsString], variables: &[(&str, String)]) -> anyhow::Result<Self> {
        let children = signal(SignalKind::child())?;
        let terminal = Terminal::open();
        let uses_terminal = terminal.is_some() && terminal::is_stdin();
        let mut become_it = this_program("become");
        become_it.arg(format!("--parent={}", std::process::id()));
        become_it.arg(format!("--terminal={uses_terminal}")).arg("--").args(command);
        become_it.envs(variables.iter().map(|(name, value)| (name, value)));
        become_it.stdin(Stdio::inherit()).process_group(0);
        let child = become_it.spawn().context("cannot start a process")?;
        let group = Pid::from_child(&child);
        let mut held = Self {
            child,
            group,
            terminal,
            uses_terminal,
            watcher: None,
            children,
            has_ended: false,
            is_let_go: false,
        };
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
            if let Some(status) = look(WaitIdOptions::STOPPED)? {
                return Ok(Change::Stopped(status.stopping_signal()));
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

    /// To be called when it was stopped. In a terminal its group and this process's are one job to whoever has stopped it, and
    /// to the shell: so the rest of both stops too, and this returns when the job is continued. Returns whether the command
    /// is to go on.
    pub(crate) fn stop_likewise(&mut self, signal: Option<i32>) -> io::Result<bool> {
        // Whoever has stopped it will continue it, perhaps by way of this process.
        let Some(terminal) = &self.terminal else { return Ok(false) };
        let is = |one: Signal| signal == Some(one.as_raw());
        let is_in_front = terminal.is_own() || terminal.has(self.group);
        if is(Signal::TTIN) || is(Signal::TTOU) {
            self.uses_terminal = true;
            if is_in_front {
                return Ok(true);
            }
        }
        if is(Signal::STOP) && !is_in_front {
            return Ok(false);
        }
        // Who is deaf to Ctrl-Z would run on without the lease, which nobody renews meanwhile.
        self.send(Signal::STOP)?;
        terminal.take_back_from(self.group);
        // No SIGSTOP: of this one the kernel knows whether there is anybody who could continue the job.
        kill_current_process_group(Signal::TTIN)?;
        Ok(true)
    }

    /// Lets the command go on, with the terminal if it needs that, after it was stopped.
    pub(crate) fn go_on(&self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.uses_terminal) {
            terminal.give_to(self.group);
        }
        let _ = self.send(Signal::CONT);
    }

    /// Whether it is what Ctrl-C in the terminal goes to.
    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.has(self.group))
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
        if let Some(terminal) = &self.terminal {
            terminal.take_back_from(self.group);
        }
        if !self.is_let_go {
            let _ = self.kill();
        }
    }
}
