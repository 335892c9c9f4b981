//! A stranger: a client that reaches the ports of the nodes, and keeps the connections that it opens.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::join_all;
use ringfence_harness::{Builder, Cluster, HttpConnection, Node};
use ringfence_wire::LeaseId;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// The usual soft limit of a service.
const DESCRIPTORS: u64 = 1_024;
/// The size of what the kernel keeps for a connection of a flood that is not sent yet, in bytes.
const SEND_BUFFER: u32 = 64 << 10;
/// A call that takes longer has failed, which does not end the attack.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a cluster whose nodes have [`DESCRIPTORS`] as their soft limit, and raises that of this process to the hard one.
pub(super) async fn with_few_descriptors(cluster: Builder) -> Result<Cluster> {
    let own = getrlimit(Resource::Nofile);
    let soft = own.current.map_or(DESCRIPTORS, |soft| soft.min(DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: own.maximum })?;
    let cluster = cluster.start().await;
    setrlimit(Resource::Nofile, Rlimit { current: own.maximum, maximum: own.maximum })?;
    Ok(cluster?)
}

pub(super) struct Stranger {
    /// The HTTP address of the leader.
    pub(super) leader: SocketAddr,
    /// The HTTP addresses of all nodes.
    pub(super) nodes: Vec<SocketAddr>,
    /// The peer addresses of all nodes.
    pub(super) peers: Vec<SocketAddr>,
    /// The addresses of all nodes for the Redis protocol, the leader first.
    pub(super) resp: Vec<SocketAddr>,
    /// Connections that stay open.
    pub(super) open: Vec<TcpStream>,
    sent: u64,
}

impl Stranger {
    pub(super) fn new(cluster: &Cluster, leader: u64) -> Self {
        let others = cluster.others(leader);
        Self {
            resp: [cluster.node(leader)].into_iter().chain(others).map(Node::resp).collect(),
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

    /// Calls the leader, on a new connection; any status but `wanted` is an error.
    pub(super) async fn call(
        &mut self,
        wanted: u16,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<Vec<u8>> {
        self.sent += (path.len() + body.len()) as u64;
        let mut connection = HttpConnection::open(self.leader).await?;
        let answer = timeout(PATIENCE, connection.expect(wanted, method, path, body)).await;
        Ok(answer.context("no answer in time")??.to_vec())
    }

    /// One batch.
    pub(super) async fn batch(&mut self, body: &str) -> Result<()> {
        self.call(200, "POST", "/v1/batch", body).await.map(drop)
    }

    /// Releases one lease.
    pub(super) async fn release(&mut self, lease: LeaseId) -> Result<()> {
        self.call(204, "DELETE", &format!("/v1/leases/{lease}"), "").await.map(drop)
    }

    /// Repeats a request to the leader over `connections` connections until `end`. Counts the answers, whatever their
    /// status.
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
                let Ok(mut connection) = HttpConnection::open(leader).await else {
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

    /// Asks the leader for `path` over `connections` connections until `end`, each many times before the first answer. Counts the
    /// answers by their bytes, as the first one has.
    pub(super) async fn pipeline(&mut self, connections: usize, path: &str, end: Instant) -> Result<u64> {
        let leader = self.leader;
        let requests = format!("GET {path} HTTP/1.1\r\nhost: {leader}\r\n\r\n").repeat(100);
        let answer = HttpConnection::open(leader).await?.expect(200, "GET", path, "").await?.len() as u64;
        Ok(self.flood(leader, connections, |_| requests.clone().into_bytes(), end).await / answer.max(1))
    }

    /// Sends the `requests` of each of `connections` connections again and again until `end`, and reads the answers. Returns the number of
    /// bytes in the answers.
    pub(super) async fn flood(
        &mut self,
        to: SocketAddr,
        connections: usize,
        requests: impl Fn(usize) -> Vec<u8>,
        end: Instant,
    ) -> u64 {
        let one = async |connection: usize| {
            let requests = requests(connection);
            let socket = TcpSocket::new_v4()?;
            // A stranger's kernel is another one: what it has not sent yet must not take the memory that the nodes' TCP has.
            socket.set_send_buffer_size(SEND_BUFFER)?;
            let mut stream = socket.connect(to).await?;
            let (mut reader, mut writer) = stream.split();
            let (mut read, mut written) = (0, 0);
            let write = async {
                loop {
                    if let Err(error) = writer.write_all(&requests).await {
                        return io::Result::<Infallible>::Err(error);
                    }
                    written += requests.len() as u64;
                }
            };
            let mut buffer = vec![0; 64 << 10];
            let read_all = async {
                loop {
                    match reader.read(&mut buffer).await? {
                        0 => return io::Result::<Infallible>::Err(io::ErrorKind::UnexpectedEof.into()),
                        bytes => read += bytes as u64,
                    }
                }
            };
            // A node may close the connection.
            let _ = timeout_at(end, async { tokio::try_join!(write, read_all) }).await;
            io::Result::Ok((read, written))
        };
        let all = join_all((0..connections).map(one)).await;
        let (read, written): (Vec<u64>, Vec<u64>) = all.into_iter().flatten().unzip();
        self.sent += written.into_iter().sum::<u64>();
        read.into_iter().sum()
    }

    /// Opens a connection, sends `bytes` and keeps it without reading. Returns whether all was sent: a node may refuse.
    pub(super) async fn send(&mut self, to: SocketAddr, bytes: &[u8]) -> bool {
        let Ok(Ok(mut stream)) = timeout(PATIENCE, TcpStream::connect(to)).await else { return false };
        let sent = timeout(Duration::from_secs(2), stream.write_all(bytes)).await;
        self.sent += bytes.len() as u64;
        self.open.push(stream);
        matches!(sent, Ok(Ok(())))
    }

    /// Opens so many connections to each of these, sends `bytes` on each, and keeps them until `end`. Counts all that are open.
    pub(super) async fn keep(
        &mut self,
        to: &[SocketAddr],
        each: usize,
        bytes: &[u8],
        end: Instant,
    ) -> Result<u64> {
        for address in to {
            for _ in 0..each {
                self.send(*address, bytes).await;
            }
        }
        sleep_until(end).await;
        Ok(self.open.len() as u64)
    }

    /// Sends up to 60 GETs to the leader until `end`, and never reads the answers. Counts those sent.
    pub(super) async fn ask_unread(&mut self, path: &str, end: Instant) -> Result<u64> {
        let leader = self.leader;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {leader}\r\n\r\n");
        let mut sent = 0;
        while Instant::now() < end && sent < 60 {
            sent += u64::from(self.send(leader, request.as_bytes()).await);
            sleep(Duration::from_millis(50)).await;
        }
        sleep_until(end).await;
        Ok(sent)
    }

    /// Opens a watch that is never read beyond its head.
    pub(super) async fn watch(&mut self, prefix: &str) -> Result<()> {
        let path = format!("/v1/watch?prefix={prefix}");
        self.sent += path.len() as u64;
        let stream = timeout(PATIENCE, HttpConnection::stream(self.leader, &path)).await;
        self.open.push(stream.context("a watch was not answered")?.context("a watch was refused")?);
        Ok(())
    }
}
