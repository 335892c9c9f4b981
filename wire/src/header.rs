//! Headers of responses.

/// The leader's URL, if the node knows it.
pub const LEADER_HEADER: &str = "ringfence-leader";
/// The id of the node's cluster.
pub const CLUSTER_HEADER: &str = "ringfence-cluster";
