//! Snapshots: they keep the log short, bring up nodes that are far behind, and are never used if damaged.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ringfence_harness::{
    Builder, Cluster, Disk, Node, churn, churn_past, churn_until, cut_power, may_mount, until,
};
use serde_json::Value;

use crate::support::end::{self, ringfence};
use crate::support::{PROGRAM, SOON};

/// A snapshot is taken after this much log; a segment has this size.
const AFTER: u64 = 1 << 20;
/// Enough for two snapshots, an unfinished third, and the log.
const DISK_BYTES: u64 = 256 << 20;

fn cluster() -> Builder {
    Cluster::builder(PROGRAM).argument(format!("--snapshot-after-bytes={AFTER}"))
}

fn log_bytes(node: &Node) -> u64 {
    // A segment may be deleted meanwhile.
    node.segments().iter().map(|path| path.metadata().map_or(0, |file| file.len())).sum()
}

fn inspect(node: &Node, words: &str) -> Value {
    end::run(ringfence(&format!("inspect {words} -o json --data")).arg(node.data())).json()
}

/// The indices of the usable snapshots, the newest first.
fn usable(node: &Node) -> Vec<u64> {
    let view = inspect(node, "snapshot");
    view["snapshots"].as_array().unwrap().iter().map(|snapshot| snapshot["index"].as_u64().unwrap()).collect()
}

/// Flips a bit in the checksum of a usable snapshot: most other bytes in sled's file are stale.
fn damage(node: &Node, index: u64) {
    let state = inspect(node, &format!("state --index {index}"));
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
#[ignore = "slow"]
async fn the_log_stays_short_under_load_and_a_restart_reads_a_snapshot() {
    let cluster = cluster().start().await.unwrap();
    let mut kept = churn(&cluster, "bounded", 16 * AFTER).await;
    // The entries since the older of two snapshots, and a segment more at either end.
    let is_short = |node: &Node| node.snapshots().len() == 2 && log_bytes(node) <= 5 * AFTER;
    let all_short = || cluster.nodes().iter().all(is_short);
    kept.add(churn_until(&cluster, "bounded/more", all_short).await);
    cluster.caught_up(SOON).await.unwrap();
    cluster.kill_all().unwrap();
    let newest: Vec<u64> = cluster.nodes().iter().map(newest_index).collect();
    let states = |index: u64| {
        let state = move |node: &Node| inspect(node, &format!("state --index {index}"))["blake3"].to_string();
        cluster.nodes().iter().map(state).collect::<Vec<_>>()
    };
    let states = states(*newest.iter().max().unwrap());
    assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
    cluster.all_ready().await.unwrap();
    for node in cluster.nodes() {
        node.tells("snapshot read").await.unwrap();
        kept.check(node).await;
    }
}

fn newest_index(node: &Node) -> u64 {
    let newest = inspect(node, "snapshot")["snapshots"][0]["index"].as_u64().unwrap();
    assert!(node.snapshots().last().unwrap().ends_with(format!("{newest:020}")));
    newest
}

#[tokio::test]
#[ignore = "slow"]
async fn a_node_far_behind_gets_a_snapshot_and_then_counts_for_a_quorum() {
    let cluster = cluster().start().await.unwrap();
    let leader = cluster.leader().await.unwrap().id();
    let behind = cluster.others(leader).next().unwrap();
    let mut kept = churn(&cluster, "before", 2 * AFTER).await;
    behind.kill().unwrap();
    kept.add(churn_past(&cluster, "without").await);
    behind.start().unwrap();
    kept.add(churn(&cluster, "meanwhile", 2 * AFTER).await);
    cluster.ready().await.unwrap();
    behind.tells("snapshot installed").await.unwrap();
    kept.check(behind).await;
    // Now a quorum needs it.
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
    let node = cluster.node(2);
    let kept = churn_until(&cluster, "damaged", || node.snapshots().len() == 2).await;
    node.kill().unwrap();
    damage(node, usable(node)[0]);
    let view = inspect(node, "snapshot");
    assert_eq!(
        (view["snapshots"].as_array().unwrap().len(), view["unusable"].as_array().unwrap().len()),
        (1, 1)
    );
    node.start().unwrap();
    node.ready().await.unwrap();
    node.tells("this snapshot cannot be used").await.unwrap();
    cluster.node(3).kill().unwrap();
    kept.check(node).await;
    cluster.node(3).start().unwrap();
    cluster.ready().await.unwrap();

    node.kill().unwrap();
    // The damaged one is still there, unless another was taken meanwhile. Newest first, because the checksum of a snapshot is
    // computed from it or from an older one.
    for index in usable(node) {
        damage(node, index);
    }
    let refused = node.start_in_vain().await.unwrap();
    assert_eq!(refused.status.code(), Some(2));
    for reason in ["the snapshots of this node cannot be used", "is damaged", "add it again"] {
        assert!(refused.output.contains(reason), "{reason} is missing in:\n{}", refused.output);
    }
    kept.check(cluster.node(1)).await;
}

/// The leader once sent the damaged one for ever, and nobody said so.
#[tokio::test]
async fn a_leader_with_a_damaged_snapshot_names_it_and_sends_a_new_one() {
    let cluster = Cluster::builder(PROGRAM).joiners(1).lay_out().await.unwrap();
    let founders = &cluster.nodes()[..3];
    for node in founders {
        let often = |command: &mut Command| {
            command.env("RINGFENCE_SNAPSHOT_AFTER_BYTES", AFTER.to_string());
        };
        node.start_with(often).unwrap();
    }
    cluster.ready().await.unwrap();
    let all_have = || founders.iter().all(|node| node.snapshots().len() == 2);
    let kept = churn_until(&cluster, "cut", all_have).await;
    // From now on they take none for any other reason.
    for node in founders {
        node.restart().unwrap();
        node.ready().await.unwrap();
    }
    cluster.ready().await.unwrap();
    // Whoever leads has a damaged one.
    let damaged: Vec<_> = founders.iter().map(|node| node.snapshots().pop().unwrap()).collect();
    for path in &damaged {
        fs::write(path.join("db"), "").unwrap();
    }
    let (new, leader) = (cluster.node(4), cluster.leader().await.unwrap());
    new.start().unwrap();
    let add = || async {
        let body = format!("{{\"id\": 4, \"peer\": \"{}\"}}", new.peer());
        let answer = leader.client().raw("POST", "/v1/cluster/members", body).await.ok()?;
        (answer.status == 204).then_some(())
    };
    until(SOON, "node 4 is added", add).await.unwrap();
    new.ready().await.unwrap();
    kept.check(new).await;
    let named = |(node, path): (&Node, &PathBuf)| {
        node.log().contains(&format!("the snapshot {} of this node cannot be read", path.display()))
    };
    assert!(cluster.nodes().iter().zip(&damaged).any(named), "no node has named it");
}

/// A cluster whose nodes have separate disks.
async fn with_disks() -> (Cluster, Vec<Disk>) {
    let cluster = cluster().lay_out().await.unwrap();
    let disks = Disk::of_each(&cluster, DISK_BYTES).unwrap();
    cluster.all_ready().await.unwrap();
    (cluster, disks)
}

/// Waits until this node writes or receives a snapshot, or has just done so.
async fn writes_a_snapshot(node: &Node) {
    let (path, before) = (node.data().join("snapshots"), node.snapshots());
    let look = || async {
        let mut entries = fs::read_dir(&path).ok()?;
        let begun = entries.any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("new-"));
        (begun || node.snapshots().last() > before.last()).then_some(())
    };
    until(SOON, format!("node {} writes a snapshot", node.id()), look).await.unwrap();
}

