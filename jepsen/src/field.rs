//! The environment of a run: node processes, each with a network, a disk and a clock that can fail, and a Redis server.
//!
//! ```text
//!  clients ──HTTP──▶ node ══ wires ══ node        namespaces, or proxies on loopback
//!                     │ │
//!                  clock disk                     libfaketime; tmpfs, or ext4 that loses what was not synced
//! ```
//! The nemeses determine what each node gets. Nothing is left behind: processes, mounts and namespaces end with the field, and
//! with this program, however it ends.

mod finish;
mod options;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use ringfence_harness::{Client, Clocks, Cluster, Disk, LeftBehind, Node, RedisServer, Reply};
use ringfence_wire::Role;

pub use self::options::FieldOptions;
use crate::nemesis::Nemesis;
use crate::wires::{Trouble, Wires};

/// More than any log grows to in a run.
const DISK_BYTES: u64 = 256 << 20;
/// Bounds the time from the end of all faults until all nodes are ready.
const HEALED_WITHIN: Duration = Duration::from_secs(60);
/// Bounds one request for a node's status; and how often to look for a leader.
const LOOK: Duration = Duration::from_millis(500);
const LOOKS: usize = 6;

/// The nodes, and everything around them that can fail.
// Fields are dropped in this order: nodes end before their disks and networks.
#[derive(Debug)]
pub struct Field {
    cluster: Cluster,
    left_behind: Mutex<Vec<LeftBehind>>,
    redis: Option<RedisServer>,
    disks: BTreeMap<u64, Disk>,
    clocks: Option<Clocks>,
    wires: Wires,
    options: FieldOptions,
    /// By node: held by a fault of its process or disk.
    holds: Vec<tokio::sync::Mutex<()>>,
    /// Held by a fault that takes data from nodes.
    taking_data: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
}

/// What faults have done to the nodes, and found.
#[derive(Debug, Default)]
struct Known {
    /// Nodes whose data is gone or unusable.
    lost: BTreeSet<u64>,
    /// What nodes did and must not do.
    findings: Vec<(u64, String)>,
}

impl Field {
    /// Starts everything, and waits until the nodes are ready.
    pub async fn set_up(options: &FieldOptions) -> anyhow::Result<Self> {
        let refused = options.nemeses.iter().map(|nemesis| nemesis.suits(options.redis));
        let refused = refused.chain([Nemesis::suit_each_other(&options.nemeses)]).find_map(Result::err);
        ensure!(refused.is_none(), "{}", refused.unwrap_or_default());
        let has = |nemesis| options.nemeses.contains(&nemesis);
        let nodes = u16::try_from(options.nodes).context("there cannot be so many nodes")?;
        ensure!((1..=9).contains(&nodes), "there can be from 1 to 9 nodes, not {nodes}");

        // It logs every command: after a kill it still has its data.
        let redis = match options.redis {
            true => Some(RedisServer::builder().line("appendonly yes").start().await?),
            false => None,
        };
        let wires = Wires::new(nodes, options.root)?;
        // A node that has moved is not found under a listed address, so then all but the first one join.
        let first = if has(Nemesis::Replace) { 1 } else { nodes };
        let mut builder = Cluster::builder(&options.program)
            .nodes(first)
            .joiners(nodes - first)
            // As in production: new leaders skip revisions.
            .first_revision(None)
            .caller_checks_panics();
        builder = match &wires {
            Wires::Network(network) => builder.network(network),
            Wires::Proxies(_) => builder.relayed(),
        };
        if options.resp {
            builder = builder.resp();
        }
        for argument in &options.arguments {
            builder = builder.argument(argument);
        }
        if let Some(redis) = &redis {
            builder = builder.argument(format!("--redis={}", redis.url()));
        }
        let cluster = builder.lay_out().await?;
        for node in cluster.nodes() {
            wires.connect(node).await?;
        }
        let disk = |node: &Node| match (has(Nemesis::PowerCut), has(Nemesis::FullDisk)) {
            (true, _) => Disk::with_write_cache(node.data(), DISK_BYTES).map(Some),
            (false, true) => Disk::memory(node.data(), DISK_BYTES).map(Some),
            (false, false) => Ok(None),
        };
        let mut disks = BTreeMap::new();
        for node in cluster.nodes() {
            disks.extend(disk(node)?.map(|disk| (node.id(), disk)));
        }
        let clocks = match has(Nemesis::WallClock) || has(Nemesis::MonotonicClock) {
            true => Some(Clocks::new(options.nodes, has(Nemesis::MonotonicClock))?),
            false => None,
        };
        let holds = (0..nodes).map(|_| tokio::sync::Mutex::default()).collect();
        let (options, taking_data, known) = (options.clone(), Default::default(), Mutex::default());
        let left_behind = Mutex::default();
        let field =
            Self { cluster, left_behind, redis, disks, clocks, wires, options, holds, taking_data, known };
        for id in 1..=field.nodes() {
            field.start(id)?;
        }
        for id in u64::from(first) + 1..=field.nodes() {
            field.take_in(id).await?;
        }
        field.cluster.ready().await?;
        Ok(field)
    }

