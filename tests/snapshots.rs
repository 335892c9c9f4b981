//! Snapshots: the log stays short, a node far behind catches up by one, and a damaged one is never taken for a whole one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ringfence_harness::{Builder, Cluster, Disk, Node, churn, cut_power, may_mount, until};
use serde_json::Value;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);
/// A snapshot is taken after so much log; a segment of the log is as large.
const AFTER: u64 = 1 << 20;
/// Enough for two snapshots, a third in the making, and the log.
const DISK_BYTES: u64 = 256 << 20;

fn cluster() -> Builder {
    Cluster::builder(env!("CARGO_BIN_EXE_ringfence")).argument(format!("--snapshot-after-bytes={AFTER}"))
}

/// The generations on a node's disk, the oldest first.
fn generations(node: &Node) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(node.data().join("snapshots"))
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    paths.retain(|path| path.file_name().unwrap().len() == 20);
    paths.sort();
    paths
}

fn log_bytes(node: &Node) -> u64 {
    let sizes = fs::read_dir(node.data().join("log")).unwrap();
    // One may be deleted meanwhile.
    sizes.map(|entry| entry.unwrap().metadata().map_or(0, |file| file.len())).sum()
}

fn inspect(node: &Node, arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
    let output = command
        .arg("inspect")
        .args(arguments)
        .args(["-o", "json", "--data"])
        .arg(node.data())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The snapshots that can be used, the newest first.
fn usable(node: &Node) -> Vec<u64> {
    let view = inspect(node, &["snapshot"]);
    view["snapshots"].as_array().unwrap().iter().map(|snapshot| snapshot["index"].as_u64().unwrap()).collect()
}

/// Flips a bit in the checksum that a usable snapshot has of its table: most of what is in sled's file is left behind.
fn damage(node: &Node, index: u64) {
    let state = inspect(node, &["state", "--index", &index.to_string()]);
    let hex = state["blake3"].as_str().unwrap().as_bytes();
    let byte = |digits| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
    let checksum: Vec<u8> = hex.chunks(2).map(byte).collect();
    let path = node.data().join(format!("snapshots/{index:020}/db"));
    let mut bytes = fs::read(&path).unwrap();
    let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&checksum)).collect();
    assert!(!places.is_empty(), "no {checksum:?} in {}", path.display());
    for place in places {
        bytes[place] ^= 1;
    }
    fs::write(&path, bytes).unwrap();
}

#[tokio::test]
async fn the_log_stays_short_under_load_and_a_restart_goes_on_from_a_snapshot() {
    let cluster = cluster().start().await.unwrap();
    let kept = churn(&cluster, "bounded", 16 * AFTER).await;
    for node in cluster.nodes() {
        // What came since the older of two snapshots, and a segment more at either end.
        let short = || async { (generations(node).len() == 2 && log_bytes(node) <= 5 * AFTER).then_some(()) };
        let what = format!("node {}: two snapshots, and little log: {}", node.id(), log_bytes(node));
        until(SOON, what, short).await.unwrap();
    }
    cluster.kill_all().unwrap();
    let newest: Vec<u64> = cluster.nodes().iter().map(newest_index).collect();
    let states = |index: u64| {
        let state = move |node: &Node| {
            let index = index.to_string();
            inspect(node, &["state", "--index", &index])["blake3"].to_string()
        };
        cluster.nodes().iter().map(state).collect::<Vec<_>>()
    };
    let states = states(*newest.iter().max().unwrap());
    assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    for node in cluster.nodes() {
        assert!(node.log().contains("snapshot read"));
        kept.check(node).await;
    }
}

fn newest_index(node: &Node) -> u64 {
    let newest = inspect(node, &["snapshot"])["snapshots"][0]["index"].as_u64().unwrap();
    assert!(generations(node).last().unwrap().ends_with(format!("{newest:020}")));
    newest
}

#[tokio::test]
async fn a_node_far_behind_is_sent_a_snapshot_and_then_counts_like_any_other() {
    let cluster = cluster().start().await.unwrap();
    let leader = cluster.leader().await.unwrap().id();
    let behind = cluster.others(leader).next().unwrap();
    let mut kept = churn(&cluster, "before", 2 * AFTER).await;
    behind.kill().unwrap();
    kept.add(churn(&cluster, "without", 8 * AFTER).await);
    behind.start().unwrap();
    kept.add(churn(&cluster, "meanwhile", 2 * AFTER).await);
    cluster.ready().await.unwrap();
    assert!(behind.log().contains("snapshot installed"), "{}", behind.log());
    kept.check(behind).await;
    // Now it is needed for a quorum.
    let other = cluster.others(leader).find(|node| node.id() != behind.id()).unwrap();
    other.kill().unwrap();
    kept.check(behind).await;
    behind.restart().unwrap();
    behind.ready().await.unwrap();
    kept.check(behind).await;
}

