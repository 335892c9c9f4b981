use std::fs::DirEntry;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::Signal;

use crate::namespace::Namespace;
use crate::process::Process;
use crate::{Client, Ended, Error, Failure, until};

/// How long a node may take to be ready: it has to find the others and elect a leader, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a node may take to stop in order, or to refuse to start.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// A look whether a node is ready takes no longer.
const LOOK: Duration = Duration::from_secs(1);

/// One node: a process that can be ended and started again, its directory and its log.
#[derive(Debug)]
pub struct Node {
    pub(crate) id: u64,
    pub(crate) seat: Mutex<Seat>,
    pub(crate) program: PathBuf,
    /// Where the first members are told that each other are; empty for a node that waits to be added.
    pub(crate) listed: Vec<(u64, SocketAddr)>,
    pub(crate) arguments: Vec<String>,
    /// Whether it waits to be added, rather than being one of the first.
    pub(crate) joins: bool,
    /// Where the node's own folders are.
    pub(crate) dir: PathBuf,
    pub(crate) client: Client,
    /// Where it runs, if not where this process does.
    pub(crate) namespace: Option<Arc<Namespace>>,
    pub(crate) process: Mutex<Option<Process>>,
}

/// Where a node is: it may come to be elsewhere ([`Node::leave_behind`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    /// How many it had before.
    pub(crate) number: u16,
    pub(crate) http: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) advertised: SocketAddr,
}

/// Between the ports of a node and those of its next place.
const NEXT_SEAT: u16 = 300;

impl Seat {
    fn next(self) -> Self {
        let next = |at: SocketAddr| SocketAddr::new(at.ip(), at.port() + NEXT_SEAT);
        let (http, peer, advertised) = (next(self.http), next(self.peer), next(self.advertised));
        Self { number: self.number + 1, http, peer, advertised }
    }
}

/// A process that a node has left behind, which knows nothing of that. It is killed when this is dropped.
#[derive(Debug)]
pub struct LeftBehind {
    id: u64,
    client: Client,
    log: PathBuf,
    process: Process,
}

impl LeftBehind {
    /// The id of the node that it was, and takes itself for.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Lets it go on.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.process
            .signal(Signal::CONT)
            .map_err(Error::io(format!("cannot resume what was node {}", self.id)))
    }

    /// Whether it goes on.
    pub fn is_running(&mut self) -> bool {
        !self.process.is_stopped() && matches!(self.process.ended(), Ok(None))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        read_log(&self.log)
    }
}

