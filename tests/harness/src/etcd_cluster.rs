//! Three real etcd servers on one loopback address, from the system's package.

use std::net::SocketAddr;
use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::loopback::Loopback;
use crate::process::{Server, folder, mortal};
use crate::{Client, Error};

const CLIENTS: u16 = 2379;
const PEERS: u16 = 2479;

/// A cluster of three with its own data on disk. It ends with the test program.
#[derive(Debug)]
pub struct EtcdCluster {
    servers: Vec<Server>,
    loopback: Loopback,
    _dir: TempDir,
}

impl EtcdCluster {
    /// Starts three servers of `program` and waits until each reports that it is healthy.
    pub async fn start(program: &Path) -> Result<Self, Error> {
        let (dir, loopback) = (folder("etcd")?, Loopback::claim()?);
        let url = |port: u16| format!("http://{}", loopback.at(port));
        let all: Vec<String> = (0..3).map(|id| format!("n{id}={}", url(PEERS + id))).collect();
        let mut servers = Vec::new();
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
            servers.push(Server::start_new(format!("etcd at {clients}"), log, command)?);
        }
        let cluster = Self { servers, loopback, _dir: dir };
        for (server, client) in cluster.servers.iter().zip(cluster.clients()) {
            let is_healthy = async || {
                let health = client.raw("GET", "/health", "").await;
                health.is_ok_and(|it| it.status == 200 && it.body.starts_with(br#"{"health":"true""#))
            };
            server.ready(is_healthy).await?;
        }
        Ok(cluster)
    }

    /// The client address of each server.
    pub fn addresses(&self) -> [SocketAddr; 3] {
        [0, 1, 2].map(|id| self.loopback.at(CLIENTS + id))
    }

    /// A client of each server's HTTP.
    pub fn clients(&self) -> [Client; 3] {
        self.addresses().map(Client::new)
    }

    /// Kills a server.
    pub fn kill(&self, id: usize) -> Result<(), Error> {
        self.servers[id].kill()
    }

    /// Calls `act` with the process of a server while all its threads stand still.
    pub async fn while_still<T>(&self, id: usize, act: impl FnOnce(u32) -> T) -> Result<T, Error> {
        let server = &self.servers[id];
        let pid = server.pid().ok_or_else(|| server.failed("has no process"))?;
        server.signal(Signal::STOP)?;
        server.stands_still().await?;
        let done = act(pid);
        server.signal(Signal::CONT)?;
        Ok(done)
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.servers.iter().filter_map(Server::pid).collect()
    }
}
