//! Nodes in one process, connected by a network in memory.

pub mod network;
mod snapshots;
pub mod stranger;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_disk::MemoryDisk;
use ringfence_lease::{Acquire, Attachment, Command, Outcome};
use ringfence_raft::{Handle, Node, NodeId, Quartz, Random, Settings, Storage, System, Transport, WallClock};
use ringfence_wire::{Key, LeaseId, Metadata, Mode, Revision, Token, Ttl, Wait};
use tempfile::TempDir;
use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep};

use self::network::Network;
pub(crate) use self::snapshots::Stored;

/// Where the revisions of a cluster here start.
pub const FIRST: u64 = (1 << 40) + 1;
/// Far more than anything here takes that goes well.
pub const SOON: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How far the clock of a simulation advances at once.
const STEP: Duration = Duration::from_millis(5);

/// Nodes with their data directories.
pub struct Cluster {
    pub dir: TempDir,
    pub nodes: BTreeMap<NodeId, Node>,
    pub network: Network,
}

impl Cluster {
    /// Founds a cluster of the nodes 1 to `size`.
    pub async fn start(size: NodeId) -> Self {
        Self::found(size, Network::new(Duration::ZERO), |_| (Arc::new(System), Random::system())).await
    }

    /// Founds a cluster on this network; each node gets what `provide` returns. It has a leader, and numbers its changes.
    pub async fn found(
        size: NodeId,
        network: Network,
        provide: impl Fn(NodeId) -> (Arc<dyn Storage>, Random),
    ) -> Self {
        let cluster = Self::start_nodes(size, network, provide).await;
        let first = cluster.handle(1);
        until("the cluster has started", || first.view(|table| table.started())).await;
        cluster
    }

    /// Starts nodes that found a cluster. It may not have a leader yet.
    pub async fn start_nodes(
        size: NodeId,
        network: Network,
        provide: impl Fn(NodeId) -> (Arc<dyn Storage>, Random),
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let starts = (1..=size).map(|id| {
            let settings = settings(id, dir.path().join(id.to_string()), network.port(&address(id)), size);
            let (storage, random) = provide(id);
            async move { (id, Node::start(Settings { storage, random, ..settings }).await.unwrap()) }
        });
        let nodes: BTreeMap<NodeId, Node> = join_all(starts).await.into_iter().collect();
        Self { dir, nodes, network }
    }

    pub fn handle(&self, id: NodeId) -> Handle {
        self.nodes[&id].handle()
    }

    /// Starts a node of three again that was stopped.
    pub async fn restart(&mut self, id: NodeId) {
        let data = self.dir.path().join(id.to_string());
        let node = Node::start(settings(id, data, self.network.port(&address(id)), 3)).await.unwrap();
        self.nodes.insert(id, node);
    }
}

pub fn address(id: NodeId) -> String {
    format!("node-{id}")
}

/// Of the node `id` in a cluster of the nodes 1 to `size`.
pub fn settings(id: NodeId, data: PathBuf, transport: Arc<dyn Transport>, size: NodeId) -> Settings {
    Settings {
        id,
        data,
        transport,
        peers: (1..=size).map(|id| (id, address(id))).collect(),
        join: false,
        url: format!("http://node-{id}"),
        snapshot_after_bytes: ringfence_raft::SNAPSHOT_AFTER_BYTES,
        max_lease_bytes: ringfence_raft::MAX_LEASE_BYTES,
        first_revision: Some(Revision(FIRST)),
        wall_clock: WallClock::simulated(|| 0),
        elders: None,
        random: Random::system(),
        quartz: Quartz::none(),
        rules: ringfence_lease::SUPPORTED,
        since: ringfence_lease::Command::since,
        storage: Arc::new(System),
    }
}

pub fn acquire(lease: u128, key: &str, wait_ms: u32) -> Command {
    Command::Acquire(Box::new(Acquire {
        lease_id: id(lease),
        claims: vec![(Key::new(key).unwrap(), Mode::Exclusive)],
        ttl: Ttl::from_ms(60_000).unwrap(),
        wait: Wait::from_ms(wait_ms).unwrap(),
        keep_place: false,
        holder: None,
        metadata: Metadata::default(),
        attachment: Attachment(1),
    }))
}

pub fn id(lease: u128) -> LeaseId {
    LeaseId::from_u128(lease).unwrap()
}

pub async fn one(handle: &Handle, command: Command) -> Outcome {
    handle.propose(vec![command]).await.unwrap().remove(0)
}

/// Acquires `key`, which must be free.
pub async fn grant(handle: &Handle, lease: u128, key: &str) -> Token {
    match one(handle, acquire(lease, key, 0)).await {
        Outcome::Granted(grant) => grant.token,
        other => panic!("{other:?}"),
    }
}

/// Waits until `holds`.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "not in time: {what}");
        sleep(LOOK).await;
    }
}

/// Makes `to` the leader, as `handle` sees it.
pub async fn lead(handle: &Handle, to: NodeId) {
    let begun = Instant::now();
    while handle.status().leader != Some(to) {
        assert!(begun.elapsed() < SOON, "node {to} does not lead");
        // It may be refused while an election is under way.
        let _ = handle.transfer_leadership(Some(to)).await;
        sleep(LOOK).await;
    }
}

/// Advances the paused clock until `test` is done. Each disk flushes once before each step.
pub async fn simulate<T>(disks: &[MemoryDisk], test: impl Future<Output = T>) -> T {
    let flush = || {
        for disk in disks {
            disk.flush();
        }
    };
    simulate_with(flush, test).await
}

/// Advances the paused clock until `test` is done, and does `what` before each step.
pub async fn simulate_with<T>(mut what: impl FnMut(), test: impl Future<Output = T>) -> T {
    let mut test = pin!(test);
    loop {
        // Enough turns for all tasks to do what they can without waiting.
        for _ in 0..20 {
            tokio::select! {
                biased;
                done = &mut test => return done,
                () = yield_now() => {}
            }
        }
        what();
        advance(STEP).await;
    }
}
