//! How a node sees itself and the cluster.

use std::collections::BTreeMap;

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use serde::Serialize;
use uuid::Uuid;

use crate::consensus::NodeId;
use crate::handle::Shared;

/// What `GET /v1/cluster` tells.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The cluster's id, made when it was.
    pub cluster_id: Uuid,
    /// The answering node.
    pub node_id: NodeId,
    /// What the answering node is: `leader`, `follower`, `candidate` or `learner`.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<NodeId>,
    /// The index of its last log entry.
    pub last_log_index: Option<u64>,
    /// Up to where it knows the log to be committed.
    pub committed_index: Option<u64>,
    /// Up to where it has applied the log.
    pub applied_index: Option<u64>,
    /// The revision of its table.
    pub revision: u64,
    /// The cluster time of its table, in milliseconds.
    pub at_ms: u64,
    /// Its live leases.
    pub live_leases: usize,
    /// Its waiting leases.
    pub waiters: usize,
    /// The members, by id.
    pub members: BTreeMap<NodeId, MemberStatus>,
    /// The version of the answering program.
    pub version: &'static str,
}

/// A member of the cluster.
#[derive(Clone, Debug, Serialize)]
pub struct MemberStatus {
    /// Whether it counts for quorums, or only learns.
    pub voter: bool,
    /// Where its peers reach it.
    pub peer: String,
    /// The URL of its HTTP listener, where it has told it to the answering node.
    pub url: Option<String>,
    /// As the leader sees it: how many entries it lacks. `None` where the answering node does not lead.
    pub lag_entries: Option<u64>,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It leads.
    Leader,
    /// It follows a leader, or waits for one.
    Follower,
    /// It wants to lead.
    Candidate,
    /// It receives the log but does not vote.
    Learner,
    /// It has stopped.
    Stopped,
}

impl Status {
    pub(crate) fn of(shared: &Shared) -> Self {
        // It looks at the same metrics: they must not be looked at twice at a time while another thread changes them.
        let leader = shared.leader();
        let metrics = shared.raft.metrics();
        let metrics = metrics.borrow_watched();
        let applied = shared.applied.lock();
        let membership = metrics.membership_config.membership();
        let voters: Vec<NodeId> = membership.voter_ids().collect();
        let lag = |id: &NodeId| {
            let last = metrics.last_log_index?;
            let matched = metrics.replication.as_ref()?.get(id)?;
            Some(last.saturating_sub(matched.as_ref().map_or(0, |id| id.index())))
        };
        let members = membership.nodes().map(|(id, member)| {
            let status = MemberStatus {
                voter: voters.contains(id),
                peer: member.peer.clone(),
                url: shared.peers.url(*id),
                lag_entries: lag(id),
            };
            (*id, status)
        });
        Self {
            cluster_id: shared.peers.cluster_id(),
            node_id: shared.id,
            role: match metrics.state {
                ServerState::Leader => Role::Leader,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Learner => Role::Learner,
                ServerState::Shutdown => Role::Stopped,
            },
            term: metrics.current_term,
            leader,
            last_log_index: metrics.last_log_index,
            committed_index: metrics.local_committed.map(|id| id.index()),
            applied_index: applied.last_applied.map(|id| id.index()),
            revision: applied.table.revision().0,
            at_ms: applied.table.at_ms(),
            live_leases: applied.table.live(),
            waiters: applied.table.waiters(),
            members: members.collect(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}