#[tokio::test]
async fn a_node_with_a_damaged_snapshot_goes_on_from_the_older_one_and_without_any_refuses() {
    let cluster = cluster().start().await.unwrap();
    let kept = churn(&cluster, "damaged", 8 * AFTER).await;
    let node = cluster.node(2);
    let two = || async { (generations(node).len() == 2).then_some(()) };
    until(SOON, "two snapshots", two).await.unwrap();
    node.kill().unwrap();
    damage(node, usable(node)[0]);
    let view = inspect(node, &["snapshot"]);
    assert_eq!(
        (view["snapshots"].as_array().unwrap().len(), view["unusable"].as_array().unwrap().len()),
        (1, 1)
    );
    node.start().unwrap();
    node.ready().await.unwrap();
    assert!(node.log().contains("this snapshot cannot be used"), "{}", node.log());
    cluster.node(3).kill().unwrap();
    kept.check(node).await;
    cluster.node(3).start().unwrap();
    cluster.ready().await.unwrap();

    node.kill().unwrap();
    // The one that was damaged before is still there, unless another was taken meanwhile. Newest first: what a snapshot
    // should be is found out from it, or from one before it.
    for index in usable(node) {
        damage(node, index);
    }
    let refused = node.start_in_vain().await.unwrap();
    assert_eq!(refused.status.code(), Some(1));
    for reason in ["the snapshots of this node cannot be used", "is damaged", "add it under a new id"] {
        assert!(refused.output.contains(reason), "{reason} is missing in:\n{}", refused.output);
    }
    kept.check(cluster.node(1)).await;
}

/// A cluster whose nodes have disks of their own, by id from 1.
async fn with_disks() -> (Cluster, Vec<Disk>) {
    let cluster = cluster().lay_out().await.unwrap();
    let disks = Disk::of_each(&cluster, DISK_BYTES).unwrap();
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    (cluster, disks)
}

/// Waits until this node writes a snapshot, or receives one: something is in the making then, or was just now.
async fn is_at_it(node: &Node) {
    let (path, before) = (node.data().join("snapshots"), generations(node));
    let look = || async {
        let mut entries = fs::read_dir(&path).ok()?;
        let begun = entries.any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("new-"));
        (begun || generations(node).last() > before.last()).then_some(())
    };
    until(SOON, format!("node {} writes a snapshot", node.id()), look).await.unwrap();
}

#[tokio::test]
async fn a_power_cut_while_a_snapshot_is_taken_takes_nothing_that_was_acknowledged() {
    if !may_mount() {
        return;
    }
    let (cluster, disks) = with_disks().await;
    let cuts = async {
        for round in 0..4 {
            let id = round % 3 + 1;
            is_at_it(cluster.node(id)).await;
            // Earlier and later in it, and just after it.
            tokio::time::sleep(Duration::from_millis(150 * round)).await;
            cut_power(&cluster.nodes().iter().collect::<Vec<_>>(), &disks).await.unwrap();
            cluster.ready().await.unwrap();
        }
    };
    let (kept, ()) = tokio::join!(churn(&cluster, "taking", 10 * AFTER), cuts);
    for node in cluster.nodes() {
        kept.check(node).await;
    }
}

#[tokio::test]
async fn a_power_cut_while_a_snapshot_is_installed_leaves_a_node_that_catches_up() {
    if !may_mount() {
        return;
    }
    let (cluster, disks) = with_disks().await;
    let leader = cluster.leader().await.unwrap().id();
    let behind = cluster.others(leader).next().unwrap();
    let mut kept = churn(&cluster, "before", AFTER).await;
    for round in 0..3 {
        behind.kill().unwrap();
        kept.add(churn(&cluster, &format!("without/{round}"), 4 * AFTER).await);
        behind.start().unwrap();
        is_at_it(behind).await;
        tokio::time::sleep(Duration::from_millis(100 * round)).await;
        cut_power(&[behind], &disks).await.unwrap();
        behind.ready().await.unwrap();
        kept.check(behind).await;
    }
    // Now it is needed for a quorum.
    cluster.others(behind.id()).next().unwrap().kill().unwrap();
    kept.check(behind).await;
}
