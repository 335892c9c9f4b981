//! Headers of responses, and of requests, also to a guarded resource.

/// The leader's URL, if the node knows it.
pub const LEADER_HEADER: &str = "ringfence-leader";
/// The id of the node's cluster.
pub const CLUSTER_HEADER: &str = "ringfence-cluster";
/// Of `GET /livez`: how many milliseconds a thread of the node may hang for. Older nodes ignore it.
pub const WITHIN_HEADER: &str = "ringfence-within-ms";
/// The key, percent-encoded.
pub const KEY_HEADER: &str = "ringfence-key";
/// The token of the grant.
pub const TOKEN_HEADER: &str = "ringfence-token";
/// The fence that the grant or the last renewal gave for the key; by default the token.
pub const FENCE_HEADER: &str = "ringfence-fence";
