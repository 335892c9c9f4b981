//! Power cuts of one node or all under load: everything acknowledged survives.
//!
//! Each node has a disk with a write cache. For a power cut, the node is stopped, its disk loses the cache, and the node starts
//! with what was synced.

use ringfence_harness::{Cluster, Disk, Load, Node, cut_power, may_mount};

use crate::support::PROGRAM;

/// More than any log here grows to.
const DISK_BYTES: u64 = 96 << 20;

/// Cuts the power of `victims` in each of 6 rounds, after `grants` more grants.
async fn cut_again_and_again<'a>(
    cluster: &'a Cluster,
    disks: &[Disk],
    victims: impl AsyncFn(u64) -> Vec<&'a Node>,
    grants: impl Fn(u64) -> u64,
) {
    cluster.all_ready().await.unwrap();
    let load = Load::start(cluster, "load");
    for round in 0..6 {
        load.more(grants(round)).await.unwrap();
        cut_power(&victims(round).await, disks).await.unwrap();
        cluster.ready().await.unwrap();
    }
    load.end().await.check(cluster).await;
}

async fn with_disks() -> (Cluster, Vec<Disk>) {
    let cluster = Cluster::builder(PROGRAM).lay_out().await.unwrap();
    let disks = Disk::of_each(&cluster, DISK_BYTES).unwrap();
    (cluster, disks)
}

#[tokio::test]
async fn a_power_cut_of_all_nodes_loses_nothing_that_was_acknowledged() {
    if !may_mount() {
        return;
    }
    let (cluster, disks) = with_disks().await;
    // The first cut is right after the first grant: what founding the cluster wrote must be on disk.
    let grants = |round| 1 + round * 211 % 400;
    cut_again_and_again(&cluster, &disks, async |_| cluster.nodes().iter().collect(), grants).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_power_cut_of_one_node_loses_nothing_that_was_acknowledged() {
    if !may_mount() {
        return;
    }
    let (cluster, disks) = with_disks().await;
    let victims = async |round: u64| {
        let leader = cluster.leader().await.unwrap();
        vec![if round.is_multiple_of(2) { leader } else { cluster.others(leader.id()).next().unwrap() }]
    };
    cut_again_and_again(&cluster, &disks, victims, |round| 50 + round * 211 % 400).await;
}
