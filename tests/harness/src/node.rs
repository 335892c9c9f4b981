use std::fs::DirEntry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;

use crate::loopback::resp;
use crate::namespace::Namespace;
use crate::process::{Server, WITHIN};
use crate::{Client, Ended, Error, Failure, until};

/// Bounds one readiness check.
const LOOK: Duration = Duration::from_secs(1);

/// A node: its process, which can be restarted, its directory, and its log.
#[derive(Debug)]
pub struct Node {
    pub(crate) id: u64,
    pub(crate) seat: Mutex<Seat>,
    pub(crate) program: Mutex<PathBuf>,
    /// The addresses of the first members; empty for a node that waits to be added.
    pub(crate) listed: Vec<(u64, String)>,
    pub(crate) arguments: Vec<String>,
    /// Whether it speaks the Redis protocol.
    pub(crate) resp: bool,
    /// Whether it waits to be added, rather than being one of the first members.
    pub(crate) joins: bool,
    /// The parent of the node's directories.
    pub(crate) dir: PathBuf,
    pub(crate) client: Client,
    /// Its network namespace, unless it uses that of this machine.
    pub(crate) namespace: Option<Arc<Namespace>>,
    pub(crate) server: Server,
}

/// The addresses of a node, which [`Node::leave_behind`] changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    /// The number of earlier seats.
    pub(crate) number: u16,
    pub(crate) http: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) advertised: SocketAddr,
}

/// The distance of the ports of the next seat.
const NEXT_SEAT: u16 = 300;

impl Seat {
    fn next(self) -> Self {
        let next = |at: SocketAddr| SocketAddr::new(at.ip(), at.port() + NEXT_SEAT);
        let (http, peer, advertised) = (next(self.http), next(self.peer), next(self.advertised));
        Self { number: self.number + 1, http, peer, advertised }
    }

    /// The name of the files of node `id`.
    pub(crate) fn name(&self, id: u64) -> String {
        match self.number {
            0 => format!("node-{id}"),
            moved => format!("node-{id}-moved-{moved}"),
        }
    }
}

/// A process that a node has left behind, unaware of that. It is killed when this is dropped.
#[derive(Debug)]
pub struct LeftBehind {
    id: u64,
    client: Client,
    server: Server,
}

impl LeftBehind {
    /// The id of its node.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Continues it.
    pub fn resume(&self) -> Result<(), Error> {
        self.server.signal(Signal::CONT)
    }

    /// Whether it runs, and is not stopped.
    pub fn is_running(&self) -> bool {
        self.server.is_running() && matches!(self.server.ended(), Ok(None))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.server.log()
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

    /// Its HTTP address.
    pub fn http(&self) -> SocketAddr {
        self.seat().http
    }

    /// The address that it listens on for its peers.
    pub fn peer(&self) -> SocketAddr {
        self.seat().peer
    }

    /// The address for its peers: that of its relay, if there is one.
    pub fn advertised(&self) -> SocketAddr {
        self.seat().advertised
    }

    /// The address at which it speaks the Redis protocol: see [`Builder::resp`](crate::Builder::resp).
    pub fn resp(&self) -> SocketAddr {
        resp(self.http())
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join(self.seat().name(self.id))
    }

    /// The segments of its log, the oldest first.
    pub fn segments(&self) -> Vec<PathBuf> {
        let mut paths = self.files("log");
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
        paths
    }

    /// Its complete snapshots, the oldest first.
    pub fn snapshots(&self) -> Vec<PathBuf> {
        let mut paths = self.files("snapshots");
        paths.retain(|path| path.file_name().is_some_and(|name| name.len() == 20));
        paths
    }

    /// What is in a folder of its data, sorted.
    fn files(&self, folder: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.data().join(folder)).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    }

    /// A client of it. All such clients share connections.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The value of one series of its metrics; `None` if it is not listed.
    pub async fn metric(&self, series: &str) -> Result<Option<f64>, Failure> {
        self.client.metric(series).await
    }

    /// The id of its process, running or stopped.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Whether it has a process that is not stopped.
    pub fn is_running(&self) -> bool {
        self.server.is_running()
    }

    /// Starts its process, without waiting for anything.
    pub fn start(&self) -> Result<(), Error> {
        self.start_with(|_| {})
    }

    /// The same, with a change of the command: usually of its environment.
    pub fn start_with(&self, change: impl FnOnce(&mut Command)) -> Result<(), Error> {
        let mut command = self.command();
        change(&mut command);
        self.server.start(command)
    }

    /// Uses another program from the next start on.
    pub fn use_program(&self, program: impl Into<PathBuf>) {
        *self.program.lock().expect("no panic while the program is locked") = program.into();
    }

    /// Kills it and removes its data, but not the directory, on which a disk may be mounted.
    pub fn wipe(&self) -> Result<(), Error> {
        self.kill()?;
        let remove = |entry: std::io::Result<DirEntry>| {
            let path = entry?.path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
        };
        let removed = std::fs::read_dir(self.data()).and_then(|mut entries| entries.try_for_each(remove));
        removed.map_err(self.server.cannot("remove the data of"))
    }

