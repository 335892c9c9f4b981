//! Members come and go while the cluster grants, and a node that lost its data comes back as a new one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::time::Duration;

use ringfence_harness::{Answered, Builder, Cluster, Node, RawAnswer, granted, try_once, until};
use ringfence_wire::{LeaseId, Token};
use serde_json::{Value, json};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

fn cluster() -> Builder {
    Cluster::builder(env!("CARGO_BIN_EXE_ringfence"))
}

/// A lease that stands, and what its repeats have to say.
struct Held {
    lease: LeaseId,
    name: String,
    token: Token,
}

impl Held {
    async fn new(node: &Node, name: &str) -> Self {
        let (lease, name) = (LeaseId::random(), format!("{name}/{}", LeaseId::random()));
        let token = acquire(node, lease, &name).await;
        Self { lease, name, token }
    }

    async fn is_known_to(&self, node: &Node) {
        assert_eq!(acquire(node, self.lease, &self.name).await, self.token);
        assert!(Held::new(node, "next").await.token > self.token);
    }
}

async fn acquire(node: &Node, lease: LeaseId, name: &str) -> Token {
    granted(&node.client(), lease, &try_once(name)).await.token
}

async fn add(through: &Node, id: u64, peer: &str) -> RawAnswer {
    let body = json!({ "id": id, "peer": peer }).to_string();
    through.client().raw("POST", "/v1/cluster/members", body).await.unwrap()
}

/// Repeats while the leader hands over.
async fn remove(through: &Node, id: u64) {
    let look = || async {
        let answer = through.client().raw("DELETE", &format!("/v1/cluster/members/{id}"), "").await.unwrap();
        assert!([204, 503].contains(&answer.status), "{answer:?}");
        (answer.status == 204).then_some(())
    };
    until(SOON, format!("node {id} is removed"), look).await.unwrap();
}

async fn votes(seen_by: &Node, id: u64) {
    let look = || async { seen_by.client().cluster().await.done().members.get(&id)?.voter.then_some(()) };
    until(SOON, format!("node {id} votes"), look).await.unwrap();
}

/// What was refused, and why.
fn refusal(answer: &RawAnswer, name: &str) -> String {
    let problem: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["type"], format!("urn:ringfence:problem:{name}"), "{problem}");
    problem["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_new_node_learns_everything_votes_and_replaces_an_old_one() {
    let cluster = cluster().joiners(1).start().await.unwrap();
    let new = cluster.node(4);
    let held = Held::new(cluster.node(1), "before").await;
    new.start().unwrap();
    let add_it =
        || async { (add(cluster.node(2), 4, &new.peer().to_string()).await.status == 204).then_some(()) };
    until(SOON, "node 4 is added", add_it).await.unwrap();
    assert_eq!(add(cluster.node(3), 4, &new.peer().to_string()).await.status, 204, "a repeat");
    votes(cluster.node(1), 4).await;
    new.ready().await.unwrap();
    held.is_known_to(new).await;

    // The leader goes for good; two of the three that are left are a majority, the new one among them.
    let leader = cluster.leader().await.unwrap();
    remove(cluster.others(leader.id()).next().unwrap(), leader.id()).await;
    leader.kill().unwrap();
    let members: BTreeSet<u64> = new.client().cluster().await.done().members.into_keys().collect();
    assert_eq!(members, (1..=4).filter(|id| *id != leader.id()).collect());
    let stays = cluster.others(leader.id()).next().unwrap();
    let goes = cluster.running().find(|node| node.id() != stays.id() && node.id() != 4).unwrap();
    goes.kill().unwrap();
    held.is_known_to(new).await;
    let later = Held::new(stays, "after").await;
    new.restart().unwrap();
    new.ready().await.unwrap();
    later.is_known_to(new).await;
}

