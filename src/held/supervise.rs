//! The process between `lock` and COMMAND: the parent of all that COMMAND leaves orphaned.

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

use super::descendants::Killing;
use super::this_program;

/// What to supervise. Standard input is the socket to `lock`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Whether COMMAND is to take the terminal.
    #[arg(long, action = clap::ArgAction::Set)]
    terminal: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Ends when COMMAND and all its descendants have ended. `lock` is told COMMAND's pid, then each status of it as wait(2) gives
/// it, a number a line.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot become the parent of orphans")?;
    let mut lock = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive(&lock).context("cannot receive the standard input of the command")?;
    let mut become_it = this_program("become");
    become_it.arg(format!("--parent={}", std::process::id()));
    become_it.arg(format!("--terminal={}", arguments.terminal)).arg("--").args(&arguments.command);
    let child = become_it.stdin(stdin).process_group(0).spawn().context("cannot start a process")?;
    // This process holds the command's standard input open no longer.
    drop(become_it);
    // From here on, who ends this process lets the others get away: only SIGKILL does. Earlier, COMMAND would inherit it.
    SigSet::all().thread_block()?;
    let of_lock = lock.try_clone()?;
    thread::Builder::new().spawn(move || kill_all_after(of_lock)).context("cannot start a thread")?;
    let (command, mut has_ended) = (Pid::from_child(&child), false);
    // What cannot be told need not be: `lock` is gone.
    let _ = writeln!(lock, "{command}");
    loop {
        match wait(WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == command && !has_ended => {
                has_ended = !status.stopped();
                let _ = writeln!(lock, "{}", status.as_raw());
            }
            Ok(_) | Err(Errno::INTR) => {}
            // A descendant has an ancestor that is a child of this process.
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills all descendants when `lock` is gone: the other end is closed then.
fn kill_all_after(mut lock: UnixStream) {
    let _ = lock.read_to_end(&mut Vec::new());
    let mut killing = Killing::of(getpid());
    loop {
        // Who may not be killed is waited for.
        let _ = killing.kill();
        thread::sleep(killing.pause);
    }
}

/// Sends the standard input of this process to a supervisor, whose own is the other end of the socket.
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
