//! What a node keeps on disk: its identity, the log, snapshots, and the records that they are made of.

pub(crate) mod compaction;
pub(crate) mod identity;
pub(crate) mod log_contents;
pub(crate) mod log_store;
pub(crate) mod record;
pub(crate) mod snapshots;
#[cfg(test)]
mod tests;
