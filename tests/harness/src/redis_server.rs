//! Redis servers as they come from the system's packages: alone, as a replicated group that Sentinel watches
//! ([`RedisSentinel`]), or as a Redis Cluster ([`RedisCluster`]).
//!
//! Each group has a loopback address of its own, so a server that is started again finds its port free. Servers keep
//! nothing on disk unless they are told to (`SAVE`, or a line of configuration), and end with the test program.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::loopback::{Loopback, REDIS};
use crate::process::{Process, mortal};
use crate::tls::Certificates;
use crate::{Error, run, until};

/// How long a server may take to be ready, or to stop in order.
const WITHIN: Duration = Duration::from_secs(60);
/// One command by `redis-cli` takes no longer.
const COMMAND: Duration = Duration::from_secs(30);

/// How servers are made.
#[derive(Clone, Debug, Default)]
pub struct RedisBuilder {
    lines: Vec<String>,
    tls: bool,
}

/// One server: a process that can be ended and started again, with its folder.
#[derive(Debug)]
pub struct RedisServer {
    address: SocketAddr,
    program: &'static str,
    /// Its configuration, its log and, under `data`, its data.
    dir: PathBuf,
    certificates: Option<Arc<Certificates>>,
    process: Mutex<Option<Process>>,
    place: Arc<RedisPlace>,
}

/// What the servers of one group have in common; it stays until the last of them is dropped.
#[derive(Debug)]
pub(crate) struct RedisPlace {
    loopback: Loopback,
    dir: TempDir,
}

impl RedisBuilder {
    /// One more line of configuration, as `maxmemory 4mb` or `user reader on >secret ~* +hmget`.
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Speaks TLS only, with a certificate of [`RedisServer::authority`].
    pub fn tls(self) -> Self {
        Self { tls: true, ..self }
    }

    /// Starts a server that is alone, and waits until it is ready.
    pub async fn start(&self) -> Result<RedisServer, Error> {
        let server = self.server(&RedisPlace::claim()?, 0)?;
        server.start().await?;
        Ok(server)
    }

    /// A server that is not started, the one with this number at its place.
    pub(crate) fn server(&self, place: &Arc<RedisPlace>, number: u16) -> Result<RedisServer, Error> {
        let mut lines = vec!["save \"\"".to_owned(), "protected-mode no".to_owned()];
        lines.extend(self.lines.iter().cloned());
        let certificates = self.tls.then(|| place.certificates()).transpose()?;
        RedisServer::new(place, number, "redis-server", lines, certificates)
    }
}

impl RedisPlace {
    pub(crate) fn claim() -> Result<Arc<Self>, Error> {
        let dir = tempfile::Builder::new().prefix("ringfence-redis-").tempdir();
        let dir = dir.map_err(Error::io("cannot make a directory"))?;
        Ok(Arc::new(Self { loopback: Loopback::claim()?, dir }))
    }

    /// The address and port of the server with this number.
    pub(crate) fn address(&self, number: u16) -> SocketAddr {
        self.loopback.at(REDIS + number)
    }

    fn certificates(&self) -> Result<Arc<Certificates>, Error> {
        Certificates::make(self.dir.path(), self.address(0).ip()).map(Arc::new)
    }
}

