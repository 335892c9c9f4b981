//! What is neither dead nor alive: links that are slow. In virtual time, as in `simulated.rs`.

// Helpers of tests may unwrap as tests do, and have real ids and time unless they simulate them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::array;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_lease::Command;
use ringfence_raft::{Handle, Node, Random, Settings, Unanswered};
use support::memory_disk::MemoryDisk;
use support::network::Network;
use support::{Cluster, acquire, address, grant, id, lead, settings, simulate, until};
use tempfile::TempDir;
use tokio::task::JoinHandle;

const LATENCY: Duration = Duration::from_millis(20);

fn disks() -> [MemoryDisk; 3] {
    array::from_fn(|_| MemoryDisk::default())
}

/// Three nodes, of which the first leads. They take a snapshot after so many bytes of log.
async fn start(disks: &[MemoryDisk; 3], snapshot_after_bytes: u64) -> Cluster {
    let (dir, network) = (TempDir::new().unwrap(), Network::new(LATENCY));
    let starts = (1..).zip(disks).map(|(id, disk)| {
        let given = settings(id, dir.path().join(id.to_string()), network.port(&address(id)), 3);
        let (storage, random) = (Arc::new(disk.clone()), Random::seeded(id));
        let settings = Settings { storage, random, snapshot_after_bytes, ..given };
        async move { (id, Node::start(settings).await.unwrap()) }
    });
    let nodes: BTreeMap<_, _> = join_all(starts).await.into_iter().collect();
    let cluster = Cluster { dir, nodes, network };
    let first = cluster.handle(1);
    until("the cluster has started", || first.view(|table| table.started())).await;
    lead(&first, 1).await;
    until("it takes commands", || first.leads().borrow().is_some()).await;
    cluster
}

/// About 5 KB in one entry.
fn large(lease: u128) -> Vec<Command> {
    (0..50).map(|n| acquire(lease + n, &format!("{:0100}", lease + n), 0)).collect()
}

fn propose(handle: &Handle, commands: Vec<Command>) -> JoinHandle<Result<(), Unanswered>> {
    let handle = handle.clone();
    tokio::spawn(async move { handle.propose(commands).await.map(drop) })
}

/// The leader kept all that a slow node had not got yet in memory, and never sent it a snapshot.
#[tokio::test(start_paused = true)]
async fn a_leader_keeps_no_more_of_its_log_in_memory_for_a_node_behind_a_slow_link() {
    const AFTER: u64 = 64 << 10;
    let disks = disks();
    simulate(&disks, async {
        let cluster = start(&disks, AFTER).await;
        let (leader, slow) = (cluster.handle(1), cluster.handle(3));
        propose(&leader, large(1_000)).await.unwrap().unwrap();
        cluster.network.throttle("node-1", "node-3", 10_000.0);
        let (mut most, mut written) = (0, 0);
        while written < 20 * AFTER {
            // The table stays as it is: a snapshot of it is small.
            propose(&leader, large(1_000)).await.unwrap().unwrap();
            written += 5_000;
            most = most.max(leader.log_bytes_in_memory());
        }
        assert!(most < 8 * AFTER, "{most} bytes of {written}");
        grant(&leader, 1, "a").await;
        until("the slow node has it", || slow.view(|table| table.lease(None, id(1), None).is_ok())).await;
        assert_eq!(leader.status().leader, Some(1));
    })
    .await;
}
