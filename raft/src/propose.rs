//! Commands become log entries.

pub(crate) mod batch;
pub(crate) mod proposer;
