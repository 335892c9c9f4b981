use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace without a name: it is there as long as this, and what was started inside.
///
/// So nothing has to be cleaned up, and nothing can be left behind, however the test program ends.
#[derive(Debug)]
pub(crate) struct Namespace(File);

impl Namespace {
    pub(crate) fn new() -> io::Result<Self> {
        // Whoever answers is inside; it ends when its input does.
        let mut holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (holder.stdin.take(), holder.stdout.take());
        let (mut input, mut output) = (input.expect("it is piped"), output.expect("it is piped"));
        let file = input
            .write_all(b"?")
            .and_then(|()| output.read_exact(&mut [0]))
            .and_then(|()| File::open(format!("/proc/{}/ns/net", holder.id())));
        drop(input);
        holder.wait()?;
        Ok(Self(file?))
    }

    /// Does `work` inside. On a thread of its own, so that no other can be left in the wrong place.
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

    /// Runs a command inside, with `input`, and gives what it printed.
    pub(crate) fn run(&self, command: &mut Command, input: &str) -> io::Result<String> {
        self.inside(|| run(command, input))
    }

    /// Where other processes find it, as long as this is there.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// The start of a command that runs `program` inside, as the same process.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg("--").arg(program);
        command
    }
}

/// Runs a command to its end, with `input`, and gives what it printed; one that fails is an error that says what it said.
fn run(command: &mut Command, input: &str) -> io::Result<String> {
    let told = format!("{command:?}");
    let failed = |why: String| io::Error::other(format!("{told}: {why}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    // It may have ended without reading all: then its status says why.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
