//! Membership changes, and nodes that lost their data and rejoin as new members.

use std::collections::BTreeSet;

use ringfence_harness::{Answered, Cluster, Node, RawAnswer, granted, try_once, until};
use ringfence_wire::{LeaseId, Token};
use serde_json::{Value, json};

use crate::support::{SOON, cluster};

/// A granted lease, and its token, which every repeat must return.
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

/// Asks once to add a node.
async fn add(through: &Node, id: u64, peer: &str) -> RawAnswer {
    let body = json!({ "id": id, "peer": peer }).to_string();
    through.client().raw("POST", "/v1/cluster/members", body).await.unwrap()
}

/// Repeats until the node is added.
async fn added(through: &Node, id: u64, peer: &str) {
    let look = || async { (add(through, id, peer).await.status == 204).then_some(()) };
    until(SOON, format!("node {id} is added"), look).await.unwrap();
}

/// Repeats while the leader hands over, or another is elected.
pub(crate) async fn remove(through: &Node, id: u64) {
    let look = || async {
        let answer = through.client().raw("DELETE", &format!("/v1/cluster/members/{id}"), "").await.unwrap();
        assert!([204, 503, 504].contains(&answer.status), "{answer:?}");
        (answer.status == 204).then_some(())
    };
    until(SOON, format!("node {id} is removed"), look).await.unwrap();
}

/// Makes `to` the leader, as its transfer through `through` and all nodes say; repeats if another is elected meanwhile.
async fn lead(cluster: &Cluster, through: &Node, to: u64) {
    let body = json!({ "to": to }).to_string();
    let look = || async {
        let transfer = through.client().raw("POST", "/v1/cluster/transfer", body.clone()).await.unwrap();
        (transfer.status == 204 && cluster.leader().await.unwrap().id() == to).then_some(())
    };
    until(SOON, format!("node {to} leads"), look).await.unwrap();
}

async fn votes(seen_by: &Node, id: u64) {
    let look = || async { seen_by.client().cluster().await.done().members.get(&id)?.voter.then_some(()) };
    until(SOON, format!("node {id} votes"), look).await.unwrap();
}

/// The reason of a refusal of this kind.
fn refusal(answer: &RawAnswer, name: &str) -> String {
    let problem: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["type"], format!("urn:ringfence:problem:{name}"), "{problem}");
    problem["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_new_node_catches_up_votes_and_replaces_an_old_one() {
    let cluster = cluster().joiners(1).start().await.unwrap();
    let new = cluster.node(4);
    let held = Held::new(cluster.node(1), "before").await;
    new.start().unwrap();
    added(cluster.node(2), 4, &new.peer().to_string()).await;
    // A repeat does no harm.
    added(cluster.node(3), 4, &new.peer().to_string()).await;
    votes(cluster.node(1), 4).await;
    new.ready().await.unwrap();
    held.is_known_to(new).await;

    // The leader is removed. Two of the remaining three are a majority, the new one among them.
    let leader = cluster.leader().await.unwrap();
    remove(cluster.others(leader.id()).next().unwrap(), leader.id()).await;
    leader.kill().unwrap();
    let left: BTreeSet<u64> = (1..=4).filter(|id| *id != leader.id()).collect();
    let knows = || async {
        let members = new.client().cluster().await.done().members;
        members.into_keys().eq(left.iter().copied()).then_some(())
    };
    until(SOON, "the new node knows the remaining members", knows).await.unwrap();
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
            let answer = add(other, wiped.id(), &peer).await;
            (answer.status == 409 && refusal(&answer, "members-refused").contains("Remove node"))
                .then_some(())
        };
        until(SOON, "it is not added before it is removed", is_refused).await.unwrap();
        remove(other, wiped.id()).await;
        assert!(!wiped.client().is_ready().await);
        added(other, wiped.id(), &peer).await;
        votes(other, wiped.id()).await;
        wiped.ready().await.unwrap();
        held.is_known_to(wiped).await;
    }
    // No node has its first data directory any more.
    cluster.kill_all().unwrap();
    cluster.all_ready().await.unwrap();
    for node in cluster.nodes() {
        held.is_known_to(node).await;
    }
}

/// Regression: it refused the leader as the wiped member, never caught up, and could not vote.
#[tokio::test]
async fn a_node_that_was_away_follows_a_leader_that_was_removed_and_added_again() {
    let cluster = cluster().nodes(5).start().await.unwrap();
    let (away, anew) = (cluster.node(5), cluster.node(2));
    away.kill().unwrap();
    anew.start_anew().unwrap();
    remove(cluster.node(1), 2).await;
    added(cluster.node(1), 2, &anew.peer().to_string()).await;
    votes(cluster.node(1), 2).await;
    lead(&cluster, cluster.node(1), 2).await;

    away.start().unwrap();
    away.ready().await.unwrap();
    // Another may have been elected meanwhile.
    lead(&cluster, cluster.node(1), 2).await;
    // Now it is one of the three nodes of a majority.
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
async fn the_leadership_is_transferred_to_the_given_node() {
    let cluster = cluster().start().await.unwrap();
    for _ in 0..2 {
        for to in 1..=3 {
            lead(&cluster, cluster.node(to % 3 + 1), to).await;
        }
    }
    let moves = || async {
        let answer = cluster.node(1).client().raw("POST", "/v1/cluster/transfer", "").await.unwrap();
        (answer.status == 204 && cluster.leader().await.unwrap().id() != 3).then_some(())
    };
    until(SOON, "another leads", moves).await.unwrap();
}

#[tokio::test]
async fn harmful_changes_are_refused_with_a_reason() {
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
async fn a_removed_node_is_not_added_again_with_its_old_data() {
    let cluster = cluster().nodes(1).joiners(1).start().await.unwrap();
    let (lone, new) = (cluster.node(1), cluster.node(2));
    new.start().unwrap();
    let peer = new.peer().to_string();
    added(lone, 2, &peer).await;
    votes(lone, 2).await;
    remove(lone, 2).await;
    let reason = refusal(&add(lone, 2, &peer).await, "members-refused");
    assert!(reason.contains("data of its own"), "{reason}");
    new.start_anew().unwrap();
    added(lone, 2, &peer).await;
    votes(lone, 2).await;
}
