//! Which node to ask next.
//!
//! Every node takes every request; the leader answers sooner, as others pass requests on to it. So the client asks whom
//! the last answer named as the leader (`ringfence-leader`), whether or not that URL was given, and otherwise whom it
//! asked last with success. A node that failed is passed over for a while, however often others still name it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::HeaderMap;
use tokio::time::Instant;

use crate::exchange::Node;

/// How long a node that failed is asked only if all others failed later. Others may name it as the leader for about a
/// second after it died.
const PASSED_OVER: Duration = Duration::from_secs(3);
/// Nodes that were named and not given are kept up to so many: a cluster has no more.
const LEARNT: usize = 16;

/// The nodes that are known.
#[derive(Debug)]
pub(crate) struct Endpoints(Mutex<Known>);

#[derive(Debug)]
struct Known {
    nodes: Vec<Place>,
    given: usize,
    /// Whom to ask first.
    first: usize,
}

#[derive(Debug)]
struct Place {
    node: Arc<Node>,
    failed_at: Option<Instant>,
}

impl Endpoints {
    pub(crate) fn new(given: Vec<Arc<Node>>) -> Self {
        let given_count = given.len();
        let nodes = given.into_iter().map(|node| Place { node, failed_at: None }).collect();
        Self(Mutex::new(Known { nodes, given: given_count, first: 0 }))
    }

    /// How many there are to be asked in turn.
    pub(crate) fn count(&self) -> usize {
        self.known().given
    }

    /// Whom to ask: the first choice unless it failed lately; else the one that was given and failed longest ago.
    pub(crate) fn best(&self) -> Arc<Node> {
        let known = self.known();
        let first = &known.nodes[known.first];
        if first.failed_at.is_none_or(|at| at.elapsed() > PASSED_OVER) {
            return Arc::clone(&first.node);
        }
        let given = known.nodes[..known.given].iter().min_by_key(|place| place.failed_at);
        Arc::clone(&given.expect("at least one is given").node)
    }

    /// It gave an answer that is ours: it is asked again, unless the answer names the leader.
    pub(crate) fn answered(&self, node: &Arc<Node>, headers: &HeaderMap) {
        let leader = headers.get("ringfence-leader").and_then(|value| value.to_str().ok());
        let mut known = self.known();
        let Some(asked) = known.place_of(node) else { return };
        known.nodes[asked].failed_at = None;
        known.first = leader.and_then(|url| known.followed(url)).unwrap_or(asked);
    }

    /// It gave none, or is of no use now.
    pub(crate) fn failed(&self, node: &Arc<Node>) {
        let mut known = self.known();
        if let Some(place) = known.place_of(node) {
            known.nodes[place].failed_at = Some(Instant::now());
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("nothing that panics is done while it is locked")
    }
}

impl Known {
    fn place_of(&self, node: &Node) -> Option<usize> {
        self.nodes.iter().position(|place| place.node.is_at(node))
    }

    /// Where the leader at `url` stands, if it is worth a try.
    fn followed(&mut self, url: &str) -> Option<usize> {
        let leader = Node::parse(url).ok()?;
        let place = match self.place_of(&leader) {
            Some(place) => place,
            None if self.nodes.len() < self.given + LEARNT => {
                self.nodes.push(Place { node: Arc::new(leader), failed_at: None });
                self.nodes.len() - 1
            }
            None => return None,
        };
        let failed_at = self.nodes[place].failed_at;
        failed_at.is_none_or(|at| at.elapsed() > PASSED_OVER).then_some(place)
    }
}
