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

/// In the client's network, another program may be at the address of a node behind the gateway.
#[tokio::test(start_paused = true)]
async fn a_client_of_a_gateway_learns_no_nodes_but_follows_to_its_own_urls() {
    let urls = ["http://127.0.0.9/a/", "http://127.0.0.9/b", "http://127.0.0.9:80/a"];
    let nodes = Nodes::parse(urls, &Tls::default()).unwrap();
    assert_eq!((nodes.count(), best(&nodes).as_str()), (2, "http://127.0.0.9/a"));
    for elsewhere in [ELSEWHERE, "http://127.0.0.9", "http://127.0.0.9/a/b", "http://127.0.0.9/c"] {
        assert!(names(&nodes, elsewhere).is_none(), "{elsewhere}");
        assert_eq!(best(&nodes), "http://127.0.0.9/a", "{elsewhere}");
    }
    introduces(&nodes, "http://127.0.0.9/b/");
    assert_eq!(best(&nodes), "http://127.0.0.9/b");
    let nodes = configured();
    introduces(&nodes, "http://127.0.0.9/c/");
    assert_eq!(best(&nodes), "http://127.0.0.9/c", "another client may learn a gateway");
    for (url, why) in [("http://a/b?c", "no query"), ("http:///b", "no URL"), ("http://a b", "no URL")] {
        let error = Nodes::parse([url], &Tls::default()).unwrap_err();
        assert!(error.field.as_deref() == Some("urls[0]") && error.detail.contains(why), "{url}: {error:?}");
    }
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
    assert_eq!(Nodes::parse(["https://a:1"], &half).unwrap_err().field.as_deref(), Some("tls.certificate"));
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
    let check =
        |cluster: Option<HeaderValue>, is_definite| nodes.check_cluster(&node, cluster.as_ref(), is_definite);
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
    let watched = || -> BTreeSet<String> { (0..100).map(|_| nodes.for_watch().server.to_string()).collect() };
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
        ("http://a:1?x", "no query"),
        ("http://user@a:1", "form"),
        ("ftp://a", "http://"),
    ] {
        let error = Nodes::parse(["http://b:2", url], &Tls::default()).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("urls[1]"));
        assert!(error.detail.contains(word), "{url}: {}", error.detail);
    }
    assert_eq!(Nodes::parse([""; 0], &Tls::default()).unwrap_err().field.as_deref(), Some("urls"));
    let nodes = Nodes::parse(["http://a:1", "http://a:1/", "http://[::1]:7400"], &Tls::default()).unwrap();
    assert_eq!(nodes.count(), 2, "none twice");
}
