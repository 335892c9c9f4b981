//! A stranger: somebody who reaches the ports of the nodes, and keeps what it has opened.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use ringfence_harness::{Builder, Cluster, Node};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::http::Connection;

/// The usual soft limit of a service.
const DESCRIPTORS: u64 = 1_024;
/// A call that takes longer has failed, which is no reason to stop.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a cluster whose nodes begin with [`DESCRIPTORS`]; this process keeps what it has.
pub(super) async fn with_few_descriptors(cluster: Builder) -> Result<Cluster> {
    let own = getrlimit(Resource::Nofile);
    let soft = own.current.map_or(DESCRIPTORS, |soft| soft.min(DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: own.maximum })?;
    let cluster = cluster.start().await;
    setrlimit(Resource::Nofile, Rlimit { current: own.maximum, maximum: own.maximum })?;
    Ok(cluster?)
}

pub(super) struct Stranger {
    /// Where the HTTP of the leader is.
    pub(super) leader: SocketAddr,
    /// Where the HTTP of each node is.
    pub(super) nodes: Vec<SocketAddr>,
    /// Where each node listens to its peers.
    pub(super) peers: Vec<SocketAddr>,
    /// Connections that stay open.
    pub(super) open: Vec<TcpStream>,
    sent: u64,
}

impl Stranger {
    pub(super) fn new(cluster: &Cluster, leader: u64) -> Self {
        Self {
            leader: cluster.node(leader).http(),
            nodes: cluster.nodes().iter().map(Node::http).collect(),
            peers: cluster.nodes().iter().map(Node::peer).collect(),
            open: Vec::new(),
            sent: 0,
        }
    }

    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent
    }

    /// Calls the leader and wants `wanted`.
    pub(super) async fn call(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        wanted: u16,
    ) -> Result<Vec<u8>> {
        self.sent += (path.len() + body.len()) as u64;
        let mut connection = Connection::open(self.leader).await?;
        let answer =
            timeout(PATIENCE, connection.call(method, path, body)).await.context("no answer in time")??;
        let told = || String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]).into_owned();
        ensure!(
            answer.status == wanted,
            "{method} {}: {}: {}",
            &path[..path.len().min(60)],
            answer.status,
            told()
        );
        Ok(answer.body.to_vec())
    }

    /// Sends the same request to the leader over `connections` connections, again and again until `end`; how many were
    /// answered, whatever the answer was.
    pub(super) async fn repeat(
        &mut self,
        connections: usize,
        method: &str,
        path: &str,
        body: &str,
        end: Instant,
    ) -> Result<u64> {
        let leader = self.leader;
        let one = async || {
            let mut answered = 0;
            while Instant::now() < end {
                let Ok(mut connection) = Connection::open(leader).await else {
                    sleep(Duration::from_millis(50)).await;
                    continue;
                };
                while Instant::now() < end
                    && let Ok(Ok(_)) = timeout(PATIENCE, connection.call(method, path, body)).await
                {
                    answered += 1;
                }
                // A refusal that closes the connection is an answer, too.
                answered += 1;
                sleep(Duration::from_millis(5)).await;
            }
            answered
        };
        let answered: u64 = join_all((0..connections).map(|_| one())).await.into_iter().sum();
        self.sent += answered * (path.len() + body.len()) as u64;
        Ok(answered)
    }

    /// Opens a connection to `to`, sends `bytes` and keeps it without reading. Whether all could be sent: a node may
    /// refuse.
    pub(super) async fn send(&mut self, to: SocketAddr, bytes: &[u8]) -> bool {
        let Ok(Ok(mut stream)) = timeout(PATIENCE, TcpStream::connect(to)).await else { return false };
        let sent = timeout(Duration::from_secs(2), stream.write_all(bytes)).await;
        self.sent += bytes.len() as u64;
        self.open.push(stream);
        matches!(sent, Ok(Ok(())))
    }

    /// Sends a GET to the leader and never reads its answer.
    pub(super) async fn ask_unread(&mut self, path: &str) -> bool {
        let leader = self.leader;
        self.send(leader, format!("GET {path} HTTP/1.1\r\nhost: {leader}\r\n\r\n").as_bytes()).await
    }

    /// Opens a watch and waits until it has begun.
    pub(super) async fn watch(&mut self, prefix: &str) -> Result<()> {
        ensure!(
            self.ask_unread(&format!("/v1/watch?prefix={prefix}")).await,
            "a watch could not be asked for"
        );
        let stream = self.open.last_mut().context("the watch was not kept")?;
        let mut head = [0; 12];
        timeout(PATIENCE, stream.read_exact(&mut head)).await.context("a watch was not answered")??;
        ensure!(&head == b"HTTP/1.1 200", "a watch was refused: {}", String::from_utf8_lossy(&head));
        Ok(())
    }
}
