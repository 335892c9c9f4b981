//! The replicated table, and who is notified when an entry changes it.

pub(crate) mod audit;
pub(crate) mod changes;
pub(crate) mod history;
pub(crate) mod lease_wait;
pub(crate) mod state_machine;
pub(crate) mod table;
pub(crate) mod waits;
pub(crate) mod witness;
