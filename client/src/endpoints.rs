//! Which node to ask next.
//!
//! Every node takes every request; the leader answers sooner, as others pass requests on to it. So the client asks whom
//! the last answer named as the leader (`ringfence-leader`), whether or not that URL was given, and otherwise whom it
//! asked last with success. A node that failed is passed over for a while, however often others still name it.
//!
//! A watch stays where it began, and each node can tell as much: watches go to nodes at random, and to the leader, which has
//! most to do, only where no other is well.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::time::Instant;

use crate::backoff::one_of;
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
    /// Whom the last answer named as the leader.
    leader: Option<usize>,
    /// Grants are answered only when they stand in the mirror.
    waits_for_mirror: bool,
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
        Self(Mutex::new(Known { nodes, given: given_count, first: 0, leader: None, waits_for_mirror: false }))
    }

    /// How many there are to be asked in turn.
    pub(crate) fn count(&self) -> usize {
        self.known().given
    }

    /// Whom to ask: the first choice unless it failed lately; else the one that was given and failed longest ago.
    pub(crate) fn best(&self) -> Arc<Node> {
        Arc::clone(&self.known().best().node)
    }

    /// Whether another node is asked if the best fails. A leader that was named is another than the only one that was given.
    pub(crate) fn has_another(&self) -> bool {
        let known = self.known();
        known.given > 1 || !known.best().node.is_at(&known.nodes[0].node)
    }

    /// Whom to ask for a stream: any of those that were given and did not fail lately, but rather not the leader.
    pub(crate) fn for_watch(&self) -> Arc<Node> {
        let known = self.known();
        let well = || (0..known.given).filter(|&place| known.nodes[place].is_well());
        let others: Vec<usize> = well().filter(|&place| Some(place) != known.leader).collect();
        let chosen = one_of(&others).copied().or_else(|| well().next());
        let place = chosen.map_or_else(|| known.failed_longest_ago(), |place| &known.nodes[place]);
        Arc::clone(&place.node)
    }

    /// It gave an answer that is ours: it is asked again, unless the answer names the leader.
    pub(crate) fn answered(&self, node: &Arc<Node>, leader: Option<&HeaderValue>) {
        let leader = leader.and_then(|url| url.to_str().ok());
        let mut known = self.known();
        let Some(asked) = known.place_of(node) else { return };
        known.nodes[asked].failed_at = None;
        known.leader = leader.and_then(|url| known.followed(url));
        known.first = known.leader.unwrap_or(asked);
    }

    /// Grants are answered only when they stand in the mirror: nothing else is to wait with them.
    pub(crate) fn wait_for_mirror(&self) {
        self.known().waits_for_mirror = true;
    }

    /// Whether calls may share a request.
    pub(crate) fn may_share(&self) -> bool {
        !self.known().waits_for_mirror
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

impl Place {
    fn is_well(&self) -> bool {
        self.failed_at.is_none_or(|at| at.elapsed() > PASSED_OVER)
    }
}

impl Known {
    fn best(&self) -> &Place {
        let first = &self.nodes[self.first];
        if first.is_well() { first } else { self.failed_longest_ago() }
    }

    /// Of those that were given.
    fn failed_longest_ago(&self) -> &Place {
        let given = self.nodes[..self.given].iter().min_by_key(|place| place.failed_at);
        given.expect("at least one is given")
    }

    fn place_of(&self, node: &Node) -> Option<usize> {
        self.nodes.iter().position(|place| place.node.is_at(node))
    }

    /// Where the leader at `url` stands.
    fn followed(&mut self, url: &str) -> Option<usize> {
        let leader = Node::parse(url).ok()?;
        if let Some(place) = self.place_of(&leader) {
            return Some(place);
        }
        let is_room = self.nodes.len() < self.given + LEARNT;
        is_room.then(|| {
            self.nodes.push(Place { node: Arc::new(leader), failed_at: None });
            self.nodes.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::exchange::nodes;

    const URLS: [&str; 3] = ["http://a:1", "http://b:2", "http://c:3"];

    /// Whom it would ask answers, and names this one.
    fn names(endpoints: &Endpoints, url: &'static str) {
        endpoints.answered(&endpoints.best(), Some(&HeaderValue::from_static(url)));
    }

    fn best(endpoints: &Endpoints) -> String {
        endpoints.best().to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_answered_last_is_asked_again_unless_it_names_the_leader() {
        let endpoints = Endpoints::new(nodes(URLS).unwrap());
        assert_eq!(best(&endpoints), URLS[0]);
        endpoints.answered(&endpoints.best(), None);
        assert_eq!(best(&endpoints), URLS[0]);
        names(&endpoints, "http://c:3/");
        assert_eq!(best(&endpoints), URLS[2]);
        names(&endpoints, "http://elsewhere:9");
        assert_eq!(best(&endpoints), "http://elsewhere:9", "one that was not given");
        names(&endpoints, "ftp://nonsense");
        assert_eq!(best(&endpoints), "http://elsewhere:9");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_failed_is_passed_over_for_a_while_however_often_it_is_named() {
        let endpoints = Endpoints::new(nodes(URLS).unwrap());
        let fails = || endpoints.failed(&endpoints.best());
        fails();
        assert_eq!(best(&endpoints), URLS[1]);
        fails();
        assert_eq!(best(&endpoints), URLS[2]);
        names(&endpoints, "http://a:1");
        assert_eq!(best(&endpoints), URLS[2], "the leader that is named has just failed");
        tokio::time::advance(PASSED_OVER + Duration::from_millis(1)).await;
        names(&endpoints, "http://a:1");
        assert_eq!(best(&endpoints), URLS[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_fail_each_has_its_turn() {
        let endpoints = Endpoints::new(nodes(URLS).unwrap());
        let mut asked = Vec::new();
        for _ in 0..6 {
            asked.push(best(&endpoints));
            endpoints.failed(&endpoints.best());
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert_eq!(asked, [URLS, URLS].concat());
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_out_of_reach_is_not_among_those_that_have_their_turn() {
        let endpoints = Endpoints::new(nodes(&URLS[..1]).unwrap());
        assert!(!endpoints.has_another());
        names(&endpoints, "http://inside:9");
        assert_eq!(best(&endpoints), "http://inside:9");
        assert!(endpoints.has_another(), "the one that was given");
        endpoints.failed(&endpoints.best());
        assert!(!endpoints.has_another());
        tokio::time::advance(Duration::from_millis(10)).await;
        assert_eq!(best(&endpoints), URLS[0]);
        endpoints.failed(&endpoints.best());
        assert_eq!(best(&endpoints), URLS[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn watches_go_to_any_node_that_is_well_and_to_the_leader_only_where_no_other_is() {
        let endpoints = Endpoints::new(nodes(URLS).unwrap());
        let watched =
            || -> BTreeSet<String> { (0..100).map(|_| endpoints.for_watch().to_string()).collect() };
        assert_eq!(watched(), URLS.map(str::to_owned).into(), "nobody has named a leader");
        names(&endpoints, URLS[0]);
        assert_eq!(watched(), [URLS[1].to_owned(), URLS[2].to_owned()].into());
        let failed = |url: &str| endpoints.failed(&nodes([url]).unwrap()[0]);
        failed(URLS[2]);
        assert_eq!(watched(), [URLS[1].to_owned()].into());
        failed(URLS[1]);
        assert_eq!(watched(), [URLS[0].to_owned()].into());
        tokio::time::advance(Duration::from_millis(10)).await;
        failed(URLS[0]);
        assert_eq!(watched().len(), 1, "all failed: each has its turn");
        names(&endpoints, "http://elsewhere:9");
        tokio::time::advance(PASSED_OVER + Duration::from_millis(1)).await;
        assert_eq!(watched(), URLS.map(str::to_owned).into(), "only those that were given");
    }

    #[test]
    fn only_urls_of_nodes_are_taken() {
        for (url, word) in [
            ("https://a:1", "plain HTTP"),
            ("a:1", "http://"),
            ("http://", "no URL"),
            ("http://a:1/path", "no path"),
            ("http://a:1?x", "no path"),
            ("http://user@a:1", "form"),
            ("ftp://a", "http://"),
        ] {
            let error = nodes(["http://b:2", url]).unwrap_err();
            assert_eq!(error.field.as_deref(), Some("urls[1]"));
            assert!(error.detail.contains(word), "{url}: {}", error.detail);
        }
        assert_eq!(nodes([""; 0]).unwrap_err().field.as_deref(), Some("urls"));
        assert_eq!(nodes(["http://a:1", "http://a:1/", "http://[::1]:7400"]).unwrap().len(), 2, "none twice");
    }
}
