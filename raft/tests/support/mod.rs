//! Nodes in one process, and what comes between them.

// Each test program uses its part of this. Helpers of tests may unwrap as tests do.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod proxy;
pub mod stranger;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ringfence_lease::{Acquire, Attachment, Command, Outcome};
use ringfence_raft::{Handle, Node, NodeId, Settings};
use ringfence_wire::{Key, LeaseId, Metadata, Mode, Revision, Token, Ttl, Wait};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::sleep;

/// What a cluster here counts from.
pub const FIRST: u64 = 1_000;
/// Far more than anything here takes that goes well.
pub const SOON: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Where each node finds the others.
pub type View = BTreeMap<NodeId, String>;

/// Nodes with their data directories.
pub struct Cluster {
    pub dir: TempDir,
    pub nodes: BTreeMap<NodeId, Node>,
    /// Where each one really is.
    pub addresses: View,
}

impl Cluster {
    /// Founds a cluster of the nodes 1 to `size`.
    pub async fn start(size: NodeId) -> Self {
        let mut listeners = BTreeMap::new();
        for id in 1..=size {
            listeners.insert(id, bind().await);
        }
        let addresses: View = listeners.iter().map(|(id, (_, address))| (*id, address.clone())).collect();
        let views = listeners.keys().map(|id| (*id, addresses.clone())).collect();
        Self::found(listeners, &views).await
    }

    /// Founds a cluster of these nodes, of which each sees the others as its view says.
    pub async fn found(
        listeners: BTreeMap<NodeId, (TcpListener, String)>,
        views: &BTreeMap<NodeId, View>,
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let addresses = listeners.iter().map(|(id, (_, address))| (*id, address.clone())).collect();
        let starts = listeners.into_iter().map(|(id, (listener, _))| {
            let settings = settings(id, dir.path().join(id.to_string()), listener, views[&id].clone());
            async move { (id, Node::start(settings).await.unwrap()) }
        });
        let nodes: BTreeMap<NodeId, Node> = join_all(starts).await.into_iter().collect();
        let cluster = Self { dir, nodes, addresses };
        let first = cluster.handle(1);
        until("the cluster has started", || first.view(|table| table.started())).await;
        cluster
    }

    pub fn handle(&self, id: NodeId) -> Handle {
        self.nodes[&id].handle()
    }

    /// Starts a node again that was stopped.
    pub async fn restart(&mut self, id: NodeId) {
        let listener = loop {
            match TcpListener::bind(&self.addresses[&id]).await {
                Ok(listener) => break listener,
                Err(_) => sleep(LOOK).await,
            }
        };
        let data = self.dir.path().join(id.to_string());
        let node = Node::start(settings(id, data, listener, self.addresses.clone())).await.unwrap();
        self.nodes.insert(id, node);
    }
}

pub async fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

pub fn settings(id: NodeId, data: PathBuf, peer_listener: TcpListener, peers: View) -> Settings {
    Settings {
        id,
        data,
        peer_listener,
        peers,
        join: false,
        url: format!("http://node-{id}"),
        snapshot_after_bytes: ringfence_raft::SNAPSHOT_AFTER_BYTES,
        first_revision: Some(Revision(FIRST)),
        elders: None,
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
