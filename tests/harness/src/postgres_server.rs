//! A real PostgreSQL, and a PgBouncer in front of it, from the system's packages.
//!
//! Both refuse to run as root, so as root they run as the user `nobody`. They end with the test program, however that
//! ends.

use std::fs::{self, Permissions};
use std::future::ready;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use crate::loopback::Loopback;
use crate::process::{Server, folder};
use crate::program::complete;
use crate::{Error, run, until};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);
/// The user and the group without rights, on every Linux.
const NOBODY: u32 = 65_534;

const POSTGRES: u16 = 5432;
const BOUNCER: u16 = 6432;

/// The settings of a server. Only processes are killed here, and what was written to a file outlives them: so nothing waits
/// for the disk, unless a test or a measurement says `fsync=on`.
const SETTINGS: [&str; 5] = [
    "unix_socket_directories=",
    "fsync=off",
    "shared_buffers=32MB",
    "max_connections=60",
    "log_connections=off",
];

/// One server with a database `postgres`, where the user `postgres` may do everything. No user needs a password.
#[derive(Debug)]
pub struct PostgresServer {
    loopback: Loopback,
    dir: TempDir,
    settings: Vec<String>,
    variables: Vec<(String, String)>,
    server: Server,
}

impl PostgresServer {
    /// Creates a database and starts its server; it is ready when this returns.
    pub async fn start() -> Result<Self, Error> {
        Self::start_with(&[]).await
    }

    /// The same with more settings, as `fsync=on`.
    pub async fn start_with(settings: &[&str]) -> Result<Self, Error> {
        Self::start_in(settings, &[]).await
    }

