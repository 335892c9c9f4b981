use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ringfence_wire::Role;
use tempfile::TempDir;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::loopback::{HTTP, Loopback, PEER, RELAY};
use crate::node::Seat;
use crate::process::{Server, WITHIN, folder};
use crate::{Client, Error, Network, Node, Reply, until};

/// Clusters of one test program that run at once; more would slow each other down. A test that starts a second cluster while it
/// has one may wait forever.
const AT_ONCE: usize = 2;
/// Bounds one request for a node's status.
const LOOK: Duration = Duration::from_secs(1);
/// Lines of each log to show after a failed test.
const TAIL: usize = 40;

/// Configures a cluster.
#[derive(Clone, Debug)]
pub struct Builder {
    program: PathBuf,
    nodes: u16,
    joiners: u16,
    first_revision: Option<u64>,
    arguments: Vec<String>,
    network: Option<Network>,
    relayed: bool,
    resp: bool,
    host: Option<String>,
    caller_checks_panics: bool,
}

/// The nodes of one cluster: processes on a loopback address or a network of their own.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    dir: Option<TempDir>,
    /// Whether the caller checks for panics of nodes.
    caller_checks_panics: bool,
    /// The address of the nodes, unless they have a network.
    _loopback: Option<Loopback>,
    _permit: OwnedSemaphorePermit,
}

impl Builder {
    /// The number of nodes, from 1 to 9; 3 by default.
    pub fn nodes(self, nodes: u16) -> Self {
        Self { nodes: nodes.clamp(1, 9), ..self }
    }

    /// The number of additional nodes, with the following ids, which wait to be added once they are [started](Node::start);
    /// 0 by default.
    pub fn joiners(self, joiners: u16) -> Self {
        Self { joiners: joiners.min(9), ..self }
    }

    /// The first revision of the cluster: 1 by default, `None` for the program's default.
    pub fn first_revision(self, revision: Option<u64>) -> Self {
        Self { first_revision: revision, ..self }
    }

    /// Adds an argument of `ringfence serve` for all nodes.
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Puts the nodes on `network`, each in its own namespace, instead of a loopback address.
    pub fn network(self, network: &Network) -> Self {
        Self { network: Some(network.clone()), ..self }
    }

    /// Gives peers the addresses of [relays](Node::advertised), which the caller runs; only on loopback.
    pub fn relayed(self) -> Self {
        Self { relayed: true, ..self }
    }

    /// The nodes speak the Redis protocol, too: see [`Client::resp`].
    pub fn resp(self) -> Self {
        Self { resp: true, ..self }
    }

    /// Gives peers this name, with `{id}` replaced, instead of the address that all nodes have on loopback. The caller sees to
    /// what it means: see [`Lookups`](crate::Lookups).
    pub fn host(self, name: impl Into<String>) -> Self {
        Self { host: Some(name.into()), ..self }
    }

    /// Leaves the check for panics of nodes to the caller.
    pub fn caller_checks_panics(self) -> Self {
        Self { caller_checks_panics: true, ..self }
    }

    /// Starts the cluster and waits until all nodes are ready and agree on a leader.
    pub async fn start(self) -> Result<Cluster, Error> {
        let cluster = self.lay_out().await?;
        cluster.all_ready().await?;
        Ok(cluster)
    }

    /// Creates the directories and addresses without starting a node.
    pub async fn lay_out(self) -> Result<Cluster, Error> {
        static TURN: OnceLock<Arc<Semaphore>> = OnceLock::new();
        let turn = Arc::clone(TURN.get_or_init(|| Arc::new(Semaphore::new(AT_ONCE))));
        let permit = turn.acquire_owned().await.expect("the semaphore is never closed");
        let dir = folder("test")?;
        let loopback = self.network.is_none().then(Loopback::claim).transpose()?;
        let ids = 1..=self.nodes + self.joiners;
        let nodes = ids.map(|id| self.node(id, loopback.as_ref(), dir.path())).collect::<Result<_, _>>()?;
        let caller_checks_panics = self.caller_checks_panics;
        Ok(Cluster { nodes, dir: Some(dir), caller_checks_panics, _loopback: loopback, _permit: permit })
    }

    fn node(&self, id: u16, loopback: Option<&Loopback>, dir: &Path) -> Result<Node, Error> {
        let ip = |id: u16| match (&self.network, loopback) {
            (Some(network), _) => network.ip(id.into()),
            (None, Some(loopback)) => loopback.ip(),
            (None, None) => unreachable!("without a network there is a loopback address"),
        };
        let address = |ports: u16, id: u16| SocketAddr::from((ip(id), ports + id));
        let advertised = |id| address(if self.relayed { RELAY } else { PEER }, id);
        let (http, peer, joins) = (address(HTTP, id), address(PEER, id), id > self.nodes);
        let named = |id: u16| match &self.host {
            Some(host) => format!("{}:{}", host.replace("{id}", &id.to_string()), advertised(id).port()),
            None => advertised(id).to_string(),
        };
        let listed = (1..=self.nodes).filter(|_| !joins).map(|id| (id.into(), named(id))).collect();
        let first = self.first_revision.map(|revision| format!("--first-revision={revision}"));
        let arguments = first.into_iter().chain(self.arguments.iter().cloned()).collect();
        let seat = Seat { number: 0, http, peer, advertised: advertised(id) };
        let log = dir.join(format!("{}.log", seat.name(id.into())));
        Ok(Node {
            id: id.into(),
            seat: Mutex::new(seat),
            listed,
            program: Mutex::new(self.program.clone()),
            arguments,
            resp: self.resp,
            joins,
            dir: dir.to_owned(),
            client: self.network.as_ref().map_or_else(|| Client::new(http), |network| network.client(http)),
            namespace: self.network.as_ref().map(|network| network.node(id.into()).cloned()).transpose()?,
            server: Server::new(format!("node {id}"), log),
        })
    }
}

