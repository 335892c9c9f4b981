//! Which node to ask next.
//!
//! Every node takes every request, but followers forward it: the leader responds sooner. So the client asks the node that
//! the last response named as the leader (`ringfence-leader`), whether or not its URL was configured, and otherwise the
//! node that responded last. A client with TLS uses no URL without, and the other way round, unless host and port are those
//! of a node that it knows. It avoids a node that failed for a while, even if others still name it: twice as long each time
//! that it does not answer at all.
//!
//! A URL with a path leads through a gateway. The client may be unable to reach the nodes directly, or meant not to: what answers
//! at a node's address in the client's network may be something else. So if one of its URLs has a path, it learns none.
//!
//! A URL may lead to another cluster: a tunnel or a port mapping leads elsewhere, or three nodes have founded three clusters.
//! Two clusters grant the same key at once. So a client belongs for ever to the cluster of its first definite response, and the
//! response of another cluster is none. A node that gave one, or whose URL was learned, which may lead nowhere, is used once it
//! has *met* the client: it has answered a probe, and not for another cluster.
//!
//! A watch stays with its node, and every node serves it equally well. Watches go to a random node, and to the leader, which
//! is the busiest, only if no other is healthy.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use hyper::header::HeaderValue;
use ringfence_tls::cut;
use ringfence_wire::FieldError;
use tokio::time::Instant;

use super::http::Failure;
use super::node::Node;
use super::tls::{Encryption, Tls};
use crate::backoff::pick;

/// How long a node that failed is avoided. Others may name it as the leader for about a second after its death.
const AVOIDED_FOR: Duration = Duration::from_secs(3);
/// How often that time doubles while the node does not answer.
const DOUBLINGS: u32 = 5;
/// How long a call waits until the addresses of a node are known.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);
/// The most nodes that are remembered beyond the configured ones: a cluster has no more.
const MAX_LEARNED: usize = 16;

/// The known nodes. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Nodes(Arc<Mutex<Known>>);

#[derive(Debug)]
struct Known {
    /// The configured nodes, then those learned from responses.
    nodes: Vec<Entry>,
    configured: usize,
    /// Whether a configured URL has a path.
    is_behind_gateway: bool,
    preferred: usize,
    /// The leader, as the last response named it.
    leader: Option<usize>,
    /// The id of the client's cluster.
    cluster: Option<HeaderValue>,
    grants_wait_for_mirror: bool,
    encryption: Option<Arc<Encryption>>,
}

#[derive(Debug)]
struct Entry {
    node: Arc<Node>,
    failed_at: Option<Instant>,
    /// How many times in a row it did not answer.
    silences: u32,
    /// Whether it has answered a probe since it was learned and failed, or answered for another cluster.
    is_met: bool,
    /// Whether its last outcome was definite.
    is_proven: bool,
}

impl Nodes {
    /// The nodes at `urls`, none twice. TLS is for https URLs.
    pub(crate) fn parse<S: AsRef<str>>(
        urls: impl IntoIterator<Item = S>,
        tls: &Tls,
    ) -> Result<Self, FieldError> {
        let mut urls = urls.into_iter().peekable();
        let is_https = |url: &S| url.as_ref().trim_start().starts_with("https://");
        let encryption = (*tls != Tls::default() || urls.peek().is_some_and(is_https))
            .then(|| Encryption::load(tls).map(Arc::new))
            .transpose()?;
        let mut nodes: Vec<Entry> = Vec::new();
        for (index, url) in urls.enumerate() {
            let node = Node::parse(url.as_ref().trim(), encryption.as_ref());
            let node = node.map_err(|detail| FieldError::new(format!("urls[{index}]"), detail))?;
            if !nodes.iter().any(|other| other.node.server.is_same(&node.server)) {
                nodes.push(Entry::new(node, true));
            }
        }
        if nodes.is_empty() {
            return Err(FieldError::new("urls", "a client needs the URL of at least one node"));
        }
        let configured = nodes.len();
        let is_behind_gateway = nodes.iter().any(|entry| entry.node.server.has_path());
        Ok(Self(Arc::new(Mutex::new(Known {
            nodes,
            configured,
            is_behind_gateway,
            preferred: 0,
            leader: None,
            cluster: None,
            grants_wait_for_mirror: false,
            encryption,
        }))))
    }

    /// Waits until a node can be connected to without a lookup. If none can, the next attempt fails, and says why.
    pub(crate) async fn resolve(&self) {
        let nodes: Vec<Arc<Node>> = {
            let known = self.known();
            if known.best().is_resolved() {
                return;
            }
            known.nodes.iter().map(|entry| Arc::clone(&entry.node)).collect()
        };
        let mut lookups: FuturesUnordered<_> =
            nodes.iter().map(|node| node.server.target().resolve(LOOKUP_TIMEOUT)).collect();
        while lookups.next().await.is_some_and(|resolved| resolved.is_err()) {}
    }

