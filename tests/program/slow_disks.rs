//! Disks that stall for seconds, repeatedly. One of three delays nobody: a leader with a slow disk hands over. A majority
//! delays the cluster, but its clock as well: no lease ends that its client renews.

use ringfence_harness::{Answered, Cluster, Injection, Load, Node, may_inject, until};

use crate::support::{PROGRAM, SOON};

/// The delay of a sync: longer than the TTL of the leases that the load renews.
const STALL: &str = "delay_enter=4000000";
/// At least this many syncs of each disk stall.
const STALLS: usize = 2;
/// More grants than the load requests between two syncs of a slow disk.
const MANY: u64 = 400;

/// Stalls the disks of the leader, if wanted, and of some followers, under load.
async fn stall(leader_is_slow: bool, slow_followers: usize) {
    if !may_inject() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
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
        // Each worker has one request at a time.
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

/// Whether a flush takes longer than any healthy one.
async fn hangs(node: &Node) -> Option<()> {
    let pending = node.metric("ringfence_raft_log_flush_pending_seconds").await.unwrap();
    (pending? > 2.0).then_some(())
}

/// Whether another node than `node` leads, according to `other`.
async fn leads_no_more(node: &Node, other: &Node) -> Option<()> {
    let leader = other.client().cluster().await.done().leader;
    leader.is_some_and(|leader| leader != node.id()).then_some(())
}

#[tokio::test]
#[ignore = "slow"]
async fn a_leader_with_a_slow_disk_delays_nobody_and_no_renewed_lease_ends() {
    stall(true, 0).await;
}

#[tokio::test]
async fn a_follower_with_a_slow_disk_delays_nobody_and_no_renewed_lease_ends() {
    stall(false, 1).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn with_a_majority_of_slow_disks_no_renewed_lease_ends() {
    stall(true, 1).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn with_slow_disks_of_all_followers_no_renewed_lease_ends() {
    stall(false, 2).await;
}
