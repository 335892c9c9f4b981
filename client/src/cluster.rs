//! The cluster, as its operator sees it.

use std::collections::BTreeMap;

use ringfence_wire::Revision;
use serde::{Deserialize, Serialize};

/// How a node sees itself and the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster's id.
    pub cluster_id: String,
    /// The node that answered.
    pub node_id: u64,
    /// What it is: `leader`, `follower`, `candidate` or `learner`.
    pub role: String,
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
    /// How its Redis mirror does; `None` where it keeps none.
    #[serde(default)]
    pub mirror: Option<serde_json::Value>,
    /// The version of its program.
    pub version: String,
}

/// A member, as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Whether it counts for quorums, or only learns.
    pub voter: bool,
    /// Where its peers reach it.
    pub peer: String,
    /// Its HTTP URL, where the node that answered knows it.
    pub url: Option<String>,
    /// How many entries it lacks, as the leader sees it; `None` where another node answered.
    pub lag_entries: Option<u64>,
}
