//! Headers of responses, and of requests to a guarded resource.

/// The leader's URL, if the node knows it.
pub const LEADER_HEADER: &str = "ringfence-leader";
/// The id of the node's cluster.
pub const CLUSTER_HEADER: &str = "ringfence-cluster";
/// The key, percent-encoded.
pub const KEY_HEADER: &str = "ringfence-key";
/// The token of the grant.
pub const TOKEN_HEADER: &str = "ringfence-token";
/// The fence that the grant or the last renewal gave for the key; by default the token.
pub const FENCE_HEADER: &str = "ringfence-fence";
