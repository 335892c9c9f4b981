//! Talking to the other nodes: framed binary messages over TCP connections that stay open.
//!
//! ```text
//!  openraft ──▶ network ──▶ append, call ──▶ link ──▶ │ TCP │ ──▶ incoming ──▶ server ──▶ openraft, handle
//!  handle, reads ──▶ forward ──────┘          (hello)            (hello)
//! ```
//! Appends, heartbeats, votes, forwards and snapshots each have connections of their own ([`hello::Channel`]), so that
//! a large message of one never holds up another. What the two sides check stands in [`hello`]; a connection that would
//! not pass any more is closed.

mod append;
mod call;
mod forward;
mod frame;
mod hello;
mod incoming;
mod link;
mod message;
mod network;
mod server;
mod snapshot;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use tokio::runtime::Handle;
use uuid::Uuid;

pub(crate) use self::call::CallError;
pub(crate) use self::forward::ForwardError;
use self::hello::Channel;
pub(crate) use self::message::{Answer, Call, Probed};
pub(crate) use self::network::Network;
pub(crate) use self::server::{Listener, Served};

use self::call::CallLink;
use crate::applied::state_machine::Raft;
use crate::consensus::{Consensus, Member, NodeId, StoredMembership};
use crate::storage::identity::Identity;

/// What this node knows of itself and of the others, and its connections to them.
pub(crate) struct Peers {
    pub(crate) identity: Identity,
    /// This node's HTTP URL, told to the others.
    own_url: String,
    /// Where the operator says that the others are; goes before what the membership says.
    addresses: BTreeMap<NodeId, String>,
    cluster: OnceLock<Uuid>,
    /// Absent until this node belongs to a cluster.
    raft_metrics: OnceLock<WatchReceiverOf<Consensus, RaftServerMetrics<Consensus>>>,
    known: Mutex<HashMap<NodeId, Known>>,
    links: Mutex<Links>,
    /// Of the node: calls may come from others, and their connections have to outlive them.
    runtime: Handle,
}

/// By node, and by its incarnation; `None`: the membership does not name it.
type Links = HashMap<(NodeId, Option<Uuid>, Channel), CallLink>;

/// The memberships that are known here.
struct Memberships {
    /// The newest, committed or not.
    effective: Arc<StoredMembership>,
    /// The newest that no leader can undo.
    committed: Arc<StoredMembership>,
}

#[derive(Default)]
struct Known {
    /// Where an operator says that a node is that is to become a member.
    address: Option<String>,
    url: Option<String>,
    /// Whether the last attempt to reach it failed: the log tells changes only.
    failing: bool,
    /// Why it was refused last, until it is welcome.
    refused: Option<String>,
}

impl Peers {
    /// To be called in the runtime of the node.
    pub(crate) fn new(identity: Identity, own_url: String, addresses: BTreeMap<NodeId, String>) -> Self {
        let cluster = OnceLock::new();
        if let Some(id) = identity.cluster {
            cluster.get_or_init(|| id);
        }
        Self {
            identity,
            own_url,
            addresses,
            cluster,
            raft_metrics: OnceLock::new(),
            known: Mutex::default(),
            links: Mutex::default(),
            runtime: Handle::current(),
        }
    }

    /// The cluster's id; nil before there is one.
    pub(crate) fn cluster_id(&self) -> Uuid {
        self.cluster.get().copied().unwrap_or_default()
    }

    /// From now on this node belongs to `cluster`.
    pub(crate) fn join(&self, cluster: Uuid) {
        self.cluster.get_or_init(|| cluster);
    }

    /// From now on the membership is what `raft` says.
    pub(crate) fn attach(self: &Arc<Self>, raft: &Raft) {
        let mut changes = raft.server_metrics();
        self.raft_metrics.get_or_init(|| changes.clone());
        let peers = Arc::downgrade(self);
        tokio::spawn(async move {
            while changes.changed().await.is_ok()
                && let Some(peers) = peers.upgrade()
            {
                peers.close_links_of_others();
            }
        });
    }

