//! Snapshots: the log stays short, a node far behind catches up by one, and a damaged one is never taken for a whole one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_harness::{Acquired, Answered, Builder, Client, Cluster, Node, definite, key, try_once, until};
use ringfence_wire::{AcquireRequest, Claim, LeaseId, Mode, Token};
use serde_json::Value;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);
/// A snapshot is taken after so much log; a segment of the log is as large.
const AFTER: u64 = 1 << 20;
/// Clients that work at once.
const WORKERS: u64 = 8;

fn cluster() -> Builder {
    Cluster::builder(env!("CARGO_BIN_EXE_ringfence")).argument(format!("--snapshot-after-bytes={AFTER}"))
}

/// About 15 KB of keys.
fn large(name: &str) -> AcquireRequest {
    let claim =
        |part| Claim { key: key(&format!("{name}/{part}/{}", "x".repeat(220))), mode: Mode::Exclusive };
    AcquireRequest { keys: (0..64).map(claim).collect(), ..try_once("replaced") }
}

async fn acquire(client: &Client, lease: LeaseId, wish: &AcquireRequest) -> Token {
    let reply = definite(SOON, || client.acquire(lease, wish)).await.unwrap();
    match Ok(reply).done() {
        Acquired::Granted(grant) | Acquired::Standing(grant) => grant.token,
        other => panic!("{other:?}"),
    }
}

/// Writes so many bytes of log, of which little stays: every worker keeps one small lease for every ten large ones that
/// it releases. Gives those that are kept.
async fn churn(clients: &[Client], name: &str, bytes: u64) -> BTreeMap<LeaseId, (String, Token)> {
    let each = bytes / 15_000 / WORKERS;
    let workers = (0..WORKERS).map(|worker| async move {
        let client = &clients[worker as usize % clients.len()];
        let mut kept = BTreeMap::new();
        for number in 0..each {
            let (lease, name) = (LeaseId::random(), format!("{name}/{worker}/{number}"));
            acquire(client, lease, &large(&name)).await;
            definite(SOON, || client.release(lease)).await.unwrap();
            if number % 10 == 0 {
                let lease = LeaseId::random();
                kept.insert(lease, (name.clone(), acquire(client, lease, &try_once(&name)).await));
            }
        }
        kept
    });
    join_all(workers).await.into_iter().flatten().collect()
}

/// That all of them are still granted, with the same tokens, and that the next token is larger.
async fn check(client: &Client, kept: &BTreeMap<LeaseId, (String, Token)>) {
    for (lease, (name, token)) in kept {
        assert_eq!(acquire(client, *lease, &try_once(name)).await, *token, "{name}");
    }
    let next = acquire(client, LeaseId::random(), &try_once(&format!("next/{}", LeaseId::random()))).await;
    assert!(kept.values().all(|(_, token)| *token < next));
}

fn clients(cluster: &Cluster) -> Vec<Client> {
    cluster.running().map(Node::client).collect()
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

/// Flips a bit in the middle of the database of a generation.
fn damage(generation: &Path) {
    let path = generation.join("db");
    let mut bytes = fs::read(&path).unwrap();
    let written = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[written / 2] ^= 1;
    fs::write(&path, bytes).unwrap();
}

#[tokio::test]
async fn the_log_stays_short_under_load_and_a_restart_goes_on_from_a_snapshot() {
    let cluster = cluster().start().await.unwrap();
    let kept = churn(&clients(&cluster), "bounded", 24 * AFTER).await;
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
            inspect(node, &["state", "--index", &index])["sha256"].to_string()
        };
        cluster.nodes().iter().map(state).collect::<Vec<_>>()
    };
    let states = states(*newest.iter().max().unwrap());
    assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    for node in cluster.nodes() {
        assert!(node.log().contains("snapshot read"));
        check(&node.client(), &kept).await;
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
    let mut kept = churn(&clients(&cluster), "before", 2 * AFTER).await;
    behind.kill().unwrap();
    kept.extend(churn(&clients(&cluster), "without", 8 * AFTER).await);
    behind.start().unwrap();
    kept.extend(churn(&clients(&cluster), "meanwhile", 2 * AFTER).await);
    cluster.ready().await.unwrap();
    assert!(behind.log().contains("snapshot installed"), "{}", behind.log());
    check(&behind.client(), &kept).await;
    // Now it is needed for a quorum.
    let other = cluster.others(leader).find(|node| node.id() != behind.id()).unwrap();
    other.kill().unwrap();
    check(&behind.client(), &kept).await;
    behind.restart().unwrap();
    behind.ready().await.unwrap();
    check(&behind.client(), &kept).await;
}

#[tokio::test]
async fn a_node_with_a_damaged_snapshot_goes_on_from_the_older_one_and_without_any_refuses() {
    let cluster = cluster().start().await.unwrap();
    let kept = churn(&clients(&cluster), "damaged", 8 * AFTER).await;
    let node = cluster.node(2);
    let two = || async { (generations(node).len() == 2).then_some(()) };
    until(SOON, "two snapshots", two).await.unwrap();
    node.kill().unwrap();
    let whole = generations(node);
    damage(&whole[1]);
    let view = inspect(node, &["snapshot"]);
    assert_eq!(
        (view["snapshots"].as_array().unwrap().len(), view["unusable"].as_array().unwrap().len()),
        (1, 1)
    );
    node.start().unwrap();
    node.ready().await.unwrap();
    assert!(node.log().contains("this snapshot cannot be used"), "{}", node.log());
    cluster.node(3).kill().unwrap();
    check(&node.client(), &kept).await;
    cluster.node(3).start().unwrap();
    cluster.ready().await.unwrap();

    node.kill().unwrap();
    for generation in generations(node) {
        damage(&generation);
    }
    let refused = node.start_in_vain().await.unwrap();
    assert_eq!(refused.status.code(), Some(1));
    for reason in ["the snapshots of this node cannot be used", "is damaged", "add it under a new id"] {
        assert!(refused.output.contains(reason), "{reason} is missing in:\n{}", refused.output);
    }
    check(&cluster.node(1).client(), &kept).await;
}
