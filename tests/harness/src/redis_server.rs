//! Redis servers from the system's packages: alone, as a replicated group that Sentinel watches
//! ([`RedisSentinel`](crate::RedisSentinel)), or as a Redis Cluster ([`RedisCluster`](crate::RedisCluster)).
//!
//! Each group has a loopback address of its own, so a restarted server finds its port free. Servers keep nothing on disk
//! unless they are told to (`SAVE`, or a line of configuration), and end with the test program.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::loopback::{Loopback, REDIS};
use crate::process::{Server, folder, mortal};
use crate::tls::Certificates;
use crate::{Error, run};

/// Bounds one command of `redis-cli`.
const COMMAND: Duration = Duration::from_secs(30);

/// How servers are configured.
#[derive(Clone, Debug, Default)]
pub struct RedisBuilder {
    lines: Vec<String>,
    variables: Vec<(String, String)>,
    tls: bool,
}

/// One server: a process that can be ended and started again, with its directory.
#[derive(Debug)]
pub struct RedisServer {
    address: SocketAddr,
    program: &'static str,
    /// Its configuration, its log and, under `data`, its data.
    dir: PathBuf,
    certificates: Option<Arc<Certificates>>,
    variables: Vec<(String, String)>,
    server: Server,
    place: Arc<RedisPlace>,
}

/// What the servers of a group share, until the last of them is dropped.
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

    /// One more variable in its environment.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Serves TLS only, with a certificate of [`RedisServer::authority`].
    pub fn tls(self) -> Self {
        Self { tls: true, ..self }
    }

    /// Starts a server that is alone, and waits until it is ready.
    pub async fn start(&self) -> Result<RedisServer, Error> {
        self.start_at(&RedisPlace::claim()?, 0).await
    }

    /// Starts the server with this number of a group.
    pub(crate) async fn start_at(&self, place: &Arc<RedisPlace>, number: u16) -> Result<RedisServer, Error> {
        let lines = std::iter::once("save \"\"".to_owned()).chain(self.lines.iter().cloned());
        let certificates = self.tls.then(|| place.certificates()).transpose()?;
        let mut server = RedisServer::new(place, number, "redis-server", lines.collect(), certificates)?;
        server.variables = self.variables.clone();
        server.start().await?;
        Ok(server)
    }
}

impl RedisPlace {
    pub(crate) fn claim() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { loopback: Loopback::claim()?, dir: folder("redis")? }))
    }

    fn certificates(&self) -> Result<Arc<Certificates>, Error> {
        Certificates::new(self.dir.path(), &format!("IP:{}", self.loopback.at(REDIS).ip())).map(Arc::new)
    }
}

impl RedisServer {
    /// How to configure a server.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// Starts `program` with this configuration and number in its group.
    pub(crate) async fn start_new(
        place: &Arc<RedisPlace>,
        number: u16,
        program: &'static str,
        lines: Vec<String>,
        certificates: Option<Arc<Certificates>>,
    ) -> Result<Self, Error> {
        let redis = Self::new(place, number, program, lines, certificates)?;
        redis.start().await?;
        Ok(redis)
    }

