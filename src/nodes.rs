//! The nodes of a cluster on this machine, each a process of its own: started, watched, killed, and started again on
//! their data.
//!
//! Node N listens for clients on the base port + N and for its peers on the base port + 100 + N; its data is in
//! `node-N`.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use axum::body::Bytes;
use hyper::{Method, StatusCode};

use crate::child::{self, Child};
use crate::exchange::exchange;

/// The most nodes that are run here.
pub(crate) const MAX_NODES: u16 = 9;

/// How far the ports for peers lie above those for clients.
const PEERS: u16 = 100;
const READY_WITHIN: Duration = Duration::from_secs(30);
/// A look whether a node is ready takes no longer: it gives up by itself after a second.
const LOOK: Duration = Duration::from_secs(2);

/// Where nodes log to, from warnings up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Log {
    /// To this process's standard error.
    Stderr,
    /// Each to `node-N.log` beside its data.
    Files,
}

/// What nodes are told besides who they are: variables of the environment, for `ringfence serve`. Unlike arguments these
/// are not shown to everybody on the machine.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

/// The nodes, ended when dropped.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    data: PathBuf,
    variables: Variables,
    log: Log,
}

/// One node, which may have a process.
pub(crate) struct Node {
    pub(crate) id: u16,
    pub(crate) http: SocketAddr,
    peer: SocketAddr,
    process: Option<Child>,
}

impl Nodes {
    /// `count` nodes, none of them started.
    pub(crate) fn new(
        count: u16,
        base_port: u16,
        data: &Path,
        variables: Variables,
        log: Log,
    ) -> anyhow::Result<Self> {
        let highest = u16::MAX - PEERS - MAX_NODES;
        ensure!(base_port <= highest, "--base-port is at most {highest}");
        let nodes = (1..=count).map(|id| Node {
            id,
            http: address(base_port + id),
            peer: address(base_port + PEERS + id),
            process: None,
        });
        Ok(Self { nodes: nodes.collect(), data: data.to_owned(), variables, log })
    }

    /// All of them, by id.
    pub(crate) fn all(&self) -> &[Node] {
        &self.nodes
    }

    /// Starts each that has no process.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let peers: Vec<String> = self.nodes.iter().map(|node| format!("{}={}", node.id, node.peer)).collect();
        let peers = peers.join(",");
        for node in self.nodes.iter_mut().filter(|node| node.process.is_none()) {
            let mut command = child::this_program("serve")?;
            command
                .envs(self.variables.iter().map(|(name, value)| (name, value)))
                .args(["--config", "/dev/null"])
                .args(["--log", "warn,openraft=error", "--peers", &peers, "--id", &node.id.to_string()])
                .args(["--http", &node.http.to_string(), "--peer", &node.peer.to_string()])
                .arg("--data")
                .arg(self.data.join(format!("node-{}", node.id)));
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

    /// Waits until all that have a process are ready for requests.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        for index in 0..self.nodes.len() {
            let Node { id, http, .. } = self.nodes[index];
            while self.nodes[index].process.is_some() && !is_ready(http).await {
                self.fail_if_ended()?;
                ensure!(
                    Instant::now() < deadline,
                    "node {id} is not ready after {} s",
                    READY_WITHIN.as_secs()
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Fails if one has ended that was not killed here.
    pub(crate) fn fail_if_ended(&mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process
                && let Some(status) = process.ended()?
            {
                let log = std::fs::read_to_string(self.data.join(format!("node-{}.log", node.id)));
                let last = log.unwrap_or_default().lines().last().unwrap_or_default().to_owned();
                bail!("node {} has ended ({status}); ending the others. {last}", node.id);
            }
        }
        Ok(())
    }

    /// Kills node `id` with SIGKILL, and returns when it is gone.
    pub(crate) fn kill(&mut self, id: u16) {
        self.nodes.iter_mut().filter(|node| node.id == id).for_each(|node| node.process = None);
    }

    /// The same with all of them, as nearly at once as can be.
    pub(crate) fn kill_all(&mut self) -> anyhow::Result<()> {
        for process in self.nodes.iter_mut().filter_map(|node| node.process.as_mut()) {
            process.kill()?;
        }
        self.nodes.iter_mut().for_each(|node| node.process = None);
        Ok(())
    }
}

/// As nearly at once as can be, so that none is left to complain about the others.
impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = self.kill_all();
    }
}

impl Node {
    /// The id of its process, while it has one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::pid)
    }
}

/// Base ports that no other cluster started by this has.
pub(crate) struct Ports {
    pub(crate) base: u16,
    /// Whoever listens on the base port itself has those that belong to it.
    _claim: TcpListener,
}

impl Ports {
    /// Looks for ports that are free, below those that connections come from: so they stay free while a node is down.
    pub(crate) fn claim(nodes: u16) -> anyhow::Result<Self> {
        let candidates: Vec<u16> = (20_000..32_000).step_by(usize::from(2 * PEERS)).collect();
        let first = RandomState::new().hash_one(()) as usize % candidates.len();
        let is_free = |port| TcpListener::bind(address(port)).is_ok();
        candidates[first..]
            .iter()
            .chain(&candidates[..first])
            .find_map(|&base| {
                let claim = TcpListener::bind(address(base)).ok()?;
                let are_free = (1..=nodes).all(|id| is_free(base + id) && is_free(base + PEERS + id));
                are_free.then_some(Self { base, _claim: claim })
            })
            .context("no ports are free between 20,000 and 32,000")
    }
}

/// Whether the node at `http` says so itself.
async fn is_ready(http: SocketAddr) -> bool {
    let answer = exchange(http, Method::GET, "/readyz", Bytes::new(), LOOK).await;
    answer.is_ok_and(|answer| answer.status == StatusCode::OK)
}

fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