#[tokio::test]
async fn a_wiped_node_is_removed_and_added_again_under_its_old_id() {
    let cluster = cluster().start().await.unwrap();
    let held = Held::new(cluster.node(1), "before").await;
    for wiped in cluster.nodes() {
        wiped.start_anew().unwrap();
        let other = cluster.others(wiped.id()).next().unwrap();
        let peer = wiped.peer().to_string();
        let look = || async {
            let view = other.client().cluster().await.done();
            view.leader.is_some_and(|leader| leader != wiped.id()).then_some(())
        };
        until(SOON, "another node leads", look).await.unwrap();
        held.is_known_to(other).await;
        let is_refused = async || {
            let reason = refusal(&add(other, wiped.id(), &peer).await, "members-refused");
            reason.contains("Remove node").then_some(())
        };
        until(SOON, "it is not added before it is removed", is_refused).await.unwrap();
        remove(other, wiped.id()).await;
        assert!(!wiped.client().is_ready().await);
        let add_it = || async { (add(other, wiped.id(), &peer).await.status == 204).then_some(()) };
        until(SOON, "it is added", add_it).await.unwrap();
        votes(other, wiped.id()).await;
        wiped.ready().await.unwrap();
        held.is_known_to(wiped).await;
    }
    // Nobody has a data directory from the beginning any more.
    cluster.kill_all().unwrap();
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    for node in cluster.nodes() {
        held.is_known_to(node).await;
    }
}

