//! Commands become log entries.

pub(crate) mod asker;
pub(crate) mod batch;
pub(crate) mod proposal;
pub(crate) mod proposer;
mod queue;
