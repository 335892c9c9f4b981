//! A command that runs while a lease is held, and no longer.
//!
//! ```text
//! ringfence lock ───▶ supervise ───▶ become ───▶ COMMAND ───▶ its descendants
//!       ╰──── socket ────╯               a process group of their own, and those that they make
//! ```
//! The supervisor is a subreaper: orphans become its children, whatever group or session they have made (`timeout`, `setsid`, a
//! double fork). So all descendants of COMMAND are its descendants, where signals find them; and when it has no child left,
//! none of them lives, and it ends. It reads a socket of which `lock` has the other end, and kills them all when that is
//! closed, however `lock` has ended.
//!
//! COMMAND is started by way of this program, which has the kernel kill it when the supervisor ends, takes over the terminal
//! where there is one, and then becomes COMMAND.
//!
//! Out of reach are processes that became another user (`sudo`), which this one may not signal: `lock` says so, and waits for
//! them; and what a server started for COMMAND (`docker run`, `systemd-run`, `ssh`), which is not its descendant. Where the
//! supervisor itself is killed, COMMAND and its group die with it, and those that have left the group get away.
//!
//! In a terminal, COMMAND's group is in front from the start where standard input is that terminal, else from when it asks for
//! it: until then those that `lock` shares a pipeline with may need it.
//!
//! Nothing here helps where all of this is paused at once, and the lease ends meanwhile. There only the token does.

pub(crate) mod r#become;
mod descendants;
pub(crate) mod supervise;
pub(crate) mod terminal;

use std::ffi::OsString;
use std::fs;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, bail, ensure};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, kill_current_process_group, kill_process_group, pidfd_send_signal, test_kill_process,
};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use descendants::Killing;
use terminal::Terminal;

/// A running command, with all that it has started. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    supervisor: Child,
    /// What the supervisor says. It kills all when this is closed.
    said: Lines<BufReader<tokio::net::UnixStream>>,
    group: Pid,
    /// COMMAND itself, which leads the group; `None` if it ended at once.
    leader: Option<OwnedFd>,
    terminal: Option<Terminal>,
    /// Because this process was given it as standard input, or because the command has asked for it.
    uses_terminal: bool,
    has_ended: bool,
    killing: Option<Killing>,
    is_let_go: bool,
}

/// What became of a command.
pub(crate) enum Change {
    /// What it has started may live on.
    Ended(ExitStatus),
    /// After its end: nobody of all that it has started lives any more.
    Emptied,
    /// By this signal; it can go on.
    Stopped(Option<i32>),
}

impl Held {
    /// Starts `command`, a program and its arguments, with these variables in addition to this process's own.
    pub(crate) async fn start(command: &[OsString], variables: &[(&str, String)]) -> anyhow::Result<Self> {
        // Where SIGCHLD is ignored, and children inherit that, the supervisor would learn of no status.
        drop(signal(SignalKind::child())?);
        let terminal = Terminal::open();
        let uses_terminal = terminal.is_some() && terminal::is_stdin();
        let (own, of_supervisor) = UnixStream::pair()?;
        supervise::send_stdin(&own).context("cannot hand on standard input")?;
        own.set_nonblocking(true)?;
        let mut said = BufReader::new(tokio::net::UnixStream::from_std(own)?).lines();
        let mut supervise = this_program("supervise");
        supervise.arg(format!("--terminal={uses_terminal}")).arg("--").args(command);
        supervise.envs(variables.iter().map(|(name, value)| (name, value)));
        // In no group that anybody sends signals to.
        supervise.stdin(OwnedFd::from(of_supervisor)).process_group(0);
        let supervisor = supervise.spawn().context("cannot start a process")?;
        // Else the other end of the socket would never be closed.
        drop(supervise);
        let Some(group) = said.next_line().await.ok().flatten() else { bail!("cannot start the command") };
        let group = group.parse().ok().and_then(Pid::from_raw).context("the supervisor tells no pid")?;
        let leader = descendants::open_child(group, Pid::from_child(&supervisor));
        Ok(Self {
            supervisor,
            said,
            group,
            leader,
            terminal,
            uses_terminal,
            has_ended: false,
            killing: None,
            is_let_go: false,
        })
    }

