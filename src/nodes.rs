//! A cluster on this machine, each node a child process: started, killed, and restarted on its data.
//!
//! Node N serves clients on base port + N, peers on base port + 100 + N and, if asked to, Redis clients on base port + 200 + N. Its data is
//! in `node-N`.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::child::{self, Child};
use crate::poll;

pub(crate) const MAX_NODES: u16 = 9;

/// Peer port minus client port.
const PEER_OFFSET: u16 = 100;
/// Port for Redis clients minus client port.
const RESP_OFFSET: u16 = 200;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than the second after which a node itself answers /readyz with 503.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Where nodes log warnings and errors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Log {
    /// The standard error of this process.
    Stderr,
    /// `node-N.log`, next to the node's data.
    Files,
}

/// Environment variables for `ringfence serve`. Arguments would be visible to every user of the machine, with the
/// password in a URL.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

/// The nodes. They are killed on drop.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    data: PathBuf,
    variables: Variables,
    log: Log,
}

/// One node.
pub(crate) struct Node {
    pub(crate) id: u16,
    pub(crate) http: SocketAddr,
    peer: SocketAddr,
    /// The address for the Redis protocol, if it speaks that.
    pub(crate) resp: Option<SocketAddr>,
    /// What trusts it, and its arguments, if it uses TLS.
    tls: Option<(Arc<ringfence_tls::Client>, Vec<OsString>)>,
    /// `None` while it is down.
    process: Option<Child>,
}

impl Nodes {
    /// `count` nodes, not started yet.
    pub(crate) fn new(
        count: u16,
        base_port: u16,
        data: &Path,
        variables: Variables,
        log: Log,
    ) -> anyhow::Result<Self> {
        let highest = u16::MAX - RESP_OFFSET - MAX_NODES;
        ensure!(base_port <= highest, "--base-port must be at most {highest}");
        let nodes = (1..=count).map(|id| Node {
            id,
            http: address(base_port + id),
            peer: address(base_port + PEER_OFFSET + id),
            resp: None,
            tls: None,
            process: None,
        });
        Ok(Self { nodes: nodes.collect(), data: data.to_owned(), variables, log })
    }

    /// Lets the nodes use TLS, each with these `arguments`, and certificates of `authority`.
    pub(crate) fn encrypt(
        &mut self,
        authority: PathBuf,
        arguments: impl Fn(u16) -> Vec<OsString>,
    ) -> anyhow::Result<()> {
        let client = Arc::new(ringfence_tls::Client::with_authority(Some(authority))?);
        self.nodes.iter_mut().for_each(|node| node.tls = Some((Arc::clone(&client), arguments(node.id))));
        Ok(())
    }

    /// Makes the nodes speak the Redis protocol, too.
    pub(crate) fn speak_resp(&mut self) {
        for node in &mut self.nodes {
            node.resp = Some(address(node.http.port() + RESP_OFFSET));
        }
    }

    /// All nodes, ordered by id.
    pub(crate) fn all(&self) -> &[Node] {
        &self.nodes
    }

    /// Fails if other programs listen on the ports. Their answers would look like those of the nodes.
    pub(crate) fn check_ports(&self) -> anyhow::Result<()> {
        for address in
            self.nodes.iter().flat_map(|node| [Some(node.http), Some(node.peer), node.resp]).flatten()
        {
            TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        }
        Ok(())
    }