    /// A client of a node with connections of its own, which no network fault affects.
    pub fn client(&self, node: u64) -> Client {
        self.cluster.node(node).client().own_connections()
    }

    /// The number of nodes, whose ids start at 1.
    pub fn nodes(&self) -> u64 {
        self.options.nodes
    }

    /// The nodes.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The Redis server, if there is one.
    pub fn redis(&self) -> Option<&RedisServer> {
        self.redis.as_ref()
    }

    /// The number of packets dropped between nodes so far; without namespaces, how often bytes were delayed.
    pub fn dropped(&self) -> anyhow::Result<u64> {
        self.wires.dropped()
    }

    /// Ends all faults, and waits until all nodes are ready and agree on a leader.
    pub async fn heal(&self) -> anyhow::Result<()> {
        for trouble in [Trouble::Cut, Trouble::Slow, Trouble::HalfOpen] {
            self.wires.ease(trouble)?;
        }
        self.clocks.iter().try_for_each(Clocks::right)?;
        if let Some(redis) = &self.redis {
            // It is stopped, or has no process, or runs.
            let _ = redis.resume();
            if redis.command(["ping"]).await.is_err() {
                redis.restart().await?;
            }
        }
        for node in self.cluster.nodes() {
            if self.options.nemeses.contains(&Nemesis::FullDisk) {
                self.disk(node.id())?.give_room()?;
            }
            self.has_not_ended(node.id())?;
            match node.pid() {
                None if !self.known().lost.contains(&node.id()) => self.start(node.id())?,
                None => {}
                Some(_) => node.resume()?,
            }
        }
        let healed = async {
            let lost: Vec<u64> = self.known().lost.iter().copied().collect();
            for id in lost {
                self.bring_back(id).await?;
            }
            self.cluster.ready().await?;
            anyhow::Ok(())
        };
        match tokio::time::timeout(HEALED_WITHIN, healed).await {
            Ok(healed) => healed.context("the cluster does not heal"),
            Err(_) => bail!("the cluster does not heal within {HEALED_WITHIN:?}"),
        }
    }

    /// The leader with the highest term, as the nodes say.
    pub(crate) async fn leader(&self) -> Option<u64> {
        for _ in 0..LOOKS {
            let looks = self.cluster.running().map(async |node| match self.look(node).await {
                Some((term, true)) => Some((term, node.id())),
                _ => None,
            });
            let leaders = futures_util::future::join_all(looks).await;
            if let Some((_, leader)) = leaders.into_iter().flatten().max() {
                return Some(leader);
            }
            tokio::time::sleep(LOOK).await;
        }
        None
    }

    /// The term of a node, and whether it leads.
    pub(crate) async fn look(&self, node: &Node) -> Option<(u64, bool)> {
        match node.client().within(LOOK).cluster().await {
            Ok(Reply::Done { body, .. }) => Some((body.term, body.role == Role::Leader)),
            _ => None,
        }
    }