    /// The configured nodes.
    pub(crate) fn configured(&self) -> Vec<Arc<Node>> {
        let known = self.known();
        known.nodes[..known.configured].iter().map(|entry| Arc::clone(&entry.node)).collect()
    }

    /// How many nodes are tried in turn.
    pub(crate) fn count(&self) -> usize {
        self.known().configured
    }

    /// The node to ask: the preferred one unless it failed lately, else the configured one that failed longest ago.
    pub(crate) fn best(&self) -> Arc<Node> {
        Arc::clone(&self.known().best().node)
    }

    /// Whether the last outcome of the best node was definite.
    pub(crate) fn is_proven(&self) -> bool {
        self.known().best().is_proven
    }

    /// Whether another node is asked if the best one fails. A learned leader counts as another than the one configured node.
    pub(crate) fn has_another(&self) -> bool {
        let known = self.known();
        known.configured > 1 || !known.best().node.server.is_same(&known.nodes[0].node.server)
    }

    /// The node to watch: a random configured one that is healthy, preferably not the leader.
    pub(crate) fn for_watch(&self) -> Arc<Node> {
        let known = self.known();
        let healthy = || (0..known.configured).filter(|&index| known.nodes[index].is_usable());
        let followers: Vec<usize> = healthy().filter(|&index| Some(index) != known.leader).collect();
        let chosen = pick(&followers).copied().or_else(|| healthy().next());
        let entry = chosen.map_or_else(|| known.failed_longest_ago(), |index| &known.nodes[index]);
        Arc::clone(&entry.node)
    }

    /// Checks for which `cluster` a node has responded; `None`: an older node does not say. If it is another cluster than the
    /// client's, the response is none, nothing was done for this client, and the error says why. The first response that
    /// `is_definite` decides which cluster that is.
    pub(crate) fn check_cluster(
        &self,
        node: &Node,
        cluster: Option<&HeaderValue>,
        is_definite: bool,
    ) -> Result<(), String> {
        let mut known = self.known();
        let Some(cluster) = cluster else { return Ok(()) };
        let Some(own) = known.cluster.clone() else {
            known.cluster = is_definite.then(|| cluster.clone());
            return Ok(());
        };
        if own == cluster {
            return Ok(());
        }
        if let Some(index) = known.index_of(node) {
            known.nodes[index].is_met = false;
        }
        let [other, own] = [cluster, &own].map(|id| cut(String::from_utf8_lossy(id.as_bytes()).into_owned()));
        Err(format!(
            "{} answers for cluster {other}, this client belongs to cluster {own}: if that was replaced, make a new client",
            node.server
        ))
    }

    /// Records a definite response, and the leader's URL in it. The leader, else this node, is preferred from now on.
    pub(crate) fn responded(&self, node: &Node, leader: Option<&HeaderValue>) {
        if let Some(stranger) = self.known().responded(node, leader) {
            let nodes = self.clone();
            drop(tokio::spawn(async move {
                if let Err(failure) = nodes.meet(&stranger).await {
                    tracing::debug!(?failure, "the leader's URL is of no use here");
                }
            }));
        }
    }

    /// Records that a node gave no definite response, or is of no use now. `silent_since`: when it was asked, if it gave none at
    /// all.
    pub(crate) fn failed(&self, node: &Node, silent_since: Option<Instant>) {
        self.known().failed(node, silent_since);
    }

    /// Whether a node may be asked without [`Nodes::meet`].
    pub(crate) fn is_met(&self, node: &Node) -> bool {
        let known = self.known();
        known.index_of(node).is_some_and(|index| known.nodes[index].is_met)
    }

    /// Asks a node for a sign of life of the client's cluster.
    pub(crate) async fn meet(&self, node: &Node) -> Result<(), Failure> {
        let response = node.server.probe().await?;
        self.check_cluster(node, response.cluster.as_ref(), false).map_err(Failure::NotSent)?;
        self.known().met(node);
        Ok(())
    }

    /// Completes once a node is silent while another may answer. Else waiting is all there is.
    /// A request that `can_wait` looks once more.
    pub(crate) async fn is_silent(&self, node: &Node, can_wait: bool) {
        loop {
            node.server.falls_silent().await;
            let since = Instant::now();
            if self.known().has_usable_besides(node) && (!can_wait || node.server.stays_silent(since).await) {
                return;
            }
        }
    }

