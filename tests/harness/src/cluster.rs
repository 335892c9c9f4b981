use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ringfence_wire::Role;
use tempfile::TempDir;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::loopback::Loopback;
use crate::node::Seat;
use crate::place::Place;
use crate::{Error, Network, Node, Reply, until};

/// Clusters of one program that run at once; more would only make each other slow. A test that starts a second one
/// while it has a first may wait for ever: it makes one with other members instead.
const AT_ONCE: usize = 2;
/// How long nodes may take to agree on a leader.
const LEADER_WITHIN: Duration = Duration::from_secs(60);
/// A look at a node takes no longer.
const LOOK: Duration = Duration::from_secs(1);
/// Lines of each log that are shown after a failed test.
const TAIL: usize = 40;

/// How a cluster is made.
#[derive(Clone, Debug)]
pub struct Builder {
    program: PathBuf,
    nodes: u16,
    joiners: u16,
    first_revision: Option<u64>,
    arguments: Vec<String>,
    network: Option<Network>,
    relayed: bool,
    others_judge: bool,
}

/// The nodes of one cluster, as processes on a loopback address or a network of their own.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    dir: Option<TempDir>,
    /// Whether a panic of a node is for somebody else to find.
    others_judge: bool,
    _place: Place,
    _permit: OwnedSemaphorePermit,
}

impl Builder {
    /// How many nodes, from 1 to 9; 3 if nothing is said.
    pub fn nodes(self, nodes: u16) -> Self {
        Self { nodes: nodes.clamp(1, 9), ..self }
    }

    /// How many more nodes, with the ids that follow, wait to be added once they are [started](Node::start); none if
    /// nothing is said.
    pub fn joiners(self, joiners: u16) -> Self {
        Self { joiners: joiners.min(9), ..self }
    }

    /// What the cluster counts its revisions from; 1 if nothing is said, `None` for what the program does without.
    pub fn first_revision(self, revision: Option<u64>) -> Self {
        Self { first_revision: revision, ..self }
    }

    /// One more argument of `ringfence serve`, for each node.
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Puts the nodes on `network`, each in its own namespace, in place of a loopback address.
    pub fn network(self, network: &Network) -> Self {
        Self { network: Some(network.clone()), ..self }
    }

    /// Tells the nodes that their peers are at their [relays](Node::advertised), which the caller runs; only on loopback.
    pub fn relayed(self) -> Self {
        Self { relayed: true, ..self }
    }

    /// Leaves it to the caller to read the logs: a node that panicked fails nothing.
    pub fn others_judge(self) -> Self {
        Self { others_judge: true, ..self }
    }

    /// Starts the cluster and waits until all nodes are ready and agree on a leader.
    pub async fn start(self) -> Result<Cluster, Error> {
        let cluster = self.lay_out().await?;
        cluster.start_all()?;
        cluster.ready().await?;
        Ok(cluster)
    }

    /// Makes the directories and addresses, and starts nothing.
    pub async fn lay_out(self) -> Result<Cluster, Error> {
        static TURN: OnceLock<Arc<Semaphore>> = OnceLock::new();
        let turn = Arc::clone(TURN.get_or_init(|| Arc::new(Semaphore::new(AT_ONCE))));
        let permit = turn.acquire_owned().await.expect("the semaphore is never closed");
        let dir = tempfile::Builder::new()
            .prefix("ringfence-test-")
            .tempdir()
            .map_err(Error::io("cannot make a directory"))?;
        let place = match &self.network {
            None => Place::Loopback(Loopback::claim()?),
            Some(network) => Place::Network(network.clone()),
        };
        let ids = 1..=self.nodes + self.joiners;
        let nodes = ids.map(|id| self.node(id, &place, dir.path())).collect::<Result<_, _>>()?;
        let others_judge = self.others_judge;
        Ok(Cluster { nodes, dir: Some(dir), others_judge, _place: place, _permit: permit })
    }

    fn node(&self, id: u16, place: &Place, dir: &Path) -> Result<Node, Error> {
        let (http, peer) = (place.http(id), place.peer(id));
        let joins = id > self.nodes;
        let advertised = |id| if self.relayed { place.relay(id) } else { place.peer(id) };
        let listed = (1..=self.nodes).filter(|_| !joins).map(|id| (id.into(), advertised(id))).collect();
        let first = self.first_revision.map(|revision| format!("--first-revision={revision}"));
        let arguments = first.into_iter().chain(self.arguments.iter().cloned()).collect();
        Ok(Node {
            id: id.into(),
            seat: Mutex::new(Seat { number: 0, http, peer, advertised: advertised(id) }),
            listed,
            program: self.program.clone(),
            arguments,
            joins,
            dir: dir.to_owned(),
            client: place.client(id),
            namespace: place.namespace(id)?,
            process: Default::default(),
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
            others_judge: false,
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

    /// Kills every node, as nearly at once as can be.
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

    /// Waits until all running nodes agree that one of them leads, and gives it.
    pub async fn leader(&self) -> Result<&Node, Error> {
        until(LEADER_WITHIN, "the running nodes agree on a leader", || self.agreed()).await
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

    /// Waits until every node has applied what one of them has by now.
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

    /// How long the event loop of a running node was held up at most in the last 30 s. Where that comes near the time of an
    /// election, it is the machine that may have deposed a leader.
    pub async fn longest_lag(&self) -> Duration {
        let mut longest = Duration::ZERO;
        for node in self.running() {
            let Ok(Reply::Done { body, .. }) = node.client.metrics().await else { return Duration::MAX };
            let lag = body.lines().find_map(|line| line.strip_prefix("ringfence_loop_lag_longest_seconds "));
            let lag = lag.and_then(|lag| Duration::try_from_secs_f64(lag.parse().ok()?).ok());
            longest = longest.max(lag.unwrap_or_default());
        }
        longest
    }

    /// Fails if a node ever panicked.
    pub fn check_logs(&self) -> Result<(), Error> {
        match self.nodes.iter().find(|node| node.log().contains("panicked")) {
            Some(node) => Err(Error::State { id: node.id, why: "has panicked" }),
            None => Ok(()),
        }
    }

    /// Keeps the directory, and shows where it is and how the logs end.
    fn show(&mut self) {
        for node in &self.nodes {
            eprintln!("---- the end of the log of node {} ----\n{}", node.id, node.log_tail(TAIL));
        }
        if let Some(dir) = self.dir.take() {
            eprintln!("---- kept: {} ----", dir.keep().display());
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let killed = self.kill_all();
        let checked = if self.others_judge { Ok(()) } else { self.check_logs() };
        if std::thread::panicking() {
            self.show();
        } else if let Err(error) = killed.and(checked) {
            self.show();
            panic!("{error}");
        }
    }
}
