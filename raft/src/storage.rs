//! What a node keeps on disk: identity, log and snapshots, and the records they consist of.

pub(crate) mod aside;
pub(crate) mod compaction;
pub(crate) mod identity;
pub(crate) mod log_contents;
pub(crate) mod log_store;
pub(crate) mod record;
pub(crate) mod snapshots;
pub(crate) mod starts;
#[cfg(test)]
mod tests;