    /// Closes idle connections.
    pub(crate) fn forget_connections(&self) {
        self.known().nodes.iter().for_each(|entry| entry.node.server.forget_connections());
    }

    /// Closes idle connections, and from now on each once it is idle.
    pub(crate) fn disconnect(&self) {
        self.known().nodes.iter().for_each(|entry| entry.node.server.disconnect());
    }

    /// Records that the cluster delays grants until the mirror has them. From now on no calls are batched: they would all
    /// wait for the slowest.
    pub(crate) fn grants_wait_for_mirror(&self) {
        self.known().grants_wait_for_mirror = true;
    }

    pub(crate) fn may_batch(&self) -> bool {
        !self.known().grants_wait_for_mirror
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

impl Entry {
    fn new(node: Node, is_met: bool) -> Self {
        Self { node: Arc::new(node), failed_at: None, silences: 0, is_met, is_proven: false }
    }

    fn is_healthy(&self) -> bool {
        let doublings = self.silences.saturating_sub(1).min(DOUBLINGS);
        self.failed_at.is_none_or(|at| at.elapsed() > AVOIDED_FOR * 2_u32.pow(doublings))
    }

    fn is_usable(&self) -> bool {
        self.is_met && self.is_healthy() && self.is_resolved()
    }

    fn is_resolved(&self) -> bool {
        self.node.server.target().is_resolved()
    }
}

impl Known {
    fn best(&self) -> &Entry {
        let preferred = &self.nodes[self.preferred];
        if preferred.is_usable() { preferred } else { self.failed_longest_ago() }
    }

    fn has_usable_besides(&self, node: &Node) -> bool {
        self.nodes.iter().any(|entry| entry.is_usable() && !entry.node.server.is_same(&node.server))
    }

    fn failed_longest_ago(&self) -> &Entry {
        let configured = self.nodes[..self.configured].iter();
        let first = configured.min_by_key(|entry| (!entry.is_resolved(), entry.failed_at));
        first.expect("at least one node is configured")
    }

    /// Returns the leader if that is to be met.
    fn responded(&mut self, node: &Node, leader: Option<&HeaderValue>) -> Option<Arc<Node>> {
        let index = self.index_of(node)?;
        let entry = &mut self.nodes[index];
        (entry.failed_at, entry.silences, entry.is_met, entry.is_proven) = (None, 0, true, true);
        self.leader = leader.and_then(|url| self.learn(url.to_str().ok()?));
        self.preferred = self.leader.filter(|leader| self.nodes[*leader].is_met).unwrap_or(index);
        let leader = &mut self.nodes[self.leader?];
        if leader.is_met || !leader.is_healthy() {
            return None;
        }
        // Until it answers.
        (leader.failed_at, leader.silences) = (Some(Instant::now()), leader.silences + 1);
        Some(Arc::clone(&leader.node))
    }

    fn met(&mut self, node: &Node) {
        let Some(index) = self.index_of(node) else { return };
        let entry = &mut self.nodes[index];
        (entry.failed_at, entry.silences, entry.is_met) = (None, 0, true);
        if self.leader == Some(index) {
            self.preferred = index;
        }
    }

    fn failed(&mut self, node: &Node, silent_since: Option<Instant>) {
        let Some(index) = self.index_of(node) else { return };
        let is_configured = index < self.configured;
        let entry = &mut self.nodes[index];
        let failed_at = entry.failed_at.replace(Instant::now());
        entry.silences = match silent_since {
            // All that were sent before the first of them failed show one and the same outage.
            Some(since) => entry.silences.saturating_add(failed_at.is_none_or(|at| at < since).into()),
            None => 0,
        };
        entry.is_met &= is_configured;
        entry.is_proven = false;
    }

    fn index_of(&self, node: &Node) -> Option<usize> {
        self.nodes.iter().position(|entry| entry.node.server.is_same(&node.server))
    }

    /// The index of the node at `url`, which may be new.
    fn learn(&mut self, url: &str) -> Option<usize> {
        let (named, address) = url.split_once("://")?;
        let own = if self.encryption.is_some() { "https" } else { "http" };
        let node = Node::parse(&format!("{own}://{address}"), self.encryption.as_ref()).ok()?;
        let known = self.index_of(&node);
        let may_learn = !self.is_behind_gateway && self.nodes.len() < self.configured + MAX_LEARNED;
        if known.is_none() && named == own && may_learn {
            self.nodes.push(Entry::new(node, false));
            return Some(self.nodes.len() - 1);
        }
        known
    }
}

#[cfg(test)]
mod tests;