    /// Waits until the command has ended, or was stopped; after its end, until all that it has started has ended, too. Nothing
    /// is lost when this is dropped.
    pub(crate) async fn changed(&mut self) -> Change {
        loop {
            let again = async {
                match &mut self.killing {
                    Some(killing) => {
                        sleep(killing.pause).await;
                        killing
                    }
                    None => pending().await,
                }
            };
            tokio::select! {
                said = self.said.next_line() => return self.change(said.ok().flatten()),
                // Whom this does not reach was told of at first.
                killing = again => drop(killing.kill()),
            }
        }
    }

    fn change(&mut self, said: Option<String>) -> Change {
        match said.and_then(|status| status.parse().ok()).map(ExitStatus::from_raw) {
            Some(status) if status.stopped_signal().is_some() => Change::Stopped(status.stopped_signal()),
            Some(status) => {
                self.has_ended = true;
                Change::Ended(status)
            }
            None if self.has_ended => Change::Emptied,
            None => {
                // The supervisor was killed, and the command by the kernel for it.
                self.kill_group();
                self.has_ended = true;
                Change::Ended(ExitStatus::from_raw(Signal::KILL.as_raw()))
            }
        }
    }

    /// Kills the command's group, which may be gone: this process may have been stopped for long. The kernel gives nobody the
    /// pid of a group that has members, so where another process has it, the group is not the command's.
    fn kill_group(&self) {
        let is_there =
            self.leader.as_ref().is_some_and(|leader| pidfd_send_signal(leader, Signal::KILL).is_ok());
        if is_there || test_kill_process(self.group) == Err(Errno::SRCH) {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
    }

    /// Sends `signal` to the command and all that it has started. What is stopped goes on, to notice. Fails where any of them
    /// may not be sent one.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let sent = self.send(signal);
        if signal != Signal::TSTP { sent.and(self.send(Signal::CONT)) } else { sent }
    }

    /// Kills the command and all that it has started, and whatever that starts until [`changed`](Self::changed) tells that all
    /// have ended.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        let root = Pid::from_child(&self.supervisor);
        self.killing.get_or_insert_with(|| Killing::of(root)).kill()
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        descendants::signal(Pid::from_child(&self.supervisor), signal)
    }

    /// To be called when it was stopped. In a terminal its group and this process's are one job to whoever has stopped it, and
    /// to the shell: so the rest of both stops too, and this returns when the job is continued. Returns whether the command
    /// is to go on. `sent` is given the outcome of stopping the rest, before this process stops.
    pub(crate) fn stop_likewise(&mut self, signal: Option<i32>, sent: impl FnOnce(io::Result<()>)) -> bool {
        // Whoever has stopped it will continue it, perhaps by way of this process.
        let Some(terminal) = &self.terminal else { return false };
        let is = |one: Signal| signal == Some(one.as_raw());
        let is_in_front = terminal.is_own() || terminal.has(self.group);
        if is(Signal::TTIN) || is(Signal::TTOU) {
            self.uses_terminal = true;
            if is_in_front {
                return true;
            }
        }
        if is(Signal::STOP) && !is_in_front {
            return false;
        }
        // Who is deaf to Ctrl-Z would run on without the lease, which nobody renews meanwhile.
        sent(self.send(Signal::STOP));
        terminal.take_back_from(self.group);
        // No SIGSTOP: of this one the kernel knows whether there is anybody who could continue the job. It cannot fail: a process may signal itself.
        let _ = kill_current_process_group(Signal::TTIN);
        true
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
    pub(crate) fn let_go(mut self) {
        self.is_let_go = true;
        // It kills nobody any more.
        if self.supervisor.kill().is_ok() {
            let _ = self.supervisor.wait();
        }
    }
}

/// Fails if `/proc` shows the processes of another pid namespace: nothing that a command starts would be found there.
pub(crate) fn check_proc() -> anyhow::Result<()> {
    let own = fs::read_link("/proc/self").ok();
    ensure!(
        own.is_some_and(|own| own.as_os_str() == getpid().to_string().as_str()),
        "/proc does not belong to the pid namespace of this process, so the command could not be ended: mount it there \
         (mount -t proc proc /proc, or unshare --mount-proc)"
    );
    Ok(())
}

/// As it runs: the file may have been replaced since.
fn this_program(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ringfence").arg(subcommand);
    command
}

/// Where it was not let go, it is killed.
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
