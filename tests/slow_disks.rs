//! The disk of a node stalls for seconds, again and again. One of three holds up nobody, be it the leader's, which hands the
//! leadership over; a majority holds up the cluster, and with it its leases: none ends whose client asks for its renewal.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use ringfence_harness::{Answered, Cluster, Injection, Load, Node, may_inject, until};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);
/// How long a sync takes: longer than the leases live that the load renews.
const STALL: &str = "delay_enter=4000000";
/// How many syncs of each disk, at least.
const STALLS: usize = 2;
/// More grants than the load asks for between two syncs of a slow disk.
const MANY: u64 = 400;

/// Stalls the disks of the leader, if told so, and of so many followers, while the cluster is under load.
async fn stall(leader_is_slow: bool, slow_followers: usize) {
    if !may_inject() {
        return;
    }
    let cluster = Cluster::builder(env!("CARGO_BIN_EXE_ringfence")).start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let followers = cluster.others(leader.id()).take(slow_followers);
    let load = Load::start(&cluster, "load");
    load.more(100).await.unwrap();
    let mut stalled = Vec::new();
    for node in leader_is_slow.then_some(leader).into_iter().chain(followers) {
        stalled.push(Injection::start(node, "fdatasync", STALL).await.unwrap());
        until(SOON, "the flush that hangs is measured", || hangs(node)).await.unwrap();
    }
    if leader_is_slow && slow_followers == 0 {
        let other = cluster.others(leader.id()).next().unwrap();
        until(SOON, "another node leads", || leads_no_more(leader, other)).await.unwrap();
    }
    if let [stalled] = stalled.as_slice() {
        load.more(MANY).await.unwrap();
        // No client asks for its next lease before it has the last one.
        let syncs = stalled.count() as u64;
        assert!(syncs * Load::WORKERS < MANY, "{MANY} grants have waited for {syncs} syncs of the slow disk");
    }
    let look = || std::future::ready(stalled.iter().all(|stalled| stalled.count() >= STALLS).then_some(()));
    until(SOON, "some syncs of each disk have stalled", look).await.unwrap();
    drop(stalled);
    load.more(100).await.unwrap();
    cluster.ready().await.unwrap();
    load.end().await.check(&cluster).await;
}

/// Whether a flush is under way for longer than any that is well.
async fn hangs(node: &Node) -> Option<()> {
    let pending = node.metric("ringfence_raft_log_flush_pending_seconds").await.unwrap();
    (pending? > 2.0).then_some(())
}

/// Whether another than `node` leads, as `other` sees it.
async fn leads_no_more(node: &Node, other: &Node) -> Option<()> {
    let leader = other.client().cluster().await.done().leader;
    leader.is_some_and(|leader| leader != node.id()).then_some(())
}

#[tokio::test]
async fn a_leader_with_a_slow_disk_holds_up_nobody_and_ends_no_lease_that_is_renewed() {
    stall(true, 0).await;
}

#[tokio::test]
async fn a_follower_with_a_slow_disk_holds_up_nobody_and_ends_no_lease_that_is_renewed() {
    stall(false, 1).await;
}

#[tokio::test]
async fn a_majority_with_slow_disks_ends_no_lease_that_is_renewed() {
    stall(true, 1).await;
}

#[tokio::test]
async fn followers_with_slow_disks_end_no_lease_that_is_renewed() {
    stall(false, 2).await;
}
