use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::output;

/// A network namespace without a name: it exists as long as this, and the processes started inside.
///
/// So nothing has to be cleaned up, however the test program ends.
#[derive(Debug)]
pub(crate) struct Namespace(File);

impl Namespace {
    pub(crate) fn new() -> io::Result<Self> {
        // Once it answers it is inside. It ends with its input.
        let mut holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut input = holder.stdin.take().expect("it is piped");
        let mut output = holder.stdout.take().expect("it is piped");
        let file = input
            .write_all(b"?")
            .and_then(|()| output.read_exact(&mut [0]))
            .and_then(|()| File::open(format!("/proc/{}/ns/net", holder.id())));
        drop(input);
        holder.wait()?;
        Ok(Self(file?))
    }

    /// Does `work` inside, on a thread of its own, so that no other thread is left there.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let enter = || move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network));
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                enter()?;
                work()
            });
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a command inside, with `input`, and returns what it printed.
    pub(crate) fn run(&self, command: &mut Command, input: &str) -> io::Result<String> {
        self.inside(|| output(command, input))
    }

    /// Its path for other processes, as long as this exists.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A command that runs `program` inside, in the same process.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg("--").arg(program);
        command
    }
}
