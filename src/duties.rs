//! What a node does besides Raft, and only while it leads.

pub(crate) mod mirror;
