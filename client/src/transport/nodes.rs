//! Which node to ask next.
//!
//! Every node takes every request, but followers forward it: the leader responds sooner. So the client asks the node that
//! the last response named as the leader (`ringfence-leader`), whether or not its URL was configured, and otherwise the
//! node that responded last. A client with TLS uses no URL without, and the other way round, unless host and port are those
//! of a node that it knows. It avoids a node that failed for a while, even if others still name it: twice as long each time
//! that it does not answer at all.
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
use ringfence_wire::FieldError;
use tokio::time::Instant;

use super::http::Failure;
use super::node::Node;
use super::tls::Encryption;
use crate::Tls;
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
        Ok(Self(Arc::new(Mutex::new(Known {
            nodes,
            configured,
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
        let [other, own] = [cluster, &own].map(|id| String::from_utf8_lossy(id.as_bytes()));
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
    pub(crate) async fn is_silent(&self, node: &Node) {
        loop {
            node.server.falls_silent().await;
            if self.known().has_usable_besides(node) {
                return;
            }
        }
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
        if known.is_none() && named == own && self.nodes.len() < self.configured + MAX_LEARNED {
            self.nodes.push(Entry::new(node, false));
            return Some(self.nodes.len() - 1);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const URLS: [&str; 3] = ["http://127.0.0.1:1", "http://127.0.0.2:2", "http://127.0.0.3:3"];
    const ELSEWHERE: &str = "http://127.0.0.9:9";

    fn configured() -> Nodes {
        Nodes::parse(URLS, &Tls::default()).unwrap()
    }

    /// The best node responds, and names this leader. Returns the leader if that is to be met.
    fn names(nodes: &Nodes, url: &'static str) -> Option<Arc<Node>> {
        let best = nodes.best();
        nodes.known().responded(&best, Some(&HeaderValue::from_static(url)))
    }

    /// The same, and the leader answers if it is to be met.
    fn introduces(nodes: &Nodes, url: &'static str) {
        if let Some(stranger) = names(nodes, url) {
            nodes.known().met(&stranger);
        }
    }

    fn best(nodes: &Nodes) -> String {
        nodes.best().server.to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn the_node_that_responded_last_is_preferred_unless_it_names_a_leader() {
        let nodes = configured();
        assert_eq!(best(&nodes), URLS[0]);
        nodes.responded(&nodes.best(), None);
        assert_eq!(best(&nodes), URLS[0]);
        introduces(&nodes, "http://127.0.0.3:3/");
        assert_eq!(best(&nodes), URLS[2]);
        introduces(&nodes, ELSEWHERE);
        assert_eq!(best(&nodes), ELSEWHERE, "a learned node");
        introduces(&nodes, "ftp://nonsense");
        assert_eq!(best(&nodes), ELSEWHERE);
        introduces(&nodes, "https://127.0.0.2:2");
        assert_eq!(best(&nodes), URLS[1], "known by host and port");
        introduces(&nodes, "https://127.0.0.7:9");
        assert_eq!(best(&nodes), URLS[1], "a client without TLS learns no URL with it");
    }

    /// It was once asked first, for a second, each time that a response named it.
    #[tokio::test(start_paused = true)]
    async fn a_learned_node_is_asked_only_once_it_has_answered() {
        let nodes = configured();
        for pause in [1, 2, 4, 8, 16, 32, 32, 32] {
            let stranger = names(&nodes, ELSEWHERE).unwrap();
            assert_eq!((stranger.server.to_string().as_str(), best(&nodes).as_str()), (ELSEWHERE, URLS[0]));
            tokio::time::advance(AVOIDED_FOR * pause).await;
            assert!(names(&nodes, ELSEWHERE).is_none(), "it is being met, or has not answered for too short");
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        introduces(&nodes, ELSEWHERE);
        assert_eq!(best(&nodes), ELSEWHERE);
        assert!(names(&nodes, ELSEWHERE).is_none(), "it is known");
        nodes.failed(&nodes.best(), Some(Instant::now()));
        assert_eq!(best(&nodes), URLS[0]);
        tokio::time::advance(AVOIDED_FOR + Duration::from_millis(1)).await;
        assert!(names(&nodes, ELSEWHERE).is_some(), "it has to answer again");
        assert_eq!(best(&nodes), URLS[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_learned_node_that_answers_too_late_to_be_the_leader_is_not_preferred() {
        let nodes = configured();
        let stranger = names(&nodes, ELSEWHERE).unwrap();
        introduces(&nodes, URLS[1]);
        nodes.known().met(&stranger);
        assert_eq!(best(&nodes), URLS[1]);
    }

    /// What is sent to it would not be encrypted, and nobody would have verified who reads it.
    #[tokio::test(start_paused = true)]
    async fn a_client_with_tls_follows_no_url_without() {
        let authority = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), authority.cert.pem()).unwrap();
        let tls = Tls { authority: Some(file.path().to_owned()), ..Tls::default() };
        let nodes = Nodes::parse(["https://127.0.0.1:1", "https://127.0.0.2:2"], &tls).unwrap();
        introduces(&nodes, ELSEWHERE);
        assert_eq!(best(&nodes), "https://127.0.0.1:1");
        introduces(&nodes, "http://127.0.0.2:2");
        assert_eq!(best(&nodes), "https://127.0.0.2:2");
        introduces(&nodes, "https://127.0.0.9:9");
        assert_eq!(best(&nodes), "https://127.0.0.9:9");
        for urls in [["https://a:1", "http://b:2"], ["http://a:1", "https://b:2"]] {
            assert!(Nodes::parse(urls, &tls).unwrap_err().detail.contains("with TLS"), "{urls:?}");
        }
        let missing = Tls { authority: Some("/nowhere/ca.pem".into()), ..Tls::default() };
        assert!(Nodes::parse(["https://a:1"], &missing).unwrap_err().detail.contains("/nowhere/ca.pem"));
        let half = Tls { key: Some(file.path().to_owned()), ..Tls::default() };
        assert_eq!(
            Nodes::parse(["https://a:1"], &half).unwrap_err().field.as_deref(),
            Some("tls.certificate")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_node_is_avoided_for_a_while_even_if_others_name_it() {
        let nodes = configured();
        let fails = || nodes.failed(&nodes.best(), Some(Instant::now()));
        fails();
        assert_eq!(best(&nodes), URLS[1]);
        fails();
        assert_eq!(best(&nodes), URLS[2]);
        introduces(&nodes, URLS[0]);
        assert_eq!(best(&nodes), URLS[2], "the named leader has just failed");
        tokio::time::advance(AVOIDED_FOR + Duration::from_millis(1)).await;
        introduces(&nodes, URLS[0]);
        assert_eq!(best(&nodes), URLS[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_proven_by_a_definite_outcome_until_it_fails() {
        let nodes = configured();
        assert!(!nodes.is_proven());
        nodes.responded(&nodes.best(), None);
        assert!(nodes.is_proven());
        nodes.failed(&nodes.best(), None);
        assert!(!nodes.is_proven(), "another one is best");
    }

    /// Six requests that broke when a node was restarted once had it avoided for 96 s.
    #[tokio::test(start_paused = true)]
    async fn requests_that_fail_in_one_outage_count_as_one_silence() {
        let nodes = configured();
        let (node, asked) = (nodes.best(), Instant::now());
        for _ in 0..6 {
            tokio::time::advance(Duration::from_millis(1)).await;
            nodes.failed(&node, Some(asked));
        }
        tokio::time::advance(AVOIDED_FOR + Duration::from_millis(1)).await;
        assert_eq!(best(&nodes), URLS[0]);
        nodes.failed(&node, Some(Instant::now()));
        tokio::time::advance(AVOIDED_FOR + Duration::from_millis(1)).await;
        assert_eq!(best(&nodes), URLS[1], "the second outage");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_belongs_to_the_first_cluster_that_gave_a_definite_response() {
        const OWN: HeaderValue = HeaderValue::from_static("a");
        const OTHER: HeaderValue = HeaderValue::from_static("b");
        let nodes = configured();
        let node = nodes.best();
        let check = |cluster: Option<HeaderValue>, is_definite| {
            nodes.check_cluster(&node, cluster.as_ref(), is_definite)
        };
        check(None, true).unwrap();
        check(Some(OTHER), false).unwrap();
        check(Some(OWN), true).unwrap();
        for _ in 0..3 {
            for is_definite in [true, false] {
                check(Some(OWN), is_definite).unwrap();
                check(None, is_definite).unwrap();
                assert!(nodes.is_met(&node));
                assert!(check(Some(OTHER), is_definite).unwrap_err().contains("new client"));
                assert!(!nodes.is_met(&node), "a stranger");
                nodes.known().met(&node);
            }
            tokio::time::advance(Duration::from_secs(3_600)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn if_all_nodes_fail_they_take_turns() {
        let nodes = configured();
        let mut asked = Vec::new();
        for _ in 0..6 {
            asked.push(best(&nodes));
            nodes.failed(&nodes.best(), Some(Instant::now()));
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert_eq!(asked, [URLS, URLS].concat());
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreachable_learned_leader_takes_no_turn() {
        let nodes = Nodes::parse(&URLS[..1], &Tls::default()).unwrap();
        assert!(!nodes.has_another());
        introduces(&nodes, ELSEWHERE);
        assert_eq!(best(&nodes), ELSEWHERE);
        assert!(nodes.has_another(), "the configured one");
        nodes.failed(&nodes.best(), Some(Instant::now()));
        assert!(!nodes.has_another());
        tokio::time::advance(Duration::from_millis(10)).await;
        assert_eq!(best(&nodes), URLS[0]);
        nodes.failed(&nodes.best(), Some(Instant::now()));
        assert_eq!(best(&nodes), URLS[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn watches_go_to_healthy_nodes_and_to_the_leader_only_if_no_other_is() {
        let nodes = configured();
        let watched =
            || -> BTreeSet<String> { (0..100).map(|_| nodes.for_watch().server.to_string()).collect() };
        assert_eq!(watched(), URLS.map(str::to_owned).into(), "no leader is known");
        introduces(&nodes, URLS[0]);
        assert_eq!(watched(), [URLS[1].to_owned(), URLS[2].to_owned()].into());
        let failed = |url: &str| nodes.failed(&Node::parse(url, None).unwrap(), None);
        failed(URLS[2]);
        assert_eq!(watched(), [URLS[1].to_owned()].into());
        failed(URLS[1]);
        assert_eq!(watched(), [URLS[0].to_owned()].into());
        tokio::time::advance(Duration::from_millis(10)).await;
        failed(URLS[0]);
        assert_eq!(watched().len(), 1, "all failed: they take turns");
        introduces(&nodes, ELSEWHERE);
        tokio::time::advance(AVOIDED_FOR + Duration::from_millis(1)).await;
        assert_eq!(watched(), URLS.map(str::to_owned).into(), "only configured nodes");
    }

    #[test]
    fn only_urls_of_nodes_are_accepted() {
        for (url, word) in [
            ("https://a:1", "or none"),
            ("a:1", "http://"),
            ("http://", "no URL"),
            ("http://a:1/path", "no path"),
            ("http://a:1?x", "no path"),
            ("http://user@a:1", "form"),
            ("ftp://a", "http://"),
        ] {
            let error = Nodes::parse(["http://b:2", url], &Tls::default()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some("urls[1]"));
            assert!(error.detail.contains(word), "{url}: {}", error.detail);
        }
        assert_eq!(Nodes::parse([""; 0], &Tls::default()).unwrap_err().field.as_deref(), Some("urls"));
        let nodes =
            Nodes::parse(["http://a:1", "http://a:1/", "http://[::1]:7400"], &Tls::default()).unwrap();
        assert_eq!(nodes.count(), 2, "none twice");
    }
}
