//! Failures, and those that no further attempt mends.
//!
//! What is at a URL may be several nodes: at the addresses of a name, or all behind one, as of a gateway or of a Service of Kubernetes.
//! One of them with a wrong certificate says nothing of the others. So each URL is tried as many times as it has addresses, and at least
//! twice. The address that failed last comes last at the next attempt, and one that cannot be connected to is skipped. Behind one
//! address, two attempts may meet wrong nodes by chance though another is right: the call fails then, and a repeat may not.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use super::http::Failure;
use super::node::Node;
use super::nodes::Nodes;

/// How often each URL is tried at least: the next connection to the same address may lead to another node.
const ATTEMPTS: usize = 2;

/// At which nodes the handshakes of a call were in vain, as one side did not trust the other, once for each. `None` once an attempt has
/// ended otherwise.
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

    /// Whether each of the configured `nodes` was asked in vain, often enough, and nothing else has happened.
    pub(crate) fn is_of_all(&self, nodes: &Nodes) -> bool {
        let Some(distrusted) = &self.0 else { return false };
        nodes.configured().iter().all(|node| {
            let times = distrusted.iter().filter(|one| one.server.is_same(&node.server)).count();
            times >= node.server.target().known().len().max(ATTEMPTS)
        })
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (Self::NotSent(why) | Self::Untrusted(_, why) | Self::Broken(why)) = self;
        f.write_str(why)
    }
}
