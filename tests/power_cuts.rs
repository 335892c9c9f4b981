//! The power of nodes fails under load, one node or all: what was acknowledged is there afterwards.
//!
//! Each node has a disk with a write cache. It is stopped, the disk is cut off from its cache, and the node goes on with
//! what is left: what was written and not synced is not in it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use ringfence_harness::{Cluster, Disk, Load, Node, cut_power, may_mount};

/// More than any log here becomes.
const DISK_BYTES: u64 = 96 << 20;

/// A cluster whose nodes have disks of their own, by id from 1. Nothing is started.
async fn with_disks() -> (Cluster, Vec<Disk>) {
    let cluster = Cluster::builder(env!("CARGO_BIN_EXE_ringfence")).lay_out().await.unwrap();
    let disk = |node: &Node| Disk::with_write_cache(node.data(), DISK_BYTES).unwrap();
    let disks = cluster.nodes().iter().map(disk).collect();
    (cluster, disks)
}

#[tokio::test]
async fn a_power_cut_of_all_nodes_takes_nothing_that_was_acknowledged() {
    if !may_mount() {
        return;
    }
    let (cluster, disks) = with_disks().await;
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    let load = Load::start(&cluster, "load");
    // The first right after the first grant: all that founding the cluster has made must be on disk.
    for round in 0..6 {
        load.more(1 + round * 211 % 400).await.unwrap();
        cut_power(&cluster.nodes().iter().collect::<Vec<_>>(), &disks).await.unwrap();
        cluster.ready().await.unwrap();
    }
    load.end().await.check(&cluster).await;
}

#[tokio::test]
async fn a_power_cut_of_one_node_takes_nothing_that_was_acknowledged() {
    if !may_mount() {
        return;
    }
    let (cluster, disks) = with_disks().await;
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    let load = Load::start(&cluster, "load");
    for round in 0..6 {
        load.more(50 + round * 211 % 400).await.unwrap();
        let leader = cluster.leader().await.unwrap();
        let victim = if round % 2 == 0 { leader } else { cluster.others(leader.id()).next().unwrap() };
        cut_power(&[victim], &disks).await.unwrap();
        cluster.ready().await.unwrap();
    }
    load.end().await.check(&cluster).await;
}
