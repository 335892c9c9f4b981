//! Child processes: programs that run to their end, and servers that can be stopped and restarted.

use std::ffi::OsStr;
use std::fs::{DirEntry, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::{Error, until};

/// Bounds the start and the stop of a server on a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);

/// A directory that is removed when it is dropped.
pub(crate) fn folder(name: &str) -> Result<TempDir, Error> {
    let dir = tempfile::Builder::new().prefix(&format!("ringfence-{name}-")).tempdir();
    dir.map_err(Error::io("cannot create a directory"))
}

/// A command for `program` that is killed when this program ends, however it ends. For programs without such an option.
pub(crate) fn mortal(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Runs a command with `input` and returns what it printed. The error of one that fails has its standard error.
pub(crate) fn output(command: &mut Command, input: &str) -> io::Result<String> {
    let name = format!("{command:?}");
    let failed = |why: String| io::Error::other(format!("{name}: {why}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    // It may end without reading all: then its status says why.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
        }
    }
}

/// Whether no thread of a process runs: each has ended or is stopped, in no system call that still writes.
pub fn stands_still(pid: Pid) -> bool {
    let stands = |task: DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat"));
        // The state follows the name, which may contain anything.
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 'Z', 'X'])))
    };
    match std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) {
        Ok(tasks) => tasks.flatten().all(stands),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// A child process that is not reaped yet, so that no other process has its pid. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    is_stopped: bool,
}

impl Process {
    /// Starts `command` and appends its output to the file `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> io::Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        // Settings of real nodes must not reach these.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RINGFENCE_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Self { child: spawn(command)?, is_stopped: false })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
        }
        kill_process(Pid::from_child(&self.child), signal)?;
        match signal {
            Signal::STOP => self.is_stopped = true,
            Signal::CONT => self.is_stopped = false,
            _ => {}
        }
        Ok(())
    }

    /// Kills it and all of its group, which it must lead, and reaps it.
    pub(crate) fn kill_group(&mut self) -> io::Result<()> {
        kill_process_group(Pid::from_child(&self.child), Signal::KILL)?;
        self.child.wait().map(drop)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
    }
}

/// Spawns `command` from a thread that lives as long as this program: a process that dies with its parent
/// (`--die-with-parent`, `--pdeathsig`) dies with the parent's *thread*, and those of tests come and go.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, queue) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in queue {
                // The caller waits for the reply.
                let _ = reply.send(command.spawn());
            }
        });
        orders
    });
    let gone = |_| io::Error::other("the thread that starts processes has ended");
    let (reply, child) = mpsc::channel();
    orders.send((command, reply)).map_err(|error| gone(error.to_string()))?;
    child.recv().map_err(|error| gone(error.to_string()))?
}

/// A program that can be stopped and started again, and its log. Errors and logs name it.
#[derive(Debug)]
pub(crate) struct Server {
    name: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    log: PathBuf,
    process: Option<Process>,
}

impl Server {
    /// A server that is not started.
    pub(crate) fn new(name: impl Into<String>, log: PathBuf) -> Self {
        Self { name: name.into(), state: Mutex::new(State { log, process: None }) }
    }

    /// A server that is started.
    pub(crate) fn start_new(name: impl Into<String>, log: PathBuf, command: Command) -> Result<Self, Error> {
        let server = Self::new(name, log);
        server.start(command)?;
        Ok(server)
    }

    /// Starts its process, which must not run.
    pub(crate) fn start(&self, command: Command) -> Result<(), Error> {
        let state = &mut *self.state();
        if state.process.is_some() {
            return Err(self.failed("runs already"));
        }
        state.process = Some(Process::start(command, &state.log).map_err(self.cannot("start"))?);
        Ok(())
    }