impl RedisServer {
    /// To make a server.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    pub(crate) fn new(
        place: &Arc<RedisPlace>,
        number: u16,
        program: &'static str,
        mut lines: Vec<String>,
        certificates: Option<Arc<Certificates>>,
    ) -> Result<Self, Error> {
        let address = place.address(number);
        let dir = place.dir.path().join(format!("redis-{}", address.port()));
        let data = dir.join("data");
        // Without these the others of a group would take 127.0.0.1, where connections come from, for its address.
        lines.push(format!("bind {}", address.ip()));
        lines.push(match program {
            "redis-sentinel" => format!("sentinel announce-ip {}", address.ip()),
            _ => {
                format!("bind-source-addr {}\nreplica-announce-ip {0}\ncluster-announce-ip {0}", address.ip())
            }
        });
        lines.push(format!("dir {}", data.display()));
        match &certificates {
            None => lines.push(format!("port {}", address.port())),
            Some(certificates) => lines.extend(certificates.redis_lines(address.port())),
        }
        let made = fs::create_dir_all(&data);
        made.and_then(|()| fs::write(dir.join("conf"), lines.join("\n") + "\n"))
            .map_err(Error::io("cannot configure Redis"))?;
        Ok(Self { address, program, dir, certificates, process: Mutex::default(), place: Arc::clone(place) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, `redis://` or `rediss://`, without a user.
    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}", self.address)
    }

    /// The file with the certificate of the authority that signed its own, if it speaks TLS.
    pub fn authority(&self) -> Option<&Path> {
        self.certificates.as_ref().map(|certificates| certificates.authority())
    }

    /// Its process, if it has one.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Process::pid)
    }

    /// Where it keeps its data.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Starts its process, with the data that is on its disk, and waits until it answers.
    pub async fn start(&self) -> Result<(), Error> {
        {
            let mut process = self.process();
            if process.is_some() {
                return Err(self.failed("start")(std::io::Error::other("it runs already")));
            }
            let mut command = mortal(self.program);
            command.arg(self.dir.join("conf")).current_dir(&self.dir);
            *process = Some(Process::start(command, &self.log_path()).map_err(self.failed("start"))?);
        }
        let look = async || match self.ended() {
            Ok(false) => self.command(["ping"]).await.is_ok_and(|answer| answer == "PONG").then_some(Ok(())),
            Ok(true) => Some(Err(self.failed("start")(std::io::Error::other(self.log())))),
            Err(error) => Some(Err(error)),
        };
        until(WITHIN, format!("Redis at {} answers", self.address), look).await?
    }

    /// Ends it with SIGKILL, running or stopped. Nothing happens if it has no process.
    pub fn kill(&self) -> Result<(), Error> {
        match self.process().take() {
            Some(mut process) => {
                process.kill().and_then(|()| process.reap()).map(drop).map_err(self.failed("kill"))
            }
            None => Ok(()),
        }
    }

    /// Kills it and starts it again on what it has saved: as old as that is.
    pub async fn restart(&self) -> Result<(), Error> {
        self.kill()?;
        self.start().await
    }

    /// Kills it and starts it again without any data; a member of a Redis Cluster remembers who it is.
    pub async fn restart_empty(&self) -> Result<(), Error> {
        self.kill()?;
        let data = self.data();
        for saved in ["dump.rdb", "appendonlydir"].map(|name| data.join(name)).iter().filter(|at| at.exists())
        {
            let removed = if saved.is_dir() { fs::remove_dir_all(saved) } else { fs::remove_file(saved) };
            removed.map_err(self.failed("remove the data of"))?;
        }
        self.start().await
    }

    /// Stops it with SIGSTOP: it does nothing any more, but its connections stay open and new ones are taken.
    pub async fn stop(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)?;
        let look =
            || std::future::ready(self.process().as_ref().is_some_and(Process::stands_still).then_some(()));
        until(WITHIN, format!("Redis at {} stands still", self.address), look).await
    }

    /// Lets it go on after [`RedisServer::stop`].
    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    /// Sends a command by `redis-cli`, as the user `default`, and gives what it printed. An error reply is an error.
    pub async fn command<A: AsRef<str>>(&self, words: impl IntoIterator<Item = A>) -> Result<String, Error> {
        let mut arguments: Vec<String> =
            ["-e", "-h", &self.address.ip().to_string(), "-p", &self.address.port().to_string()]
                .map(str::to_owned)
                .into();
        if let Some(certificates) = &self.certificates {
            let authority = certificates.authority().display().to_string();
            arguments.extend(["--tls".to_owned(), "--cacert".to_owned(), authority]);
        }
        arguments.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        let ended = run("redis-cli", &arguments, COMMAND).await?;
        if ended.status.success() {
            Ok(ended.output.trim_end().to_owned())
        } else {
            Err(self.failed("command")(std::io::Error::other(ended.output)))
        }
    }

    /// What it has logged, from its first start on.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn ended(&self) -> Result<bool, Error> {
        match self.process().as_mut() {
            Some(process) => process.ended().map(|status| status.is_some()).map_err(self.failed("wait for")),
            None => Ok(true),
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        match self.process().as_mut() {
            Some(process) => process.signal(signal).map_err(self.failed("signal")),
            None => Err(self.failed("signal")(std::io::Error::other("it has no process"))),
        }
    }

    fn failed(&self, verb: &str) -> impl FnOnce(std::io::Error) -> Error {
        Error::io(format!("cannot {verb} Redis at {}", self.address))
    }

    pub(crate) fn place(&self) -> &Arc<RedisPlace> {
        &self.place
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().expect("no panic while the process is locked")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(15)..];
            eprintln!("---- the end of the log of Redis at {} ----\n{}", self.address, tail.join("\n"));
        }
    }
}
