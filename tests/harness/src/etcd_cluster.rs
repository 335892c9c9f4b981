//! Three real etcd servers on one loopback address, as they come from a package. They end with the test program.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::loopback::Loopback;
use crate::process::{Process, mortal};
use crate::{Client, Error, until};

/// How long the servers may take to find each other.
const WITHIN: Duration = Duration::from_secs(60);
const CLIENTS: u16 = 2379;
const PEERS: u16 = 2479;

/// A cluster of three, with data of its own on disk.
#[derive(Debug)]
pub struct EtcdCluster {
    processes: Vec<Process>,
    loopback: Loopback,
    _dir: TempDir,
}

impl EtcdCluster {
    /// Starts three servers of `program`, and waits until each says that it is well.
    pub async fn start(program: &Path) -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("ringfence-etcd-").tempdir();
        let dir = dir.map_err(Error::io("cannot make a directory"))?;
        let loopback = Loopback::claim()?;
        let url = |port: u16| format!("http://{}", loopback.at(port));
        let all: Vec<String> = (0..3).map(|id| format!("n{id}={}", url(PEERS + id))).collect();
        let mut processes = Vec::new();
        for id in 0..3 {
            let (clients, peers) = (url(CLIENTS + id), url(PEERS + id));
            let mut command = mortal(program);
            command.arg(format!("--name=n{id}")).arg("--data-dir").arg(dir.path().join(format!("n{id}")));
            command.arg(format!("--listen-client-urls={clients}"));
            command.arg(format!("--advertise-client-urls={clients}"));
            command.arg(format!("--listen-peer-urls={peers}"));
            command.arg(format!("--initial-advertise-peer-urls={peers}"));
            command.arg(format!("--initial-cluster={}", all.join(","))).arg("--log-level=warn");
            let log = dir.path().join(format!("n{id}.log"));
            processes.push(Process::start(command, &log).map_err(Error::io("cannot start etcd"))?);
        }
        let cluster = Self { processes, loopback, _dir: dir };
        for address in cluster.addresses() {
            let is_well = async || {
                let health = Client::new(address).raw("GET", "/health", "").await.ok()?;
                (health.status == 200 && health.body.starts_with(br#"{"health":"true""#)).then_some(())
            };
            until(WITHIN, format!("etcd at {address} is well"), is_well).await?;
        }
        Ok(cluster)
    }

    /// Where each server takes clients.
    pub fn addresses(&self) -> [SocketAddr; 3] {
        [0, 1, 2].map(|id| self.loopback.at(CLIENTS + id))
    }

    /// A client of each server's HTTP.
    pub fn clients(&self) -> [Client; 3] {
        self.addresses().map(Client::new)
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }
}
