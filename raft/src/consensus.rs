//! openraft's types and configuration. They stay inside this crate.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use openraft::alias::{CommittedLeaderIdOf, EntryOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf};
use openraft::impls::{BoxedErrorSource, InlineBatch, leader_id_std};
use openraft::raft::responder::Responder;
use openraft::{Config, ConfigError, OptionalSend, RaftTypeConfig, SnapshotPolicy};
use ringfence_lease::Outcome;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::random::Runtime;

const HEARTBEAT_MS: u64 = 100;
/// How long a follower that hears nothing waits before it campaigns, in milliseconds. openraft stops sending heartbeats to a quorum
/// that it has not heard for the upper bound, which is to be more than two round trips of 500 ms and a heartbeat.
pub(crate) const ELECTION_MS: Range<u64> = 500..1_150;

/// A node's number, chosen by the operator; from 1.
pub type NodeId = u64;

/// What the membership records of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// `host:port` of its peer listener.
    pub peer: String,
    /// The random id of its data directory: a directory made anew is another member.
    pub incarnation: Uuid,
}

/// openraft's type configuration.
///
/// Leader ids are standard ones: one leader per term, so a term alone identifies a leadership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Consensus;

impl RaftTypeConfig for Consensus {
    type D = EncodedBatch;
    type R = Vec<Outcome>;
    type NodeId = NodeId;
    type Node = Member;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, NodeId>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<EncodedBatch, NodeId, Member>;
    type Entry = openraft::Entry<CommittedLeaderIdOf<Self>, Self::Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = Completion<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = BoxedErrorSource;
}

pub(crate) type Entry = EntryOf<Consensus>;
pub(crate) type LogId = LogIdOf<Consensus>;
pub(crate) type Vote = VoteOf<Consensus>;
pub(crate) type Membership = openraft::Membership<NodeId, Member>;
pub(crate) type StoredMembership = StoredMembershipOf<Consensus>;
pub(crate) type SnapshotMeta = SnapshotMetaOf<Consensus>;

/// Whether no node is a member, as before a cluster is founded.
pub(crate) fn is_empty(membership: &StoredMembership) -> bool {
    membership.nodes().next().is_none()
}

/// The term and index at which a membership stands.
pub(crate) fn as_of(membership: &StoredMembership) -> Option<(u64, u64)> {
    membership.log_id().map(|log_id| (log_id.leader_id.term, log_id.index))
}

/// openraft's configuration in this cluster.
pub(crate) fn config(cluster: Uuid) -> Result<Config, ConfigError> {
    let config = Config {
        cluster_name: cluster.to_string(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS.start,
        election_timeout_max: ELECTION_MS.end,
        enable_pre_vote: Some(true),
        // A restarted leader must win an election before it leads again.
        enable_leader_restore: Some(false),
        // A leader that has lost its quorum alternates: it sends no heartbeats for so long, and then does. A node that hears
        // it does not vote for others, who may have a quorum only with this node.
        quorum_loss_probe_interval: Some(2 * ELECTION_MS.end),
        allow_log_reversion: Some(false),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        ..Config::default()
    };
    config.validate()
}

/// The id of the entry at `index` of the leader of `term`.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderIdOf::<Consensus>::new(term), index)
}

/// An encoded [`Batch`](crate::propose::batch::Batch). Log, peers and apply share the same bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EncodedBatch(pub(crate) Bytes);

impl EncodedBatch {
    /// The same bytes in an allocation of just their size. What was encoded lately has spare capacity, and what came from a
    /// peer keeps its whole receive buffer alive.
    pub(crate) fn packed(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl fmt::Debug for EncodedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for EncodedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch of {} bytes", self.0.len())
    }
}

/// Runs a function with the outcome of a write. When openraft stops, it is dropped without being run: what the function owns
/// notifies its waiters then.
pub(crate) struct Completion<T>(pub(crate) Box<dyn FnOnce(T) + Send>);

impl<T: OptionalSend + 'static> Responder<Consensus, T> for Completion<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_keeps_no_buffer() {
        let buffer = Bytes::from(vec![7; 1_000]);
        let received = EncodedBatch(buffer.slice(100..110));
        let packed = received.packed();
        assert!(packed == received);
        drop(received);
        assert!(buffer.is_unique());
    }
}