    /// Waits until `look` is true. The error of one that ends or is never ready has the end of its log.
    pub(crate) async fn ready<F: Future<Output = bool>>(
        &self,
        mut look: impl FnMut() -> F,
    ) -> Result<(), Error> {
        let look = || {
            let look = look();
            async {
                match self.ended() {
                    Ok(None) => look.await.then_some(Ok(())),
                    Ok(Some(status)) => Some(Err(self.failed(format!("has ended ({status})")))),
                    Err(error) => Some(Err(error)),
                }
            }
        };
        let ready = until(WITHIN, format!("{} is ready", self.name), look).await.flatten();
        ready.map_err(|error| Error::Failed(format!("{error}; the end of the log:\n{}", self.log_tail(30))))
    }

    /// The id of its process, running or stopped.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.state().process.as_ref().map(Process::id)
    }

    /// Whether it has a process that is not stopped.
    pub(crate) fn is_running(&self) -> bool {
        self.state().process.as_ref().is_some_and(|process| !process.is_stopped)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.with_process(|process| process.signal(signal).map_err(self.cannot("signal")))
    }

    /// Waits until [no thread runs](stands_still).
    pub(crate) async fn stands_still(&self) -> Result<(), Error> {
        let stands = |process: &Process| stands_still(Pid::from_child(&process.child));
        let look = async || self.state().process.as_ref().is_some_and(stands).then_some(());
        until(WITHIN, format!("{} stands still", self.name), look).await
    }

    /// Kills it, running or stopped. Does nothing if it has no process.
    pub(crate) fn kill(&self) -> Result<(), Error> {
        self.begin_kill()?;
        self.finish_kill()
    }

    /// Sends SIGKILL, without reaping the process, so that several can be killed at once.
    pub(crate) fn begin_kill(&self) -> Result<(), Error> {
        let process = &mut self.state().process;
        process.as_mut().map_or(Ok(()), |process| process.child.kill()).map_err(self.cannot("kill"))
    }

    /// Waits until it has ended, as it surely will, and reaps it.
    pub(crate) fn finish_kill(&self) -> Result<(), Error> {
        let process = self.state().process.take();
        process.map_or(Ok(()), |mut process| process.child.wait().map(drop)).map_err(self.cannot("wait for"))
    }

    /// The exit status of its process, if that has ended.
    pub(crate) fn ended(&self) -> Result<Option<ExitStatus>, Error> {
        self.with_process(|process| process.ended().map_err(self.cannot("wait for")))
    }

    /// The same; one that has ended leaves the server without a process.
    pub(crate) fn take_ended(&self) -> Result<Option<ExitStatus>, Error> {
        if self.pid().is_none() {
            return Ok(None);
        }
        let ended = self.ended()?;
        if ended.is_some() {
            self.state().process = None;
        }
        Ok(ended)
    }

    /// Moves the process and its log to a server of their own. This one logs to `log` from now on.
    pub(crate) fn split(&self, log: PathBuf) -> Result<Self, Error> {
        let state = &mut *self.state();
        let process = Some(state.process.take().ok_or_else(|| self.failed("has no process"))?);
        let state = State { log: std::mem::replace(&mut state.log, log), process };
        Ok(Self { name: format!("what was {}", self.name), state: Mutex::new(state) })
    }

    /// All that it has logged.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.state().log).unwrap_or_default()).into_owned()
    }

    /// Prints the last `lines` lines of its log.
    pub(crate) fn show(&self, lines: usize) {
        eprintln!("---- the end of the log of {} ----\n{}", self.name, self.log_tail(lines));
    }

    fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// The error of having tried to `verb` it.
    pub(crate) fn cannot(&self, verb: &str) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::io(format!("cannot {verb} {}", self.name))
    }

    pub(crate) fn failed(&self, why: impl std::fmt::Display) -> Error {
        Error::Failed(format!("{} {why}", self.name))
    }

    fn with_process<T>(&self, act: impl FnOnce(&mut Process) -> Result<T, Error>) -> Result<T, Error> {
        self.state().process.as_mut().map_or_else(|| Err(self.failed("has no process")), act)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the process is locked")
    }
}
