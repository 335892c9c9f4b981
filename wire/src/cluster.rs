use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Revision;

/// How a node sees itself and the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster's id, made when it was.
    pub cluster_id: Uuid,
    /// The answering node.
    pub node_id: u64,
    /// What the answering node is.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<u64>,
    /// The index of its last log entry.
    pub last_log_index: Option<u64>,
    /// Up to where it knows the log to be committed.
    pub committed_index: Option<u64>,
    /// Up to where it has applied the log.
    pub applied_index: Option<u64>,
    /// The revision of its table.
    pub revision: Revision,
    /// The cluster time of its table, in milliseconds.
    pub at_ms: u64,
    /// Its live leases.
    pub live_leases: u64,
    /// Its waiting leases.
    pub waiters: u64,
    /// The members, by id.
    pub members: BTreeMap<u64, MemberStatus>,
    /// How its mirror in Redis does, in the mirror's own words; `None` where it keeps none.
    pub mirror: Option<Value>,
    /// The version of its program.
    pub version: String,
}

/// A member of the cluster, as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
