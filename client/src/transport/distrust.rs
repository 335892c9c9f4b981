//! Failures, and those that no further attempt mends.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use super::http::Failure;
use super::node::Node;
use super::nodes::Nodes;

/// The nodes with which a call shook hands in vain, as one side did not trust the other. `None` once an attempt has ended otherwise.
#[derive(Debug)]
pub(crate) struct Distrust(Option<Vec<Arc<Node>>>);

impl Distrust {
    pub(crate) fn new() -> Self {
        Self(Some(Vec::new()))
    }

    /// Notes how an attempt at `node` has ended.
    pub(crate) fn note<T>(&mut self, node: &Arc<Node>, result: &Result<T, Failure>) {
        match (result, &mut self.0) {
            (Err(Failure::Untrusted(..)), Some(nodes)) => nodes.push(Arc::clone(node)),
            (Err(Failure::Untrusted(..)), None) => {}
            _ => self.0 = None,
        }
    }

    /// Whether each of the configured `nodes` was asked in vain, and nothing else has happened.
    pub(crate) fn is_of_all(&self, nodes: &Nodes) -> bool {
        let Some(distrusted) = &self.0 else { return false };
        let is_among = |node: &Arc<Node>| distrusted.iter().any(|other| other.server.is_same(&node.server));
        nodes.configured().iter().all(is_among)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (Self::NotSent(why) | Self::Untrusted(_, why) | Self::Broken(why)) = self;
        f.write_str(why)
    }
}
