//! A real MariaDB, from the system's packages.
//!
//! It refuses to run as root, so as root it runs as the user `nobody`. It ends with the test program, however that ends.

use std::net::SocketAddr;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::Error;
use crate::loopback::Loopback;
use crate::postgres_server::{folder_of_nobody, installed, unprivileged};
use crate::process::{Server, WITHIN};
use crate::program::complete;

const MARIADB: u16 = 3306;

/// Nothing waits for the disk, which no test of it needs.
const SETTINGS: [&str; 4] = [
    "--innodb-flush-method=nosync",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=32M",
];

/// One server with an empty database `test`. Every client is an administrator, without a password.
#[derive(Debug)]
pub struct MariaDbServer {
    loopback: Loopback,
    _server: Server,
    _dir: TempDir,
}

impl MariaDbServer {
    /// Creates a database and starts its server; it is ready when this returns.
    pub async fn start() -> Result<Self, Error> {
        let (loopback, dir) = (Loopback::claim()?, folder_of_nobody("mariadb")?);
        let data = format!("--datadir={}", dir.path().join("data").display());
        // A server that starts removes the temporary tables that it finds, those of others too.
        let temporary = format!("--tmpdir={}", dir.path().display());
        let mut install = unprivileged(&installed("mariadb-install-db")?);
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", &data, &temporary]);
        install.args(SETTINGS);
        let ended = complete(install, WITHIN).await?;
        if !ended.status.success() {
            return Err(Error::Unavailable(format!("mariadb-install-db failed: {}", ended.output)));
        }
        let mut command = unprivileged(&installed("mariadbd")?);
        command.args(["--no-defaults", "--skip-grant-tables", "--skip-name-resolve", "--socket="]);
        command.args([&data, &temporary]);
        command.arg(format!("--bind-address={}", loopback.ip())).arg(format!("--port={MARIADB}"));
        command.arg(format!("--pid-file={}", dir.path().join("pid").display())).args(SETTINGS);
        let server = Server::start_new("MariaDB", dir.path().join("log"), command)?;
        let address = loopback.at(MARIADB);
        server.ready(async || TcpStream::connect(address).await.is_ok()).await?;
        Ok(Self { loopback, _server: server, _dir: dir })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.loopback.at(MARIADB)
    }
}
