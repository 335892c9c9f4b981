//! What an inspection shows.

use std::collections::BTreeMap;

use ringfence_lease::Request;
use ringfence_wire::Revision;
use serde::Serialize;
use uuid::Uuid;

use crate::consensus::{LogId, Member, NodeId};

/// The owner of the data.
#[derive(Clone, Debug, Serialize)]
pub struct OwnerView {
    /// The node's id.
    pub node_id: NodeId,
    /// Drawn when the directory was created.
    pub incarnation: Uuid,
    /// `None`: it belongs to no cluster yet.
    pub cluster_id: Option<Uuid>,
}

/// Term and index of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Position {
    /// The term of the leader that created it.
    pub term: u64,
    /// Its place in the log, from 0.
    pub index: u64,
}

/// The last vote of a node.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct VoteView {
    /// The term.
    pub term: u64,
    /// The candidate.
    pub voted_for: NodeId,
    /// Whether that node won, as far as this one knows.
    pub committed: bool,
}

/// A log.
#[derive(Clone, Debug, Serialize)]
pub struct LogView {
    /// The owner.
    #[serde(flatten)]
    pub owner: OwnerView,
    /// `None`: it never voted.
    pub vote: Option<VoteView>,
    /// The entries up to here are in a snapshot only.
    pub purged: Option<Position>,
    /// The entries up to here are certainly committed. Later ones may be: this is recorded with the next entry.
    pub committed: Option<Position>,
    /// The entries, oldest first.
    pub entries: Vec<EntryView>,
}

/// An entry of a log.
#[derive(Clone, Debug, Serialize)]
pub struct EntryView {
    /// Its place.
    #[serde(flatten)]
    pub position: Position,
    /// Its contents.
    #[serde(flatten)]
    pub says: Says,
}

/// The contents of an entry.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Says {
    /// A new leader's first entry.
    Blank,
    /// The members of the cluster.
    Membership {
        /// The ids of the voters; two sets during a change.
        voters: Vec<Vec<NodeId>>,
        /// All members.
        members: BTreeMap<NodeId, Member>,
    },
    /// The time, and requests.
    Commands {
        /// The rules that they are decided by.
        rules: u8,
        /// Milliseconds of the cluster's clock.
        at_ms: u64,
        /// In their order.
        requests: Vec<Request>,
    },
}

/// The state after an entry.
#[derive(Clone, Debug, Serialize)]
pub struct StateView {
    /// The owner.
    #[serde(flatten)]
    pub owner: OwnerView,
    /// The entry after which this is the state.
    #[serde(flatten)]
    pub position: Position,
    /// The version of the rules in use.
    pub rules: u8,
    /// Milliseconds of the cluster's clock.
    pub at_ms: u64,
    /// Where the cluster's revisions started.
    pub first_revision: Revision,
    /// Of the last change.
    pub revision: Revision,
    /// Leases that are granted and not ended.
    pub live_leases: usize,
    /// Leases in queues.
    pub waiters: usize,
    /// Ended leases that are still remembered.
    pub remembered: usize,
    /// BLAKE3 of the table's snapshot, in hexadecimal: equal if the tables are.
    pub blake3: String,
}

/// A snapshot on disk.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotView {
    /// The state that it holds.
    #[serde(flatten)]
    pub state: StateView,
    /// The size of the table in it, in bytes.
    pub bytes: u64,
    /// All members, when it was taken.
    pub members: BTreeMap<NodeId, Member>,
}

/// All snapshots of a node.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotsView {
    /// The readable ones, the newest first.
    pub snapshots: Vec<SnapshotView>,
    /// Why the others are not readable.
    pub unusable: Vec<String>,
}

impl Position {
    pub(super) fn of(id: LogId) -> Self {
        Self { term: id.committed_leader_id().term, index: id.index() }
    }
}