impl Cluster {
    /// A cluster of the program at `program`.
    pub fn builder(program: impl Into<PathBuf>) -> Builder {
        Builder {
            program: program.into(),
            nodes: 3,
            joiners: 0,
            first_revision: Some(1),
            arguments: Vec::new(),
            network: None,
            relayed: false,
            resp: false,
            host: None,
            caller_checks_panics: false,
        }
    }

    /// Node `id`.
    ///
    /// # Panics
    /// If there is none.
    pub fn node(&self, id: u64) -> &Node {
        self.nodes.iter().find(|node| node.id == id).unwrap_or_else(|| panic!("there is no node {id}"))
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes other than `id`.
    pub fn others(&self, id: u64) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.id != id)
    }

    /// The nodes that have a process that is not stopped.
    pub fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    /// Starts every node that has no process, except those that wait to be added and were never started.
    pub fn start_all(&self) -> Result<(), Error> {
        let is_due = |node: &&Node| node.pid().is_none() && (!node.joins || node.data().exists());
        self.nodes.iter().filter(is_due).try_for_each(Node::start)
    }

    /// The same, and waits until all are ready.
    pub async fn all_ready(&self) -> Result<(), Error> {
        self.start_all()?;
        self.ready().await
    }

    /// Kills every node, as nearly at once as possible.
    pub fn kill_all(&self) -> Result<(), Error> {
        self.nodes.iter().try_for_each(Node::begin_kill)?;
        self.nodes.iter().try_for_each(Node::finish_kill)
    }

    /// Waits until all running nodes are ready and agree on a leader.
    pub async fn ready(&self) -> Result<(), Error> {
        for node in self.running() {
            node.ready().await?;
        }
        self.leader().await.map(drop)
    }

    /// Waits until all running nodes agree that one of them leads, and returns it.
    pub async fn leader(&self) -> Result<&Node, Error> {
        until(WITHIN, "the running nodes agree on a leader", || self.agreed()).await
    }

    async fn agreed(&self) -> Option<&Node> {
        let mut agreed = None;
        for node in self.running() {
            let Ok(Reply::Done { body: view, .. }) = node.client.within(LOOK).cluster().await else {
                return None;
            };
            let leader = (view.leader?, view.term);
            let leads_itself = view.role == Role::Leader;
            if *agreed.get_or_insert(leader) != leader || leads_itself != (leader.0 == node.id) {
                return None;
            }
        }
        let (leader, _) = agreed?;
        self.running().find(|node| node.id == leader)
    }

    /// Waits until every node has applied what any node has applied by now.
    pub async fn caught_up(&self, within: Duration) -> Result<(), Error> {
        let applied = async |node: &Node| match node.client.within(LOOK).cluster().await {
            Ok(Reply::Done { body, .. }) => body.applied_index,
            _ => None,
        };
        let mut goal = None;
        for node in &self.nodes {
            goal = goal.max(applied(node).await);
        }
        for node in &self.nodes {
            let look = async || (applied(node).await >= goal).then_some(());
            until(within, format!("node {} has applied {goal:?}", node.id), look).await?;
        }
        Ok(())
    }

    /// The longest loop lag of a running node in the last 30 s. Near the election timeout, a slow machine may have caused an
    /// election.
    pub async fn longest_lag(&self) -> Duration {
        let mut longest = Duration::ZERO;
        for node in self.running() {
            let Ok(lag) = node.metric("ringfence_loop_lag_longest_seconds").await else {
                return Duration::MAX;
            };
            longest = longest.max(Duration::try_from_secs_f64(lag.unwrap_or_default()).unwrap_or_default());
        }
        longest
    }

    /// Fails if a node ever panicked.
    pub fn check_logs(&self) -> Result<(), Error> {
        match self.nodes.iter().find(|node| node.log().contains("panicked")) {
            Some(node) => Err(Error::Failed(format!("node {} has panicked", node.id))),
            None => Ok(()),
        }
    }

    /// Prints the ends of the logs, and keeps the directory.
    fn show(&mut self) {
        for node in &self.nodes {
            node.server.show(TAIL);
        }
        if let Some(dir) = self.dir.take() {
            eprintln!("---- kept: {} ----", dir.keep().display());
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let killed = self.kill_all();
        let checked = if self.caller_checks_panics { Ok(()) } else { self.check_logs() };
        if std::thread::panicking() {
            self.show();
        } else if let Err(error) = killed.and(checked) {
            self.show();
            panic!("{error}");
        }
    }
}
