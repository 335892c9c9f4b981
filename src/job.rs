//! A command that never outlives its lease, together with its descendants.
//!
//! ```text
//! ringfence lock ───▶ supervise ───▶ exec ───▶ COMMAND ───▶ its descendants
//!       ╰──── socket ────╯           a process group of their own, and groups that they make
//! ```
//! The supervisor is a subreaper: it adopts orphans, whatever process group or session they are in (`timeout`, `setsid`, a
//! double fork). So every descendant of COMMAND is found below it, and once it has no child left, none is alive, and it
//! exits. It reads a socket whose other end `lock` holds, and kills all descendants when that is closed, however `lock`
//! ended. After each renewal, `lock` sends it the [`deadline`] through that socket, at which it kills by itself: `lock` may
//! be stopped, or late.
//!
//! `exec` runs in the new process before COMMAND does: it makes the kernel kill that process when the supervisor ends,
//! takes the terminal, if there is one, and starts nothing after the deadline.
//!
//! Not covered: processes that became another user (`sudo`) cannot be signalled; `lock` reports them and waits for them.
//! Processes that a server started for COMMAND (`docker run`, `systemd-run`, `ssh`) are not its descendants. If the
//! supervisor itself is killed, COMMAND and its group die with it, but descendants outside the group survive.
//!
//! On a terminal, COMMAND's group is in the foreground from the start if standard input is that terminal. Otherwise it
//! moves there when it first reads from the terminal: until then, other commands of a pipeline may need it.
//!
//! If `lock` and the supervisor are paused together, the lease may end meanwhile. Only the token helps against that.

pub(crate) mod deadline;
pub(crate) mod exec;
mod process_tree;
pub(crate) mod supervisor;
pub(crate) mod terminal;

use std::ffi::OsString;
use std::fs;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, kill_current_process_group, kill_process_group, test_kill_process,
};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::cli::client::CREDENTIAL;
use deadline::Deadline;
use process_tree::{RepeatedKill, Target, Whom};
use terminal::Terminal;

/// A deadline that is later by less is the same: the clocks were read at other times.
const RENEWED: Duration = Duration::from_millis(10);

/// A running command and its descendants. Killed on drop.
#[derive(Debug)]
pub(crate) struct Job {
    supervisor: Child,
    /// From the supervisor, which kills all descendants when this is closed.
    reports: Lines<BufReader<tokio::net::UnixStream>>,
    group: Pid,
    /// COMMAND itself, which leads the group; `None` if it exited at once.
    leader: Option<Target>,
    terminal: Option<Terminal>,
    /// Standard input is the terminal, or COMMAND asked for it.
    uses_terminal: bool,
    has_exited: bool,
    killing: Option<RepeatedKill>,
    is_detached: bool,
    /// A SIGTSTP was passed on, and no SIGCONT since.
    is_suspended: bool,
    /// The deadline came before the command was started, which is not reported yet.
    is_late: bool,
    /// As the supervisor knows it.
    until: Deadline,
}

/// A change in the state of a job.
pub(crate) enum Event {
    /// COMMAND exited. Its descendants may live on.
    Exited(ExitStatus),
    /// After [`Event::Exited`]: no descendant is alive.
    AllExited,
    /// COMMAND was stopped by this signal.
    Stopped(Option<i32>),
    /// The supervisor kills all, because the deadline has come.
    TooLate,
}

