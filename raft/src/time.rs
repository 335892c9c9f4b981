//! Cluster time: the leader's clock, the term that it leads, and what a new cluster and a new leader take from the wall clock.

pub(crate) mod clock;
pub(crate) mod elapsed;
pub(crate) mod leading;
pub(crate) mod start;
pub(crate) mod wall;
