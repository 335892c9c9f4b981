//! Data directories that were copied, or turned back to an earlier state.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_raft::{Handle, Node, NodeId, Settings, StartError, WallClock};
use tokio::time::timeout;

use crate::support::{Cluster, SOON, address, grant, id, lead, settings, until};

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

fn replace(old: &Path, new: &Path) {
    fs::remove_dir_all(old).unwrap();
    copy(new, old);
}

fn has(handle: &Handle, lease: u128) -> bool {
    handle.view(|table| table.lease(None, id(lease), None).is_ok())
}

async fn stop(cluster: &mut Cluster, id: NodeId) {
    cluster.nodes.remove(&id).unwrap().stop().await;
}

fn data(cluster: &Cluster, id: NodeId) -> PathBuf {
    cluster.dir.path().join(id.to_string())
}

/// Why a node ends.
async fn end(node: &Node) -> String {
    timeout(SOON, node.failed()).await.expect("the node goes on")
}

/// A node that recognised a copy once stopped as well.
async fn goes_on(node: &Node) {
    assert!(timeout(Duration::ZERO, node.failed()).await.is_err());
}

/// Three nodes, of which 1 leads and has met node 2 since `part` of that node's data directory was copied.
async fn with_copy(part: &str) -> (Cluster, PathBuf) {
    let mut cluster = Cluster::start(3).await;
    lead(&cluster.handle(1), 1).await;
    grant(&cluster.handle(1), 1, "a").await;
    stop(&mut cluster, 2).await;
    let kept = cluster.dir.path().join("copy");
    copy(&data(&cluster, 2).join(part), &kept);
    cluster.restart(2).await;
    let (second, third) = (cluster.handle(2), cluster.handle(3));
    let knows = |id| cluster.handle(id).status().members.get(&2).is_some_and(|it| it.lag_entries == Some(0));
    grant(&cluster.handle(1), 2, "2").await;
    until("the followers have the grant", || has(&second, 2) && has(&third, 2)).await;
    until("the leader knows that", || (1..=3).any(knows)).await;
    (cluster, kept)
}

/// It once was let in: its leader sent it what it lacked, and its vote counted, whatever it had forgotten.
#[tokio::test]
async fn an_earlier_copy_of_a_data_directory_is_refused_by_those_who_met_the_later_one() {
    let (mut cluster, kept) = with_copy("").await;
    stop(&mut cluster, 2).await;
    replace(&data(&cluster, 2), &kept);
    cluster.restart(2).await;
    let why = end(&cluster.nodes[&2]).await;
    assert!(why.contains("node 2 runs with a copy of its data directory"), "{why}");
    stop(&mut cluster, 2).await;
    let again = settings(2, data(&cluster, 2), cluster.network.port(&address(2)), 3);
    let refused = Node::start(again).await.err().unwrap();
    assert!(matches!(&refused, StartError::Dir(_)) && refused.is_final(), "{refused}");
    grant(&cluster.handle(1), 3, "c").await;
    for id in [1, 3] {
        goes_on(&cluster.nodes[&id]).await;
    }
}

/// A clone was once elected, and all requests were sent to the node that it was a clone of.
#[tokio::test]
async fn a_second_process_with_the_data_of_a_node_is_refused_and_the_node_goes_on() {
    let (cluster, kept) = with_copy("").await;
    let running = cluster.dir.path().join("running");
    copy(&data(&cluster, 2), &running);
    for (place, copied) in [("elsewhere", kept), ("there", running)] {
        let clone = settings(2, copied, cluster.network.port(place), 3);
        let clone = Node::start(clone).await.unwrap();
        let why = end(&clone).await;
        assert!(why.contains("copy"), "{place}: {why}");
        clone.stop().await;
    }
    lead(&cluster.handle(1), 2).await;
    grant(&cluster.handle(3), 3, "c").await;
    for node in cluster.nodes.values() {
        goes_on(node).await;
    }
}

/// The leader and the follower once made 1,700 connections a second, for ever, and no log said why.
#[tokio::test]
async fn a_follower_that_lost_what_it_acknowledged_is_named_and_stops() {
    let (cluster, why) = loop {
        let (mut cluster, kept) = with_copy("log").await;
        let (leader, term) = (cluster.handle(1), cluster.handle(1).status().term);
        stop(&mut cluster, 2).await;
        replace(&data(&cluster, 2).join("log"), &kept);
        cluster.restart(2).await;
        tokio::select! {
            why = end(&cluster.nodes[&2]) => break (cluster, why),
            // On a busy machine. What was acknowledged to the leader before, the new one does not know.
            () = until("another term", || leader.status().term != term) => {}
        }
    };
    assert!(why.contains("node 2 acknowledged the log up to entry"), "{why}");
    let refused = cluster.handle(1).status().members[&2].refused.clone();
    assert!(refused.is_some_and(|refused| refused.contains("acknowledged")));
    grant(&cluster.handle(1), 3, "c").await;
    for id in [1, 3] {
        goes_on(&cluster.nodes[&id]).await;
    }
}

/// The token of a grant that had been acknowledged was once granted again, to somebody else.
#[tokio::test]
async fn no_token_is_granted_twice_although_all_who_knew_of_it_are_gone() {
    let (mut cluster, kept) = with_copy("").await;
    let clock = Arc::new(AtomicU64::new(0));
    stop(&mut cluster, 3).await;
    let lost = grant(&cluster.handle(1), 7, "accounts/7").await;
    for id in [1, 2] {
        stop(&mut cluster, id).await;
    }
    replace(&data(&cluster, 2), &kept);
    // A little later.
    clock.store(lost.0.div_ceil(1_024), Ordering::Relaxed);
    for id in [2, 3] {
        let clock = Arc::clone(&clock);
        let wall_clock = WallClock::simulated(move || clock.load(Ordering::Relaxed));
        let port = cluster.network.port(&address(id));
        let node = Node::start(Settings { wall_clock, ..settings(id, data(&cluster, id), port, 3) }).await;
        cluster.nodes.insert(id, node.unwrap());
    }
    let token = grant(&cluster.handle(3), 8, "accounts/7").await;
    assert!(token > lost, "{token} after {lost}");

    // It once dropped what had been acknowledged, without a word.
    cluster.restart(1).await;
    let why = end(&cluster.nodes[&1]).await;
    assert!(why.contains("has lost what it acknowledged"), "{why}");
}
