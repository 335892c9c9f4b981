//! Failures, and those that no further attempt mends.
//!
//! What is at a URL may be several nodes: at the addresses of a name, or all behind one, as of a gateway or of a Service of Kubernetes.
//! One of them with a wrong certificate says nothing of the others.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::sync::Arc;

use super::http::Failure;
use super::node::Node;
use super::nodes::Nodes;

/// How often each URL is tried at least: the next connection to the same address may lead to another node.
const ATTEMPTS: usize = 2;

/// The handshakes of a call that were in vain, as one side did not trust the other. `None` once an attempt has ended otherwise.
#[derive(Debug)]
pub(crate) struct Distrust(Option<Vec<Distrusted>>);

/// With what answers for a node at one address, so many times.
#[derive(Debug)]
struct Distrusted {
    node: Arc<Node>,
    at: IpAddr,
    times: usize,
}

impl Distrust {
    pub(crate) fn new() -> Self {
        Self(Some(Vec::new()))
    }

    /// Notes how an attempt at `node` has ended.
    pub(crate) fn note<T>(&mut self, node: &Arc<Node>, result: &Result<T, Failure>) {
        let Err(Failure::Untrusted(at, _)) = result else {
            self.0 = None;
            return;
        };
        let Some(all) = &mut self.0 else { return };
        match all.iter_mut().find(|one| one.node.server.is_same(&node.server) && one.at == *at) {
            Some(known) => known.times += 1,
            None => all.push(Distrusted { node: Arc::clone(node), at: *at, times: 1 }),
        }
    }

    /// Whether each of the configured `nodes` was asked in vain, at all of its addresses and more than once, and nothing else has happened.
    pub(crate) fn is_of_all(&self, nodes: &Nodes) -> bool {
        let Some(distrusted) = &self.0 else { return false };
        nodes.configured().iter().all(|node| {
            let of_node = || distrusted.iter().filter(|one| one.node.server.is_same(&node.server));
            let is_known = |at: &IpAddr| of_node().any(|one| one.at == *at);
            node.server.target().known().iter().all(is_known)
                && of_node().map(|one| one.times).sum::<usize>() >= ATTEMPTS
        })
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (Self::NotSent(why) | Self::Untrusted(_, why) | Self::Broken(why)) = self;
        f.write_str(why)
    }
}