    /// Starts every node that is down.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let peers: Vec<String> = self.nodes.iter().map(|node| format!("{}={}", node.id, node.peer)).collect();
        let peers = peers.join(",");
        for node in self.nodes.iter_mut().filter(|node| node.process.is_none()) {
            let mut command = child::this_program("serve")?;
            command
                .envs(self.variables.iter().map(|(name, value)| (name, value)))
                .args(["--log", "warn,openraft=error", "--peers", &peers, "--id", &node.id.to_string()])
                .args(["--http", &node.http.to_string(), "--peer", &node.peer.to_string()])
                .arg("--data")
                .arg(self.data.join(format!("node-{}", node.id)));
            if let Some(resp) = node.resp {
                command.args(["--resp", &resp.to_string()]);
            }
            if let Some((_, arguments)) = &node.tls {
                command.args(arguments);
            }
            if let Log::Files = self.log {
                let path = self.data.join(format!("node-{}.log", node.id));
                let log = File::options().create(true).append(true).open(&path);
                command.stderr(Stdio::from(log.with_context(|| format!("cannot write {}", path.display()))?));
            }
            let child = Child::start(command).with_context(|| format!("cannot start node {}", node.id))?;
            node.process = Some(child);
        }
        Ok(())
    }

    /// Waits until every running node answers /readyz with 200.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        poll::until(READY_TIMEOUT, "the nodes did not become ready", async || {
            self.fail_if_ended()?;
            for node in self.nodes.iter().filter(|node| node.process.is_some()) {
                if !node.is_ready().await {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
        .await
    }

    /// Fails if a node exited without being killed here.
    pub(crate) fn fail_if_ended(&mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process
                && let Some(status) = process.ended()?
            {
                let log = std::fs::read_to_string(self.data.join(format!("node-{}.log", node.id)));
                let last = log.unwrap_or_default().lines().last().unwrap_or_default().to_owned();
                bail!("node {} exited ({status}); stopping the others. {last}", node.id);
            }
        }
        Ok(())
    }

    /// Kills node `id` with SIGKILL and reaps it.
    pub(crate) fn kill(&mut self, id: u16) {
        self.nodes.iter_mut().filter(|node| node.id == id).for_each(|node| node.process = None);
    }

    /// Kills all nodes: every SIGKILL is sent before the first process is reaped.
    pub(crate) fn kill_all(&mut self) -> anyhow::Result<()> {
        for process in self.nodes.iter_mut().filter_map(|node| node.process.as_mut()) {
            process.kill()?;
        }
        self.nodes.iter_mut().for_each(|node| node.process = None);
        Ok(())
    }
}

/// Kills all at once, so that no survivor logs that the others are gone.
impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = self.kill_all();
    }
}

impl Node {
    /// `None` while it is down.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::pid)
    }

    /// Where clients reach it.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.http)
    }

    /// `GET /readyz`. Only the status line is read.
    async fn is_ready(&self) -> bool {
        let probe = async {
            let stream = TcpStream::connect(self.http).await?;
            match &self.tls {
                None => answers_200(stream, self.http).await,
                Some((client, _)) => {
                    let connector = TlsConnector::from(client.current());
                    answers_200(connector.connect(self.http.ip().into(), stream).await?, self.http).await
                }
            }
        };
        matches!(timeout(PROBE_TIMEOUT, probe).await, Ok(Ok(true)))
    }
}

/// A base port reserved against other clusters on this machine.
pub(crate) struct Ports {
    pub(crate) base: u16,
    /// Bound to the base port itself, which no node uses.
    _reservation: TcpListener,
}

impl Ports {
    /// Finds free ports below the ephemeral range, so that no connection takes the port of a node that is down.
    pub(crate) fn reserve(nodes: u16) -> anyhow::Result<Self> {
        let candidates: Vec<u16> = (20_000..32_000).step_by(usize::from(2 * PEER_OFFSET)).collect();
        let first = RandomState::new().hash_one(()) as usize % candidates.len();
        let is_free = |port| TcpListener::bind(address(port)).is_ok();
        candidates[first..]
            .iter()
            .chain(&candidates[..first])
            .find_map(|&base| {
                let reservation = TcpListener::bind(address(base)).ok()?;
                let are_free = (1..=nodes).all(|id| is_free(base + id) && is_free(base + PEER_OFFSET + id));
                are_free.then_some(Self { base, _reservation: reservation })
            })
            .context("no free ports between 20000 and 32000")
    }
}

async fn answers_200(mut stream: impl AsyncRead + AsyncWrite + Unpin, http: SocketAddr) -> io::Result<bool> {
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    Ok(&status == b"HTTP/1.1 200")
}

fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