    /// The same with more variables in its environment.
    pub async fn start_in(settings: &[&str], variables: &[(&str, String)]) -> Result<Self, Error> {
        let dir = folder_of_nobody("postgres")?;
        let server = Server::new("PostgreSQL", dir.path().join("log"));
        let settings = SETTINGS.iter().chain(settings).map(|&setting| setting.to_owned()).collect();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let server = Self { loopback: Loopback::claim()?, dir, settings, variables, server };
        let mut initdb = unprivileged(&installed("initdb")?);
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]);
        initdb.arg("-D").arg(server.data());
        let ended = complete(initdb, SOON).await?;
        if !ended.status.success() {
            return Err(Error::Unavailable(format!("initdb failed: {}", ended.output)));
        }
        server.restart().await?;
        Ok(server)
    }

    /// The program of the server.
    pub fn program() -> Result<PathBuf, Error> {
        installed("postgres")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.loopback.at(POSTGRES)
    }

    /// How `tokio_postgres` and `psql` reach it as the user `postgres`.
    pub fn url(&self) -> String {
        format!("postgresql://postgres@{}/postgres", self.address())
    }

    /// Kills all its processes with SIGKILL, before any can notice that another one died. Does nothing if it does not run.
    pub async fn kill(&self) -> Result<(), Error> {
        let Some(pid) = self.server.pid() else { return Ok(()) };
        // A stopped postmaster starts no process, and does not reap those that end: so their ids stay theirs.
        self.server.signal(Signal::STOP)?;
        self.server.stands_still().await?;
        let children = children(pid)?;
        for &child in &children {
            kill_process(child, Signal::KILL)
                .map_err(|error| Error::io("cannot kill a backend")(error.into()))?;
        }
        let gone = || ready(children.iter().all(|&child| has_ended(child)).then_some(()));
        until(SOON, "its backends have ended", gone).await?;
        self.server.kill()
    }

    /// Kills it, if it runs, and starts it again with its data; it is ready when this returns.
    pub async fn restart(&self) -> Result<(), Error> {
        self.kill().await?;
        let mut command = unprivileged(&Self::program()?);
        command.arg("-D").arg(self.data()).args(["-h", &self.address().ip().to_string()]);
        command.args(["-p", &POSTGRES.to_string()]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        self.server.start(command)?;
        accepts_clients(&self.server, self.address()).await
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        self.server.log()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

/// A PgBouncer in transaction pooling mode: its clients share a few connections to the server, and two transactions of one
/// client may run on different connections.
#[derive(Debug)]
pub struct PgBouncer {
    address: SocketAddr,
    _server: Server,
    _dir: TempDir,
}

impl PgBouncer {
    /// Starts one in front of `server`, with this many connections to it.
    pub async fn start(server: &PostgresServer, connections: usize) -> Result<Self, Error> {
        Self::start_with(server, connections, "").await
    }

    /// The same with more lines of its configuration, of which the last of a name counts.
    pub async fn start_with(server: &PostgresServer, connections: usize, more: &str) -> Result<Self, Error> {
        let dir = folder_of_nobody("postgres")?;
        let (address, behind) = (server.loopback.at(BOUNCER), server.address());
        let config = format!(
            "[databases]\npostgres = host={} port={} user=postgres\n[pgbouncer]\nlisten_addr = {}\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {connections}\n\
             max_client_conn = 100\n{more}",
            behind.ip(),
            behind.port(),
            address.ip(),
            address.port(),
        );
        let file = dir.path().join("pgbouncer.ini");
        fs::write(&file, config).map_err(Error::io("cannot write the configuration of PgBouncer"))?;
        let mut command = unprivileged(&installed("pgbouncer")?);
        command.arg(&file);
        let server = Server::start_new("PgBouncer", dir.path().join("log"), command)?;
        accepts_clients(&server, address).await?;
        Ok(Self { address, _server: server, _dir: dir })
    }

    /// How clients reach the server through it.
    pub fn url(&self) -> String {
        format!("postgresql://postgres@{}/postgres", self.address)
    }
}

async fn accepts_clients(server: &Server, address: SocketAddr) -> Result<(), Error> {
    let program = installed("pg_isready")?;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let look = async || {
        let asked = run(&program, ["-h", &host, "-p", &port, "-t", "1"], SOON).await;
        asked.is_ok_and(|asked| asked.status.success())
    };
    server.ready(look).await
}

/// A command that ends with the test program, and has no rights if that is root.
pub(crate) fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if geteuid().is_root() {
        let id = NOBODY.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).env("LC_ALL", "C").current_dir("/");
    command
}

/// A directory that such a command may write to.
pub(crate) fn folder_of_nobody(name: &str) -> Result<TempDir, Error> {
    let dir = folder(name)?;
    if geteuid().is_root() {
        let owned = chown(dir.path(), Some(NOBODY), Some(NOBODY));
        let owned = owned.and_then(|()| fs::set_permissions(dir.path(), Permissions::from_mode(0o700)));
        owned.map_err(Error::io("cannot give the directory away"))?;
    }
    Ok(dir)
}

/// Debian has a directory for each version of the server's programs, of which this takes the newest. Others have them in
/// the path.
pub(crate) fn installed(program: &str) -> Result<PathBuf, Error> {
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<_> =
        versions.map(|entry| entry.path()).filter(|path| version(path).is_some()).collect();
    versions.sort_by_key(|path| std::cmp::Reverse(version(path)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = versions.into_iter().map(|path| path.join("bin")).chain(std::env::split_paths(&path));
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let found = folders.chain(sbin).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.ok_or_else(|| Error::Unavailable(format!("{program} is not installed (./test installs it)")))
}

/// The processes whose parent is `pid`.
fn children(pid: u32) -> Result<Vec<Pid>, Error> {
    let processes = fs::read_dir("/proc").map_err(Error::io("cannot list the processes"))?;
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(pids
        .filter_map(Pid::from_raw)
        .filter(|&child| state(child).is_some_and(|(_, of)| of == pid))
        .collect())
}

/// Whether a process is gone, or only waits to be reaped.
fn has_ended(pid: Pid) -> bool {
    state(pid).is_none_or(|(state, _)| state == "Z")
}

/// The state of a process, and who its parent is.
fn state(pid: Pid) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // They follow the name, which may contain anything.
    let mut rest = stat.rsplit(") ").next()?.split(' ');
    Some((rest.next()?.to_owned(), rest.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn psql(url: &str, sql: &str) -> String {
        let arguments = ["--no-psqlrc", "-qtA", "-v", "ON_ERROR_STOP=1", url, "-c", sql];
        run(installed("psql").unwrap(), arguments, SOON).await.unwrap().output.trim().to_owned()
    }

    #[tokio::test]
    async fn a_server_that_is_killed_and_restarted_has_its_data_and_serves_through_pgbouncer() {
        let server = PostgresServer::start().await.unwrap();
        assert_eq!(psql(&server.url(), "CREATE TABLE t (n int); INSERT INTO t VALUES (7)").await, "");
        server.kill().await.unwrap();
        assert!(psql(&server.url(), "SELECT 1").await.contains("refused"));
        server.restart().await.unwrap();
        let bouncer = PgBouncer::start(&server, 2).await.unwrap();
        assert_eq!(psql(&bouncer.url(), "SELECT n FROM t").await, "7");
        assert!(server.log().contains("not properly shut down"), "{}", server.log());
    }
}