impl Node {
    /// Its id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its HTTP URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.http())
    }

    /// Where its HTTP is.
    pub fn http(&self) -> SocketAddr {
        self.seat().http
    }

    /// Where its peers reach it.
    pub fn peer(&self) -> SocketAddr {
        self.seat().peer
    }

    /// Where its peers are told that it is: its relay, if there is one.
    pub fn advertised(&self) -> SocketAddr {
        self.seat().advertised
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join(self.name())
    }

    /// A client of it. Its connections are shared with every other such client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The value of one series of its metrics; `None` where it is not listed.
    pub async fn metric(&self, series: &str) -> Result<Option<f64>, Failure> {
        self.client.metric(series).await
    }

    /// The id of its process, while that runs or is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Process::pid)
    }

    /// Whether it has a process that is not stopped.
    pub fn is_running(&self) -> bool {
        self.process().as_ref().is_some_and(|process| !process.is_stopped())
    }

    /// Starts its process, without waiting for anything.
    pub fn start(&self) -> Result<(), Error> {
        self.start_with(|_| {})
    }

    /// The same, with a command that was changed before: an environment, as a rule.
    pub fn start_with(&self, change: impl FnOnce(&mut Command)) -> Result<(), Error> {
        let mut process = self.process();
        if process.is_some() {
            return Err(Error::State { id: self.id, why: "runs already" });
        }
        *process = Some(self.spawn(change)?);
        Ok(())
    }

    /// Kills it and removes its data, but not the directory, on which a disk may be mounted.
    pub fn wipe(&self) -> Result<(), Error> {
        self.kill()?;
        let remove = |entry: std::io::Result<DirEntry>| {
            let path = entry?.path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
        };
        let removed = std::fs::read_dir(self.data()).and_then(|mut entries| entries.try_for_each(remove));
        removed.map_err(self.failed("remove the data of"))
    }

    /// Removes its data, and starts it to wait until it is added.
    pub fn start_anew(&self) -> Result<(), Error> {
        self.start_anew_with(|_| {})
    }

    /// The same, with a command that was changed before.
    pub fn start_anew_with(&self, change: impl FnOnce(&mut Command)) -> Result<(), Error> {
        self.wipe()?;
        self.start_with(|command| {
            command.args((!self.joins).then_some("--join"));
            change(command);
        })
    }

    /// Leaves its process, running or stopped, where it is, and gives the node another place: other ports, and an empty data
    /// directory, to be [started anew](Node::start_anew) in. All clients of the node ask it there.
    pub fn leave_behind(&self) -> Result<LeftBehind, Error> {
        let process = self.process().take().ok_or(Error::State { id: self.id, why: "has no process" })?;
        let left = LeftBehind { id: self.id, client: self.client.detached(), log: self.log_path(), process };
        let seat = self.seat().next();
        *self.seat.lock().expect("no panic while the seat is locked") = seat;
        std::fs::create_dir(self.data()).map_err(self.failed("make a directory for"))?;
        self.client.lead_to(seat.http);
        Ok(left)
    }

    /// Kills its process, if it has one, and starts it again.
    pub fn restart(&self) -> Result<(), Error> {
        self.kill()?;
        self.start()
    }

    /// Waits until it is ready for requests.
    pub async fn ready(&self) -> Result<(), Error> {
        let client = self.client.within(LOOK);
        let look = || async {
            match self.ended() {
                Ok(None) => client.is_ready().await.then_some(Ok(())),
                Ok(Some(status)) => Some(Err(Error::Ended { id: self.id, status, log: self.log_tail(30) })),
                Err(error) => Some(Err(error)),
            }
        };
        until(READY_WITHIN, format!("node {} is ready", self.id), look).await?
    }

    /// Ends it with SIGKILL, running or stopped. Nothing happens if it has no process.
    pub fn kill(&self) -> Result<(), Error> {
        self.begin_kill()?;
        self.finish_kill()
    }

    /// The first half of [`Node::kill`]: it has no more than to be reaped, so several can be killed at once.
    pub fn begin_kill(&self) -> Result<(), Error> {
        match self.process().as_mut() {
            Some(process) => process.kill().map_err(self.failed("kill")),
            None => Ok(()),
        }
    }

    /// The second half of [`Node::kill`]: waits until it is gone.
    pub fn finish_kill(&self) -> Result<(), Error> {
        match self.process().take() {
            Some(mut process) => process.reap().map(drop).map_err(self.failed("wait for")),
            None => Ok(()),
        }
    }

    /// Stops it with SIGSTOP: it does nothing any more, but its connections stay open.
    pub fn stop(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)
    }

    /// Waits, after [`Node::stop`], until every thread of it stands still: none is inside a system call any more that
    /// still writes.
    pub async fn stands_still(&self) -> Result<(), Error> {
        let look =
            || std::future::ready(self.process().as_ref().is_some_and(Process::stands_still).then_some(()));
        until(ENDS_WITHIN, format!("node {} stands still", self.id), look).await
    }

    /// Lets it go on after [`Node::stop`].
    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    /// How it has ended by itself, if it has: then it has no process any more.
    pub fn take_ended(&self) -> Result<Option<ExitStatus>, Error> {
        let mut process = self.process();
        let Some(running) = process.as_mut() else { return Ok(None) };
        let ended = running.ended().map_err(self.failed("wait for"))?;
        if ended.is_some() {
            *process = None;
        }
        Ok(ended)
    }

    /// Asks it with SIGTERM to stop in order, and waits until it has.
    pub async fn terminate(&self) -> Result<ExitStatus, Error> {
        self.signal(Signal::TERM)?;
        self.ends().await
    }

    /// Waits until it ends by itself.
    pub async fn ends(&self) -> Result<ExitStatus, Error> {
        let look = || std::future::ready(self.ended().transpose());
        let status = until(ENDS_WITHIN, format!("node {} ends by itself", self.id), look).await??;
        *self.process() = None;
        Ok(status)
    }

    /// Starts its process, which is expected to refuse, and waits until it has ended. The output is that of this start.
    pub async fn start_in_vain(&self) -> Result<Ended, Error> {
        let before = self.log().len();
        self.start()?;
        let status = self.ends().await?;
        Ok(Ended { status, output: self.log().split_off(before) })
    }

    /// What it has logged, from its first start on, where it is now.
    pub fn log(&self) -> String {
        read_log(&self.log_path())
    }

    /// Its last `lines` lines.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name()))
    }

    fn name(&self) -> String {
        match self.seat().number {
            0 => format!("node-{}", self.id),
            moved => format!("node-{}-moved-{moved}", self.id),
        }
    }

    fn seat(&self) -> Seat {
        *self.seat.lock().expect("no panic while the seat is locked")
    }

    fn spawn(&self, change: impl FnOnce(&mut Command)) -> Result<Process, Error> {
        let mut command = match &self.namespace {
            None => Command::new(&self.program),
            Some(namespace) => namespace.command(&self.program),
        };
        let seat = self.seat();
        let listed: Vec<String> = match self.listed.is_empty() || seat.number > 0 {
            true => vec![format!("{}={}", self.id, seat.advertised)],
            false => self.listed.iter().map(|(id, at)| format!("{id}={at}")).collect(),
        };
        command.arg("serve").arg(format!("--id={}", self.id));
        command.args([format!("--http={}", seat.http), format!("--peer={}", seat.peer)]);
        command.arg(format!("--peers={}", listed.join(",")));
        command.args(&self.arguments).arg("--data").arg(self.data());
        command.args(self.joins.then_some("--join"));
        // A file in the working directory could configure it.
        command.args(["--config", "/dev/null"]).current_dir(&self.dir);
        command.arg(format!("--die-with-parent={}", std::process::id()));
        change(&mut command);
        Process::start(command, Path::new(&self.log_path())).map_err(self.failed("start"))
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        match self.process().as_mut() {
            Some(process) => process.signal(signal).map_err(self.failed("signal")),
            None => Err(Error::State { id: self.id, why: "has no process" }),
        }
    }

    fn ended(&self) -> Result<Option<ExitStatus>, Error> {
        match self.process().as_mut() {
            Some(process) => process.ended().map_err(self.failed("wait for")),
            None => Err(Error::State { id: self.id, why: "has no process" }),
        }
    }

    fn failed(&self, verb: &str) -> impl FnOnce(std::io::Error) -> Error {
        Error::io(format!("cannot {verb} node {}", self.id))
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().expect("no panic while the process is locked")
    }
}

fn read_log(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