    /// The same, not started.
    fn new(
        place: &Arc<RedisPlace>,
        number: u16,
        program: &'static str,
        mut lines: Vec<String>,
        certificates: Option<Arc<Certificates>>,
    ) -> Result<Self, Error> {
        let address = place.loopback.at(REDIS + number);
        let (ip, port) = (address.ip(), address.port());
        let dir = place.dir.path().join(format!("redis-{port}"));
        let data = dir.join("data");
        lines.extend([
            "protected-mode no".to_owned(),
            format!("bind {ip}"),
            format!("dir {}", data.display()),
        ]);
        // Without these the others of a group would take 127.0.0.1, where connections come from, for its address.
        lines.push(match program {
            "redis-sentinel" => format!("sentinel announce-ip {ip}"),
            _ => format!("bind-source-addr {ip}\nreplica-announce-ip {ip}\ncluster-announce-ip {ip}"),
        });
        match &certificates {
            None => lines.push(format!("port {port}")),
            Some(certificates) => lines.extend(certificates.redis_lines(port)),
        }
        fs::create_dir_all(&data)
            .and_then(|()| fs::write(dir.join("conf"), lines.join("\n") + "\n"))
            .map_err(Error::io("cannot configure Redis"))?;
        let server = Server::new(format!("Redis at {address}"), dir.join("log"));
        let (variables, place) = (Vec::new(), Arc::clone(place));
        Ok(Self { address, program, dir, certificates, variables, server, place })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, `redis://` or `rediss://`, without a user.
    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}", self.address)
    }

    /// The file with the certificate of its authority, if it serves TLS.
    pub fn authority(&self) -> Option<&Path> {
        self.certificates.as_ref().map(|certificates| certificates.authority())
    }

    /// Its process, if it has one.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Starts its process with the data on its disk, and waits until it answers.
    pub async fn start(&self) -> Result<(), Error> {
        let mut command = mortal(self.program);
        command.arg(self.dir.join("conf")).current_dir(&self.dir);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        self.server.start(command)?;
        self.server.ready(async || self.command(["ping"]).await.is_ok_and(|answer| answer == "PONG")).await
    }

    /// Ends it with SIGKILL, running or stopped. Does nothing if it has no process.
    pub fn kill(&self) -> Result<(), Error> {
        self.server.kill()
    }

    /// Kills it and starts it again with the data that it saved, however old.
    pub async fn restart(&self) -> Result<(), Error> {
        self.kill()?;
        self.start().await
    }

    /// Kills it and starts it again without any data; a member of a Redis Cluster keeps its identity.
    pub async fn restart_empty(&self) -> Result<(), Error> {
        self.kill()?;
        for saved in ["dump.rdb", "appendonlydir"].map(|name| self.data().join(name)) {
            let removed = match saved.is_dir() {
                true => fs::remove_dir_all(saved),
                false if saved.exists() => fs::remove_file(saved),
                false => Ok(()),
            };
            removed.map_err(self.server.cannot("remove the data of"))?;
        }
        self.start().await
    }

    /// Stops it with SIGSTOP: its connections stay open, and the kernel accepts new ones.
    pub async fn stop(&self) -> Result<(), Error> {
        self.server.signal(Signal::STOP)?;
        self.server.stands_still().await
    }

    /// Continues it after [`RedisServer::stop`].
    pub fn resume(&self) -> Result<(), Error> {
        self.server.signal(Signal::CONT)
    }

    /// Runs a command by `redis-cli`, as the user `default`, and returns what it printed. An error reply is an error.
    pub async fn command<A: AsRef<str>>(&self, words: impl IntoIterator<Item = A>) -> Result<String, Error> {
        let (ip, port) = (self.address.ip().to_string(), self.address.port().to_string());
        let mut arguments = ["-e", "-h", &ip, "-p", &port].map(str::to_owned).to_vec();
        if let Some(authority) = self.authority() {
            arguments.extend(["--tls".to_owned(), "--cacert".to_owned(), authority.display().to_string()]);
        }
        arguments.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        let ended = run("redis-cli", &arguments, COMMAND).await?;
        match ended.status.success() {
            true => Ok(ended.output.trim_end().to_owned()),
            false => Err(self.server.failed(format!("refused a command: {}", ended.output))),
        }
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        self.server.log()
    }

    pub(crate) fn place(&self) -> &Arc<RedisPlace> {
        &self.place
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.server.show(15);
        }
    }
}

/// The addresses of these servers, separated by commas.
pub(crate) fn addresses(servers: &[RedisServer]) -> String {
    servers.iter().map(|server| server.address.to_string()).collect::<Vec<_>>().join(",")
}