    /// Removes its data, and starts it to wait until it is added.
    pub fn start_anew(&self) -> Result<(), Error> {
        self.start_anew_with(|_| {})
    }

    /// The same, with a change of the command.
    pub fn start_anew_with(&self, change: impl FnOnce(&mut Command)) -> Result<(), Error> {
        self.wipe()?;
        self.start_with(|command| {
            command.args((!self.joins).then_some("--join"));
            change(command);
        })
    }

    /// Leaves its process behind, running or stopped, and gives the node other ports and an empty data directory, so that it can be
    /// [started anew](Node::start_anew). All clients of the node follow it.
    pub fn leave_behind(&self) -> Result<LeftBehind, Error> {
        let seat = self.seat().next();
        let server = self.server.split(self.dir.join(format!("{}.log", seat.name(self.id))))?;
        let left = LeftBehind { id: self.id, client: self.client.detached(), server };
        *self.seat.lock().expect("no panic while the seat is locked") = seat;
        std::fs::create_dir(self.data()).map_err(self.server.cannot("create a directory for"))?;
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
        self.server.ready(|| client.is_ready()).await
    }

    /// Ends it with SIGKILL, running or stopped. Does nothing if it has no process.
    pub fn kill(&self) -> Result<(), Error> {
        self.server.kill()
    }

    /// The first half of [`Node::kill`]: sends SIGKILL, so that several can be killed at once.
    pub fn begin_kill(&self) -> Result<(), Error> {
        self.server.begin_kill()
    }

    /// The second half of [`Node::kill`]: waits until it has ended.
    pub fn finish_kill(&self) -> Result<(), Error> {
        self.server.finish_kill()
    }

    /// Stops it with SIGSTOP: its connections stay open.
    pub fn stop(&self) -> Result<(), Error> {
        self.server.signal(Signal::STOP)
    }

    /// Waits, after [`Node::stop`], until every thread is stopped: none is inside a system call that still writes.
    pub async fn stands_still(&self) -> Result<(), Error> {
        self.server.stands_still().await
    }

    /// Continues it after [`Node::stop`].
    pub fn resume(&self) -> Result<(), Error> {
        self.server.signal(Signal::CONT)
    }

    /// Its exit status, if it has ended by itself; then it has no process any more.
    pub fn take_ended(&self) -> Result<Option<ExitStatus>, Error> {
        self.server.take_ended()
    }

    /// Sends SIGTERM and waits until it has ended.
    pub async fn terminate(&self) -> Result<ExitStatus, Error> {
        self.server.signal(Signal::TERM)?;
        self.ends().await
    }

    /// Waits until it ends by itself.
    pub async fn ends(&self) -> Result<ExitStatus, Error> {
        let look = async || self.server.ended().transpose();
        let status = until(WITHIN, format!("node {} ends by itself", self.id), look).await??;
        self.server.take_ended()?;
        Ok(status)
    }

    /// Starts its process, which must fail, and waits until it has ended. Returns the output of this start.
    pub async fn start_in_vain(&self) -> Result<Ended, Error> {
        let before = self.log().len();
        self.start()?;
        let status = self.ends().await?;
        Ok(Ended { status, output: self.log().split_off(before) })
    }

    /// Waits until its log has `text`: a line is written soon after its cause, not before an answer.
    pub async fn tells(&self, text: &str) -> Result<(), Error> {
        let look = async || self.log().contains(text).then_some(());
        until(WITHIN, format!("node {} logs {text}", self.id), look).await
    }

    /// Its log, in its present seat.
    pub fn log(&self) -> String {
        self.server.log()
    }

    fn seat(&self) -> Seat {
        *self.seat.lock().expect("no panic while the seat is locked")
    }

    fn command(&self) -> Command {
        let program = self.program.lock().expect("no panic while the program is locked").clone();
        let mut command = match &self.namespace {
            None => Command::new(program),
            Some(namespace) => namespace.command(program),
        };
        let seat = self.seat();
        let listed: Vec<String> = match self.listed.is_empty() || seat.number > 0 {
            true => vec![format!("{}={}", self.id, seat.advertised)],
            false => self.listed.iter().map(|(id, at)| format!("{id}={at}")).collect(),
        };
        command.arg("serve").arg(format!("--id={}", self.id));
        command.args([format!("--http={}", seat.http), format!("--peer={}", seat.peer)]);
        command.arg(format!("--peers={}", listed.join(",")));
        command.args(self.resp.then(|| format!("--resp={}", resp(seat.http))));
        // Nothing else is in that network.
        command.args(self.namespace.is_some().then_some("--insecure"));
        command.args(&self.arguments).arg("--data").arg(self.data());
        command.args(self.joins.then_some("--join"));
        // A file in the working directory could configure it.
        command.args(["--config", "/dev/null"]).current_dir(&self.dir);
        command.arg(format!("--die-with-parent={}", std::process::id()));
        command
    }
}