impl Job {
    /// Starts `command`, a program and its arguments, with additional environment variables, unless it is too late. It is killed
    /// at this deadline, if it is not [extended](Self::extend).
    pub(crate) async fn start(
        command: &[OsString],
        variables: &[(&str, String)],
        until: Deadline,
    ) -> anyhow::Result<Self> {
        // An inherited SIG_IGN for SIGCHLD would hide exit statuses from the supervisor.
        drop(signal(SignalKind::child())?);
        let terminal = Terminal::open();
        let uses_terminal = terminal.is_some() && terminal::is_stdin();
        let (own, supervisors) = UnixStream::pair()?;
        supervisor::send_stdin(&own).context("cannot pass standard input to the command")?;
        own.set_nonblocking(true)?;
        let mut reports = BufReader::new(tokio::net::UnixStream::from_std(own)?).lines();
        let mut supervise = exec::this_program("supervise");
        supervise.arg(format!("--terminal={uses_terminal}")).arg(format!("--until={until}"));
        supervise.arg("--").args(command);
        // COMMAND gets its lease, not the right to others.
        supervise.env_remove(CREDENTIAL);
        supervise.envs(variables.iter().map(|(name, value)| (name, value)));
        // In a group of its own, so that signals to other groups miss it.
        supervise.stdin(OwnedFd::from(supervisors)).process_group(0);
        let supervisor = supervise.spawn().context("cannot start a process")?;
        // Closes this process's copy of the supervisor's end of the socket.
        drop(supervise);
        let mut report = reports.next_line().await.ok().flatten();
        let is_late = report.as_deref() == Some(supervisor::TOO_LATE);
        if is_late {
            report = reports.next_line().await.ok().flatten();
        }
        let Some(group) = report else { bail!("cannot start the command") };
        let group = group.parse().ok().and_then(Pid::from_raw).context("the supervisor sent no pid")?;
        let leader = process_tree::open_child(group, Pid::from_child(&supervisor));
        Ok(Self {
            supervisor,
            reports,
            group,
            leader,
            terminal,
            uses_terminal,
            has_exited: false,
            killing: None,
            is_detached: false,
            is_suspended: false,
            is_late,
            until,
        })
    }

    /// Waits for the next event. Cancel safe.
    pub(crate) async fn next(&mut self) -> Event {
        if std::mem::take(&mut self.is_late) {
            return Event::TooLate;
        }
        loop {
            let kill_again = async {
                match &mut self.killing {
                    Some(killing) => {
                        sleep(killing.pause).await;
                        killing
                    }
                    None => pending().await,
                }
            };
            tokio::select! {
                report = self.reports.next_line() => return self.event(report.ok().flatten()),
                // The first kill has reported what cannot be killed.
                killing = kill_again => drop(killing.kill()),
            }
        }
    }

    fn event(&mut self, report: Option<String>) -> Event {
        if report.as_deref() == Some(supervisor::TOO_LATE) {
            return Event::TooLate;
        }
        match report.and_then(|status| status.parse().ok()).map(ExitStatus::from_raw) {
            Some(status) if status.stopped_signal().is_some() => Event::Stopped(status.stopped_signal()),
            Some(status) => {
                self.has_exited = true;
                Event::Exited(status)
            }
            None if self.has_exited => Event::AllExited,
            None => {
                // The supervisor was killed, and the kernel killed COMMAND for it.
                self.kill_group();
                self.has_exited = true;
                Event::Exited(ExitStatus::from_raw(Signal::KILL.as_raw()))
            }
        }
    }

    /// Kills COMMAND's group, unless its number was reused while this process was stopped. The kernel gives no process the
    /// pid of a group that has members: if another process has it, the group is not COMMAND's.
    fn kill_group(&self) {
        let leader_exists = self.leader.as_ref().is_some_and(|leader| leader.signal(Signal::KILL).is_ok());
        if leader_exists || test_kill_process(self.group) == Err(Errno::SRCH) {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
    }

    /// Tells the supervisor a later deadline, if the lease was renewed.
    pub(crate) fn extend(&mut self, until: Deadline) {
        if until.since(self.until) < RENEWED {
            return;
        }
        let line = format!("{until}\n");
        // It fails while the supervisor does not read, as when it is stopped. Then the next call sends a later one.
        if self.reports.get_ref().get_ref().try_write(line.as_bytes()).is_ok() {
            self.until = until;
        }
    }

    /// Whether `signal`, sent to `lock`, ends the job: SIGHUP only if it says that the terminal is gone. Else it is a message to
    /// COMMAND, as to a server that is to read its configuration again.
    pub(crate) fn is_ended_by(&self, signal: Signal) -> bool {
        match signal {
            Signal::INT | Signal::TERM | Signal::QUIT => true,
            Signal::HUP => self.terminal.as_ref().is_some_and(Terminal::is_gone),
            _ => false,
        }
    }

    /// Passes on a signal that was sent to `lock` and does not end the job: to all descendants if it stops or continues them, else
    /// to COMMAND alone.
    pub(crate) fn pass_on(&mut self, signal: Signal) -> io::Result<()> {
        match signal {
            Signal::TSTP => {
                self.is_suspended = true;
                self.send(signal, Whom::Own)
            }
            Signal::CONT if self.is_suspended => {
                self.is_suspended = false;
                self.send(signal, Whom::Own)
            }
            _ => match self.leader.as_ref().map(|leader| leader.signal(signal)) {
                // It has exited.
                None | Some(Ok(()) | Err(Errno::SRCH)) => Ok(()),
                Some(Err(error)) => Err(error.into()),
            },
        }
    }

    /// Sends `signal` to COMMAND and all descendants, then SIGCONT, so that stopped ones notice. Fails if some of them may
    /// not be signalled.
    pub(crate) fn end(&self, signal: Signal) -> io::Result<()> {
        self.send(signal, Whom::Own).and(self.send(Signal::CONT, Whom::Own))
    }

    /// Kills COMMAND and all descendants, and what they fork until [`Event::AllExited`].
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        let root = Pid::from_child(&self.supervisor);
        self.killing.get_or_insert_with(|| RepeatedKill::new(root)).kill()
    }

