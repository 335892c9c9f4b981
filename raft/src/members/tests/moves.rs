//! Members whose process starts at another address.

use ringfence_wire::LeaseId;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::*;
use crate::applied::state_machine::tests::copy;
use crate::unanswered::RETRY;

/// Starts a node with its data directory at an address that nobody else knows.
async fn move_to_another_address(cluster: &mut Cluster, id: NodeId) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = listener.local_addr().unwrap().to_string();
    let mut settings = cluster.settings(id, cluster.data(id), listener, false);
    settings.peers.insert(id, peer.clone());
    cluster.nodes.insert(id, Node::start(settings).await.unwrap());
    peer
}

fn recorded(cluster: &Cluster, at: NodeId, id: NodeId) -> String {
    cluster.handle(at).shared.members()[&id].peer.clone()
}

async fn until_ready(cluster: &Cluster, id: NodeId) {
    until("it is ready", async || cluster.handle(id).is_ready().await).await;
}

/// It was let in, though nobody could call it, and was elected when the leader died: all that was asked of the other node failed.
#[tokio::test]
async fn members_that_move_one_by_one_are_recorded_where_they_are() {
    let mut cluster = Cluster::start(3).await;
    for id in [2, 3, 1] {
        let (leader, other) = (id % 3 + 1, (id + 1) % 3 + 1);
        cluster.lead(leader).await;
        cluster.stop(id).await;
        let peer = move_to_another_address(&mut cluster, id).await;
        until_ready(&cluster, id).await;
        for at in [id, leader, other] {
            until("it is recorded", async || recorded(&cluster, at, id) == peer).await;
        }
        // Nobody but the record says where it is.
        cluster.lead(id).await;
        for at in 1..=3 {
            until_ready(&cluster, at).await;
        }
    }
    cluster.grants().await;
    // The lists of all are out of date, and a node is restarted where it is recorded.
    cluster.stop(2).await;
    cluster.lead(3).await;
    let listener = loop {
        match TcpListener::bind(recorded(&cluster, 3, 2)).await {
            Ok(listener) => break listener,
            Err(_) => sleep(RETRY).await,
        }
    };
    let settings = cluster.settings(2, cluster.data(2), listener, false);
    cluster.nodes.insert(2, Node::start(settings).await.unwrap());
    until_ready(&cluster, 2).await;
}

/// A copy of a member that stands still says the same of itself.
#[tokio::test]
async fn a_member_whose_old_address_is_silent_is_let_in_when_an_operator_says_where_it_is() {
    let mut cluster = Cluster::start(3).await;
    cluster.stop(2).await;
    let old = cluster.peers[&2].clone();
    let silent = cluster.listener(2).await;
    let peer = move_to_another_address(&mut cluster, 2).await;
    let leader = cluster.handle(1).shared;
    let refused = || cluster.handle(1).status().members[&2].refused.clone().unwrap_or_default();
    until("it is refused", async || refused().contains(&format!("ringfence cluster add 2 {peer}"))).await;
    assert!(refused().contains(&old), "{}", refused());
    let directory = &leader.peers.directory;
    let member = leader.members()[&2].clone();
    assert_eq!(directory.moved(2, &member).await, None);
    assert!(!cluster.handle(2).is_ready().await);

    let nobody = reason(cluster.handle(3).add_member(2, "127.0.0.1:1".to_owned()).await);
    assert!(nobody.contains("does not answer at 127.0.0.1:1"), "{nobody}");
    cluster.handle(3).add_member(2, peer.clone()).await.unwrap();
    assert_eq!(recorded(&cluster, 1, 2), peer);
    until_ready(&cluster, 2).await;
    drop(silent);
}

/// Once, a node that had been away let in what was left of a move that was undone, and both together lost what the others acknowledged.
#[tokio::test]
async fn a_node_that_was_away_does_not_take_what_is_left_of_a_move_for_a_member_that_stands_still() {
    let mut cluster = Cluster::start(3).await;
    for id in 1..=3 {
        cluster.stop(id).await;
    }
    let first = cluster.peers[&2].clone();
    let left = cluster.dir.path().join("left");
    // The two that find each other are a majority.
    let second = move_to_another_address(&mut cluster, 2).await;
    for peer in [&second, &first] {
        cluster.peers.insert(2, peer.clone());
        if *peer == first {
            cluster.stop(2).await;
            copy(&cluster.data(2), &left);
            cluster.restart(2).await;
        }
        cluster.restart(1).await;
        for at in [1, 2] {
            until("it is recorded", async || recorded(&cluster, at, 2) == *peer).await;
        }
        until_ready(&cluster, 2).await;
        if *peer == first {
            grant(&cluster.handle(1), 1).await;
        }
        cluster.stop(1).await;
    }
    cluster.stop(2).await;
    let silent = cluster.listener(2).await;
    cluster.restart(3).await;
    cluster.peers.insert(2, second.clone());
    let settings = cluster.settings(2, &left, cluster.listener(2).await, false);
    let copied = Node::start(settings).await.unwrap();
    cluster.peers.insert(2, first.clone());
    let refused = || {
        let members = cluster.handle(3).status().members;
        members.get(&2).and_then(|member| member.refused.clone()).unwrap_or_default()
    };
    until("it is refused", async || refused().contains("list that in --peers of node 3")).await;
    assert!(refused().contains(&first), "{}", refused());
    assert!(!copied.handle().is_ready().await);

    // The member goes on.
    drop(silent);
    cluster.restart(2).await;
    for id in [2, 3] {
        until_ready(&cluster, id).await;
    }
    assert_eq!(recorded(&cluster, 3, 2), first);
    let has =
        |at| cluster.handle(at).view(|table| table.lease(None, LeaseId::from_u128(1).unwrap(), None).is_ok());
    until("what was acknowledged is there", async || has(2) && has(3)).await;
    copied.stop().await;
}

/// The recorded addresses stayed, and a node that was added could not find the others by them.
#[tokio::test]
async fn if_all_move_and_all_lists_say_where_all_are_recorded_there() {
    let mut cluster = Cluster::start(3).await;
    let mut listeners = BTreeMap::new();
    for id in 1..=3 {
        cluster.stop(id).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        cluster.peers.insert(id, listener.local_addr().unwrap().to_string());
        listeners.insert(id, listener);
    }
    for (id, listener) in listeners {
        let settings = cluster.settings(id, cluster.data(id), listener, false);
        cluster.nodes.insert(id, Node::start(settings).await.unwrap());
    }
    for id in 1..=3 {
        until("all are recorded", async || {
            (1..=3).all(|at| recorded(&cluster, at, id) == cluster.peers[&id])
        })
        .await;
    }
    // It knows the others by the record alone.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = listener.local_addr().unwrap().to_string();
    let settings = Settings {
        peers: BTreeMap::from([(4, peer.clone())]),
        ..cluster.settings(4, cluster.data(4), listener, true)
    };
    let joining = tokio::spawn(Node::start(settings));
    until("it is added", async || cluster.handle(1).add_member(4, peer.clone()).await.is_ok()).await;
    cluster.nodes.insert(4, timeout(SOON, joining).await.unwrap().unwrap().unwrap());
    until("it votes", async || cluster.handle(1).shared.voters().contains(&4)).await;
    until_ready(&cluster, 4).await;
}
