//! The types that openraft is given. They stay inside this crate.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use openraft::alias::{CommittedLeaderIdOf, EntryOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf};
use openraft::impls::{BoxedErrorSource, InlineBatch, leader_id_std};
use openraft::raft::responder::Responder;
use openraft::{OptionalSend, RaftTypeConfig};
use ringfence_lease::Outcome;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::storage::snapshots::generation::Generation;

/// A node's number, chosen by the operator; from 1.
pub type NodeId = u64;

/// What the membership records of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// `host:port` of its peer listener.
    pub peer: String,
    /// The random number made with its data directory: a directory made anew is another member.
    pub incarnation: Uuid,
}

/// openraft's type configuration.
///
/// Leader ids are of the standard kind: one leader per term, so that a term alone names a leadership.
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
    type AsyncRuntime = openraft::TokioRuntime;
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
pub(crate) type Snapshot = openraft::alias::SnapshotOf<Consensus, Arc<Generation>>;

/// The id of the entry at `index` of the leader of `term`.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderIdOf::<Consensus>::new(term), index)
}

/// An encoded [`Batch`](crate::propose::batch::Batch). Log, peers and apply share the same bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EncodedBatch(pub(crate) Bytes);

impl EncodedBatch {
    /// The same bytes in memory of just their size. What was encoded lately has room to spare, and what came from a peer
    /// keeps the whole buffer that it was received in.
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

/// Runs a function with the outcome of a write, where openraft learns it. Dropped without being run when openraft
/// stops: what the function owns tells its waiters so.
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