    /// Closes the links that were made to another than the membership names.
    fn close_links_of_others(&self) {
        let Some(known) = self.memberships() else { return };
        self.links().retain(|(id, incarnation, _), _| {
            known.effective.get_node(id).map(|member| member.incarnation) == *incarnation
        });
    }

    fn memberships(&self) -> Option<Memberships> {
        let metrics = self.raft_metrics.get()?.borrow_watched();
        Some(Memberships {
            effective: Arc::clone(&metrics.membership_config),
            committed: Arc::clone(&metrics.committed_membership_config),
        })
    }

    /// What the newest membership records of `id`.
    fn member(&self, id: NodeId) -> Option<Member> {
        self.memberships()?.effective.get_node(&id).cloned()
    }

    /// Since when it stands, if this node is in it as it is now.
    fn member_as_of(&self) -> Option<(u64, u64)> {
        let known = self.memberships()?.effective;
        let own = known.get_node(&self.identity.node_id)?;
        if own.incarnation == self.identity.incarnation { as_of(&known) } else { None }
    }

    fn address(&self, id: NodeId) -> Option<String> {
        let listed = self.addresses.get(&id).cloned();
        let recorded = || self.member(id).map(|member| member.peer);
        listed.or_else(recorded).or_else(|| self.known().get(&id)?.address.clone())
    }

    /// Where the operator says that `id` is.
    pub(crate) fn listed(&self, id: NodeId) -> String {
        self.addresses.get(&id).cloned().unwrap_or_default()
    }

    /// From now on `id`, which is to become a member, is looked for at `address`; an error where that contradicts what the
    /// operator of this node says.
    pub(crate) fn introduce(&self, id: NodeId, address: &str) -> Result<(), String> {
        if let Some(listed) = self.addresses.get(&id).filter(|listed| *listed != address) {
            let own = self.identity.node_id;
            return Err(format!("--peers of node {own}, which leads, lists node {id} at {listed}"));
        }
        // What is connected now may be elsewhere.
        self.links().retain(|(to, incarnation, _), _| *to != id || incarnation.is_some());
        self.known().entry(id).or_default().address = Some(address.to_owned());
        Ok(())
    }

    /// The HTTP URL of a node, once it is known.
    pub(crate) fn url(&self, id: NodeId) -> Option<String> {
        if id == self.identity.node_id {
            return Some(self.own_url.clone());
        }
        self.known().get(&id)?.url.clone()
    }

    fn learn_url(&self, id: NodeId, url: &str) {
        self.known().entry(id).or_default().url = Some(url.to_owned());
    }

    /// Its call is taken.
    fn note_welcome(&self, id: NodeId) {
        self.known().entry(id).or_default().refused = None;
    }

    /// Logs that `id` cannot be reached, or can be again, once.
    fn note_reachable(&self, id: NodeId, result: Result<(), &io::Error>) {
        let mut known = self.known();
        let known = known.entry(id).or_default();
        match result {
            Ok(()) if known.failing => tracing::info!(peer = id, "peer is reached again"),
            Err(error) if !known.failing => tracing::warn!(peer = id, %error, "peer cannot be reached"),
            _ => {}
        }
        known.failing = result.is_err();
    }

    /// The error that `id` is refused with, of a kind of its own where it has been refused for that before: the log tells
    /// changes only.
    fn note_refused(&self, id: NodeId, error: io::Error) -> io::Error {
        let mut known = self.known();
        let Some(known) = known.get_mut(&id) else { return error };
        let reason = error.to_string();
        let again = known.refused.as_ref() == Some(&reason);
        known.refused = Some(reason.clone());
        if again { io::Error::new(io::ErrorKind::AlreadyExists, reason) } else { error }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().expect("no panic while the links are locked")
    }

    fn known(&self) -> MutexGuard<'_, HashMap<NodeId, Known>> {
        self.known.lock().expect("no panic while the peers are locked")
    }
}

/// The term and index at which a membership stands.
fn as_of(membership: &StoredMembership) -> Option<(u64, u64)> {
    membership.log_id().map(|log_id| (log_id.leader_id.term, log_id.index))
}