/// It refused the leader as the member that had been wiped, learned of nothing any more, and could help to elect nobody else.
#[tokio::test]
async fn a_node_that_was_away_follows_a_leader_that_was_taken_in_anew() {
    let cluster = cluster().nodes(5).start().await.unwrap();
    let (away, anew) = (cluster.node(5), cluster.node(2));
    away.kill().unwrap();
    anew.start_anew().unwrap();
    remove(cluster.node(1), 2).await;
    let peer = anew.peer().to_string();
    let add_it = || async { (add(cluster.node(1), 2, &peer).await.status == 204).then_some(()) };
    until(SOON, "node 2 is added", add_it).await.unwrap();
    votes(cluster.node(1), 2).await;
    let leads = || async {
        let transfer =
            cluster.node(1).client().raw("POST", "/v1/cluster/transfer", r#"{"to":2}"#).await.unwrap();
        (transfer.status == 204).then_some(())
    };
    until(SOON, "node 2 leads", leads).await.unwrap();

    away.start().unwrap();
    away.ready().await.unwrap();
    assert_eq!(cluster.leader().await.unwrap().id(), 2);
    // It is one of the three that are needed now.
    cluster.node(3).kill().unwrap();
    cluster.node(4).kill().unwrap();
    let held = Held::new(cluster.node(1), "after").await;
    held.is_known_to(away).await;
}

#[tokio::test]
async fn a_removal_that_would_stop_the_cluster_is_refused_unless_it_is_forced() {
    let cluster = cluster().start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let others: Vec<&Node> = cluster.others(leader.id()).collect();
    let (down, goes) = (others[0], others[1]);
    down.kill().unwrap();
    let answer =
        goes.client().raw("DELETE", &format!("/v1/cluster/members/{}", goes.id()), "").await.unwrap();
    let reason = refusal(&answer, "members-refused");
    assert!(reason.contains(&format!("Start {} again", down.id())), "{reason}");
    Held::new(goes, "granted").await;
    let client = leader.client();
    let path = format!("/v1/cluster/members/{}?force=true", goes.id());
    let patient = client.within(SOON);
    let forced = patient.raw("DELETE", &path, "");
    let (forced, ()) = tokio::join!(forced, async { down.start().unwrap() });
    assert!([204, 504].contains(&forced.unwrap().status));
    let removed = || async { (client.raw("DELETE", &path, "").await.ok()?.status == 204).then_some(()) };
    until(SOON, "it is removed", removed).await.unwrap();
    Held::new(leader, "granted").await;
}

#[tokio::test]
async fn the_leadership_goes_where_it_is_sent() {
    let cluster = cluster().start().await.unwrap();
    for _ in 0..2 {
        for to in 1..=3 {
            let through = cluster.node(to % 3 + 1).client();
            let answer =
                through.raw("POST", "/v1/cluster/transfer", json!({ "to": to }).to_string()).await.unwrap();
            assert_eq!(answer.status, 204, "{answer:?}");
            assert_eq!(cluster.leader().await.unwrap().id(), to);
        }
    }
    let answer = cluster.node(1).client().raw("POST", "/v1/cluster/transfer", "").await.unwrap();
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_ne!(cluster.leader().await.unwrap().id(), 3);
}

#[tokio::test]
async fn what_would_do_harm_is_refused_with_a_reason() {
    let cluster = cluster().nodes(1).joiners(2).start().await.unwrap();
    let lone = cluster.node(1);
    let peer = |id: u64| cluster.node(id).peer().to_string();
    let not_there = refusal(&add(lone, 2, &peer(2)).await, "members-refused");
    assert!(not_there.contains("does not answer") && not_there.contains("start it first"), "{not_there}");
    let elsewhere = refusal(&add(lone, 1, &peer(2)).await, "members-refused");
    assert!(elsewhere.contains("remove it first"), "{elsewhere}");
    let taken = refusal(&add(lone, 2, &peer(1)).await, "members-refused");
    assert!(taken.contains("is where node 1 is"), "{taken}");
    let answer = lone.client().raw("DELETE", "/v1/cluster/members/1", "").await.unwrap();
    assert!(refusal(&answer, "members-refused").contains("only voter"));
    let answer = lone.client().raw("POST", "/v1/cluster/transfer", r#"{"to":2}"#).await.unwrap();
    assert!(refusal(&answer, "members-refused").contains("no voter"));
    let answer = lone.client().raw("POST", "/v1/cluster/transfer", "").await.unwrap();
    assert!(refusal(&answer, "members-refused").contains("no other voter"));
    assert_eq!(lone.client().raw("DELETE", "/v1/cluster/members/7", "").await.unwrap().status, 204);
    let forced = lone.client().raw("DELETE", "/v1/cluster/members/1?force=true", "").await.unwrap();
    assert!(refusal(&forced, "members-refused").contains("only voter"));
    for (query, field) in [("force=1", "force"), ("forced=true", "forced")] {
        let answer =
            lone.client().raw("DELETE", &format!("/v1/cluster/members/7?{query}"), "").await.unwrap();
        let problem: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((answer.status, &problem["field"]), (400, &json!(field)), "{problem}");
    }
    for (body, field) in [
        (r#"{"id":0,"peer":"a:1"}"#, "id"),
        (r#"{"id":2,"peer":"a"}"#, "peer"),
        (r#"{"id":2,"peer":":1"}"#, "peer"),
        (r#"{"id":2,"peer":"a:0"}"#, "peer"),
        (r#"{"id":2}"#, "peer"),
        (r#"{"id":2,"peer":"a:1","x":1}"#, "x"),
    ] {
        let answer = lone.client().raw("POST", "/v1/cluster/members", body).await.unwrap();
        let problem: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((answer.status, &problem["field"]), (400, &json!(field)), "{body}: {problem}");
    }
    let answer = lone.client().raw("DELETE", "/v1/cluster/members/x", "").await.unwrap();
    assert_eq!((answer.status, refusal(&answer, "invalid-request").contains("`x`")), (400, true));
}

#[tokio::test]
async fn a_node_that_was_removed_is_not_taken_in_again_with_its_old_data() {
    let cluster = cluster().nodes(1).joiners(1).start().await.unwrap();
    let (lone, new) = (cluster.node(1), cluster.node(2));
    new.start().unwrap();
    let peer = new.peer().to_string();
    let add_it = || async { (add(lone, 2, &peer).await.status == 204).then_some(()) };
    until(SOON, "node 2 is added", add_it).await.unwrap();
    votes(lone, 2).await;
    remove(lone, 2).await;
    let reason = refusal(&add(lone, 2, &peer).await, "members-refused");
    assert!(reason.contains("data of its own"), "{reason}");
    new.start_anew().unwrap();
    until(SOON, "node 2 is added again", add_it).await.unwrap();
    votes(lone, 2).await;
}
