//! The parts of a request: its sender, host, head, path, query and body.

pub(crate) mod body;
pub(crate) mod head;
pub(crate) mod origin;
pub(crate) mod path;
pub(crate) mod query;
pub(crate) mod requester;
pub(crate) mod trace_context;
