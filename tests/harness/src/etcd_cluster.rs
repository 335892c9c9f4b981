//! Three real etcd servers.

use std::net::SocketAddr;
use std::path::Path;

use crate::{Client, Error, Trio};

const CLIENTS: u16 = 2379;
const PEERS: u16 = 2479;

/// A cluster of three.
#[derive(Debug)]
pub struct EtcdCluster(Trio);

impl EtcdCluster {
    /// Starts three servers of `program` and waits until each reports that it is healthy.
    pub async fn start(program: &Path) -> Result<Self, Error> {
        let servers = Trio::start(program, |command, id, ip, dir| {
            let url = |port: u16| format!("http://{}", SocketAddr::new(ip, port));
            let all: Vec<String> = (0..3).map(|id| format!("n{id}={}", url(PEERS + id))).collect();
            let (clients, peers) = (url(CLIENTS + id), url(PEERS + id));
            command.arg(format!("--name=n{id}")).arg("--data-dir").arg(dir.join("data"));
            command.arg(format!("--listen-client-urls={clients}"));
            command.arg(format!("--advertise-client-urls={clients}"));
            command.arg(format!("--listen-peer-urls={peers}"));
            command.arg(format!("--initial-advertise-peer-urls={peers}"));
            command.arg(format!("--initial-cluster={}", all.join(","))).arg("--log-level=warn");
            Ok(())
        })?;
        let clients = servers.http(CLIENTS);
        let is_healthy = async |id: usize| {
            let health = clients[id].raw("GET", "/health", "").await;
            health.is_ok_and(|it| it.status == 200 && it.body.starts_with(br#"{"health":"true""#))
        };
        servers.ready(is_healthy).await?;
        Ok(Self(servers))
    }

    /// The servers.
    pub fn servers(&self) -> &Trio {
        &self.0
    }

    /// The client address of each server.
    pub fn addresses(&self) -> [SocketAddr; 3] {
        self.0.at(CLIENTS)
    }

    /// A client of each server's HTTP.
    pub fn clients(&self) -> [Client; 3] {
        self.0.http(CLIENTS)
    }

    /// The server that says that it leads, if one does.
    pub async fn leader(&self) -> Option<usize> {
        for (id, client) in self.clients().iter().enumerate() {
            if let Ok(Some(1.0)) = client.metric("etcd_server_is_leader").await {
                return Some(id);
            }
        }
        None
    }
}
