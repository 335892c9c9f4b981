//! What is read of a request: who sends it, to which host, and what its head, path, query and body say.

pub(crate) mod asker;
pub(crate) mod body;
pub(crate) mod head;
pub(crate) mod origin;
pub(crate) mod path;
pub(crate) mod query;
pub(crate) mod trace_context;