    fn send(&self, signal: Signal, whom: Whom) -> io::Result<()> {
        process_tree::signal(Pid::from_child(&self.supervisor), signal, whom)
    }

    /// Handles [`Event::Stopped`]. To the shell and to Ctrl-Z, COMMAND's group and this process's are one job, so the rest
    /// of both is stopped too, and this returns when the job is continued. Returns whether to [`resume`](Self::resume)
    /// COMMAND. `report` gets the result of stopping the rest before this process stops.
    pub(crate) fn stop(&mut self, signal: Option<i32>, report: impl FnOnce(io::Result<()>)) -> bool {
        // Without a terminal, the process that stopped COMMAND continues it, possibly by a SIGCONT that this process passes on.
        let Some(terminal) = &self.terminal else { return false };
        let is = |one: Signal| signal == Some(one.as_raw());
        let is_foreground = terminal.is_own() || terminal.is_foreground(self.group);
        if is(Signal::TTIN) || is(Signal::TTOU) {
            self.uses_terminal = true;
            if is_foreground {
                return true;
            }
        }
        if is(Signal::STOP) && !is_foreground {
            return false;
        }
        // A descendant that ignores Ctrl-Z would run without the lease, which nobody renews while this process is stopped.
        report(self.send(Signal::STOP, Whom::All));
        terminal.take_from(self.group);
        // Unlike SIGSTOP, SIGTTIN does not stop an orphaned group, which nobody could continue. Signalling one's own
        // group cannot fail.
        let _ = kill_current_process_group(Signal::TTIN);
        true
    }

    /// Continues COMMAND, in the foreground if it uses the terminal.
    pub(crate) fn resume(&self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.uses_terminal) {
            terminal.give_to(self.group);
        }
        let _ = self.send(Signal::CONT, Whom::All);
    }

    /// See [`reap_orphans`].
    pub(crate) fn reap_orphans(&self) {
        process_tree::reap_children_except(Some(Pid::from_child(&self.supervisor)));
    }

    /// Whether Ctrl-C goes to COMMAND.
    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.is_foreground(self.group))
    }

    /// Ends supervision after COMMAND exited. Descendants that it left running live on.
    pub(crate) fn detach(mut self) {
        self.is_detached = true;
        // SIGKILL, so that it does not kill the descendants when the socket is closed.
        if self.supervisor.kill().is_ok() {
            let _ = self.supervisor.wait();
        }
    }
}

/// Whether this is the first process of a container, which gets the orphans of all others there, also of those that entered it
/// (`docker exec`).
pub(crate) fn gets_orphans() -> bool {
    getpid() == Pid::INIT
}

/// Reaps the orphans that have exited, before there is a job.
pub(crate) fn reap_orphans() {
    process_tree::reap_children_except(None);
}

/// Fails without a `/proc`, or if it belongs to another pid namespace: no descendant would be found there.
pub(crate) fn check_proc() -> anyhow::Result<()> {
    let own = fs::read_link("/proc/self").context(
        "cannot read /proc/self, and without /proc ringfence cannot find the processes of the command",
    )?;
    ensure!(
        own.as_os_str() == getpid().to_string().as_str(),
        "/proc belongs to another pid namespace, so ringfence cannot find the processes of the command: mount the /proc of \
         this namespace (mount -t proc proc /proc, or unshare --mount-proc)"
    );
    Ok(())
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(terminal) = &self.terminal {
            terminal.take_from(self.group);
        }
        if !self.is_detached {
            let _ = self.kill();
        }
    }
}