#[tokio::test]
#[ignore = "slow"]
async fn a_power_cut_while_a_snapshot_is_taken_loses_nothing_acknowledged() {
    if !may_mount() {
        return;
    }
    let (cluster, disks) = with_disks().await;
    let over = Cell::new(false);
    let cuts = async {
        for round in 0..4 {
            let id = round % 3 + 1;
            writes_a_snapshot(cluster.node(id)).await;
            // At different moments of it, and just after it.
            tokio::time::sleep(Duration::from_millis(150 * round)).await;
            cut_power(&cluster.nodes().iter().collect::<Vec<_>>(), &disks).await.unwrap();
            cluster.ready().await.unwrap();
        }
        over.set(true);
    };
    let (kept, ()) = tokio::join!(churn_until(&cluster, "taking", || over.get()), cuts);
    for node in cluster.nodes() {
        kept.check(node).await;
    }
}

#[tokio::test]
#[ignore = "slow"]
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
        kept.add(churn_past(&cluster, &format!("without/{round}")).await);
        behind.start().unwrap();
        writes_a_snapshot(behind).await;
        tokio::time::sleep(Duration::from_millis(100 * round)).await;
        cut_power(&[behind], &disks).await.unwrap();
        behind.ready().await.unwrap();
        kept.check(behind).await;
    }
    // Now a quorum needs it.
    cluster.others(behind.id()).next().unwrap().kill().unwrap();
    kept.check(behind).await;
}
