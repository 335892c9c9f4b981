//! Cluster time: the leader's clock, the term that it leads, and the first revision of a cluster.

pub(crate) mod clock;
pub(crate) mod elapsed;
pub(crate) mod leading;
pub(crate) mod start;