    /// Waits until no other fault holds these nodes, and holds them.
    pub(crate) async fn hold(&self, nodes: &[u64]) -> Vec<tokio::sync::MutexGuard<'_, ()>> {
        let mut held = Vec::new();
        // In the same order for all, against deadlocks.
        for (id, hold) in (1..).zip(&self.holds) {
            if nodes.contains(&id) {
                held.push(hold.lock().await);
            }
        }
        held
    }

    /// Waits until no other fault takes data from nodes, and excludes others. Fails if a node still lacks its data: then more
    /// than a minority could lose theirs, and with it acknowledged entries.
    pub(crate) async fn taking_data(&self) -> anyhow::Result<tokio::sync::MutexGuard<'_, ()>> {
        let alone = self.taking_data.lock().await;
        let lost: Vec<u64> = self.known().lost.iter().copied().collect();
        ensure!(lost.is_empty(), "nodes {lost:?} are still without their data");
        Ok(alone)
    }

    /// Starts a node that has no process.
    pub(crate) fn start(&self, id: u64) -> anyhow::Result<()> {
        let node = self.cluster.node(id);
        node.start_with(|command| self.prepare(id, command))?;
        self.clocks.iter().for_each(|clocks| clocks.started(node.pid()));
        Ok(())
    }

    /// Starts these nodes.
    pub(crate) fn start_all(&self, nodes: &[u64]) -> anyhow::Result<()> {
        nodes.iter().try_for_each(|id| self.start(*id))
    }

    /// Starts a node without data, which waits until it is added.
    pub(crate) fn start_anew(&self, id: u64) -> anyhow::Result<()> {
        let node = self.cluster.node(id);
        node.start_anew_with(|command| self.prepare(id, command))?;
        self.clocks.iter().for_each(|clocks| clocks.started(node.pid()));
        Ok(())
    }

    /// Leaves the process of a node running, so that the node can be started without data at another address.
    pub(crate) async fn leave_behind(&self, id: u64) -> anyhow::Result<()> {
        let node = self.cluster.node(id);
        let left = node.leave_behind()?;
        self.left_behind().push(left);
        self.wires.connect(node).await
    }

    /// The processes that nodes have left behind, the latest last.
    pub(crate) fn left_behind(&self) -> MutexGuard<'_, Vec<LeftBehind>> {
        self.left_behind.lock().expect("no panic while it is locked")
    }

    /// The highest term of any node.
    pub(crate) async fn term(&self) -> Option<u64> {
        let looks = self.cluster.running().map(async |node| self.look(node).await.map(|(term, _)| term));
        futures_util::future::join_all(looks).await.into_iter().flatten().max()
    }

    /// Kills a node. It is a finding if it had ended by itself.
    pub(crate) fn kill(&self, id: u64) -> anyhow::Result<()> {
        self.has_not_ended(id)?;
        Ok(self.cluster.node(id).kill()?)
    }

    /// Ends a node with SIGTERM. It is a finding if it had ended by itself, or fails to end in order.
    pub(crate) async fn terminate(&self, id: u64) -> anyhow::Result<()> {
        if self.has_not_ended(id)? {
            let status = self.cluster.node(id).terminate().await?;
            if !status.success() {
                self.found(id, format!("it did not end in order ({status})"));
            }
        }
        Ok(())
    }

    /// Whether a node has not ended by itself, which is a finding.
    fn has_not_ended(&self, id: u64) -> anyhow::Result<bool> {
        let node = self.cluster.node(id);
        let ended = node.take_ended()?;
        if let Some(status) = ended {
            let last = node.log().lines().last().unwrap_or_default().to_owned();
            self.found(id, format!("it ended by itself ({status}): {last}"));
        }
        Ok(ended.is_none())
    }

    fn prepare(&self, id: u64, command: &mut Command) {
        self.clocks.iter().for_each(|clocks| clocks.wind(id, command));
    }

    pub(crate) fn wires(&self) -> &Wires {
        &self.wires
    }

    pub(crate) fn disk(&self, id: u64) -> anyhow::Result<&Disk> {
        self.disks.get(&id).with_context(|| format!("node {id} has no disk of its own"))
    }

    pub(crate) fn clocks(&self) -> anyhow::Result<&Clocks> {
        self.clocks.as_ref().context("the clocks of the nodes are those of this machine")
    }

    pub(crate) fn the_redis(&self) -> anyhow::Result<&RedisServer> {
        self.redis.as_ref().context("there is no Redis")
    }

    /// Records what a node did and must not do.
    pub(crate) fn found(&self, id: u64, finding: String) {
        self.known().findings.push((id, finding));
    }

    /// Records that the data of a node is gone, or about to be.
    pub(crate) fn lose(&self, id: u64) {
        self.known().lost.insert(id);
    }

    pub(crate) fn has_data_again(&self, id: u64) {
        self.known().lost.remove(&id);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no panic while it is locked")
    }
}
