//! The process between `lock` and COMMAND, which adopts COMMAND's orphans, and kills them all if `lock` ends or is late.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use nix::sys::signal::SigSet;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, wait};

use super::deadline::Deadline;
use super::exec::this_program;
use super::process_tree::RepeatedKill;

/// What the supervisor reports when it kills because the deadline has come.
pub(super) const TOO_LATE: &str = "too late";
/// The longest sleep: timers stand still while the machine sleeps, and a deadline does not.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// Arguments of the hidden command `supervise`, whose standard input is the socket to `lock`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Whether COMMAND takes the terminal.
    #[arg(long, action = clap::ArgAction::Set)]
    terminal: bool,
    /// When COMMAND must be dead, unless `lock` sends a later deadline.
    #[arg(long)]
    until: Deadline,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns when COMMAND and all descendants have exited. Sends `lock` the pid of COMMAND, then each of its wait(2)
/// statuses, one number per line, and [`TOO_LATE`].
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot become a subreaper")?;
    let lock = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive(&lock).context("cannot receive the standard input of the command")?;
    // Before there is a command: no pause of this process lets one run unwatched.
    let (locks_end, until) = (lock.try_clone()?, arguments.until);
    let kill = move || kill_all_in_time(locks_end, until);
    ringfence_aside::start("deadline", kill).context("cannot start a thread")?;
    let mut exec = this_program("exec");
    exec.arg(format!("--parent={}", std::process::id())).arg(format!("--until={until}"));
    exec.arg(format!("--terminal={}", arguments.terminal)).arg("--").args(&arguments.command);
    let child = exec.stdin(stdin).process_group(0).spawn().context("cannot start a process")?;
    // Closes this process's copy of the command's standard input.
    drop(exec);
    // The death of this process frees its descendants, so only SIGKILL may end it. COMMAND must not inherit the mask.
    SigSet::all().thread_block()?;
    let (command, mut has_exited) = (Pid::from_child(&child), false);
    report(&lock, command);
    loop {
        match wait(WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == command && !has_exited => {
                has_exited = !status.stopped();
                report(&lock, status.as_raw());
            }
            Ok(_) | Err(Errno::INTR) => {}
            // No children, so no descendants.
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a line, in one piece: two threads do. A failure means that `lock` is gone.
fn report(mut lock: &UnixStream, line: impl Display) {
    let _ = lock.write_all(format!("{line}\n").as_bytes());
}

/// Kills all descendants once `lock` has closed its end, or `until` has come and `lock` has sent no later deadline.
fn kill_all_in_time(lock: UnixStream, until: Deadline) {
    let _ = SigSet::all().thread_block();
    if outlives(&lock, until) {
        report(&lock, TOO_LATE);
    }
    let mut killing = RepeatedKill::new(getpid());
    loop {
        // Processes that cannot be killed are waited for.
        let _ = killing.kill();
        thread::sleep(killing.pause);
    }
}

/// Returns at the deadline, with true, or with false if `lock` has ended before.
fn outlives(lock: &UnixStream, mut until: Deadline) -> bool {
    let (mut deadlines, mut line) = (BufReader::new(lock), Vec::new());
    loop {
        // The timer's clock may be slewed to run slower than those of the deadline.
        let left = until.left();
        let nap = (left - left / 8).clamp(Duration::from_millis(1), MAX_SLEEP);
        if lock.set_read_timeout(Some(nap)).is_err() {
            return false;
        }
        match deadlines.read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {
                let sent = String::from_utf8_lossy(&line);
                until = sent.trim_end().parse().unwrap_or(until);
                line.clear();
            }
            Ok(_) => return false,
            // Only now: a later deadline may have waited to be read while this process was stopped.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if until.left().is_zero() {
                    return true;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

/// Sends the standard input of this process to the supervisor at the other end of the socket.
pub(super) fn send_stdin(supervisor: &UnixStream) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let stdin = io::stdin();
    let files = [stdin.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(supervisor, &[IoSlice::new(b".")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(lock: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(lock, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
