//! The process between `lock` and COMMAND, which adopts COMMAND's orphans.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::thread;

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

use super::exec::this_program;
use super::process_tree::RepeatedKill;

/// Arguments of the hidden command `supervise`, whose standard input is the socket to `lock`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Whether COMMAND takes the terminal.
    #[arg(long, action = clap::ArgAction::Set)]
    terminal: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns when COMMAND and all descendants have exited. Sends `lock` the pid of COMMAND, then each of its wait(2)
/// statuses, one number per line.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot become a subreaper")?;
    let mut lock = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive(&lock).context("cannot receive the standard input of the command")?;
    let mut exec = this_program("exec");
    exec.arg(format!("--parent={}", std::process::id()));
    exec.arg(format!("--terminal={}", arguments.terminal)).arg("--").args(&arguments.command);
    let child = exec.stdin(stdin).process_group(0).spawn().context("cannot start a process")?;
    // Closes this process's copy of the command's standard input.
    drop(exec);
    // The death of this process frees its descendants, so only SIGKILL may end it. COMMAND must not inherit the mask.
    SigSet::all().thread_block()?;
    let locks_end = lock.try_clone()?;
    thread::Builder::new().spawn(move || kill_all_after(locks_end)).context("cannot start a thread")?;
    let (command, mut has_exited) = (Pid::from_child(&child), false);
    // A failed write means that `lock` is gone.
    let _ = writeln!(lock, "{command}");
    loop {
        match wait(WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == command && !has_exited => {
                has_exited = !status.stopped();
                let _ = writeln!(lock, "{}", status.as_raw());
            }
            Ok(_) | Err(Errno::INTR) => {}
            // No children, so no descendants.
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills all descendants once `lock` has closed its end.
fn kill_all_after(mut lock: UnixStream) {
    let _ = lock.read_to_end(&mut Vec::new());
    let mut killing = RepeatedKill::new(getpid());
    loop {
        // Processes that cannot be killed are waited for.
        let _ = killing.kill();
        thread::sleep(killing.pause);
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
