//! `ringfence inspect`: what it says of stopped nodes is true, and changes nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ringfence_harness::{Acquired, Answered, Builder, Cluster, definite, try_once};
use ringfence_wire::LeaseId;
use serde_json::Value;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(30);

fn cluster() -> Builder {
    Cluster::builder(env!("CARGO_BIN_EXE_ringfence"))
}

fn inspect(data: &Path, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_ringfence");
    Command::new(program).arg("inspect").args(arguments).arg("--data").arg(data).output().unwrap()
}

fn inspect_json(data: &Path, arguments: &[&str]) -> Value {
    let output = inspect(data, &[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refusal(data: &Path, arguments: &[&str]) -> String {
    let output = inspect(data, arguments);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Acquires these keys, through all running nodes in turn, and gives the leases with their tokens.
async fn acquire(cluster: &Cluster, keys: std::ops::Range<u64>) -> BTreeMap<String, u64> {
    let mut tokens = BTreeMap::new();
    for key in keys {
        let (lease, wish) = (LeaseId::random(), try_once(&format!("inspected/{key}")));
        let client = cluster.running().nth(key as usize % cluster.running().count()).unwrap().client();
        let reply = definite(SOON, || client.acquire(lease, &wish)).await.unwrap();
        let Acquired::Granted(grant) = Ok(reply).done() else { panic!("not granted") };
        tokens.insert(lease.to_string(), grant.token.0);
    }
    tokens
}

/// All files under a folder, with what is in them.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    all
}

#[tokio::test]
async fn nodes_are_in_the_same_state_after_the_same_entry() {
    let cluster = cluster().start().await.unwrap();
    let mut tokens = acquire(&cluster, 0..10).await;
    cluster.leader().await.unwrap().kill().unwrap();
    tokens.extend(acquire(&cluster, 10..20).await);
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    cluster.kill_all().unwrap();

    let before: Vec<_> = cluster.nodes().iter().map(|node| files(&node.data())).collect();
    let logs: Vec<Value> = cluster.nodes().iter().map(|node| inspect_json(&node.data(), &["log"])).collect();
    let last =
        logs.iter().map(|log| log["entries"].as_array().unwrap().last().unwrap()["index"].as_u64().unwrap());
    let last = last.min().unwrap();
    let state = |data: &Path, index: u64| inspect_json(data, &["state", "--index", &index.to_string()]);
    let mut seen = BTreeSet::new();
    for index in [0, last / 2, last] {
        let states: Vec<Value> = cluster.nodes().iter().map(|node| state(&node.data(), index)).collect();
        for (id, view) in (1..).zip(&states) {
            assert_eq!((view["node_id"].as_u64(), view["index"].as_u64()), (Some(id), Some(index)));
            assert_eq!(view["sha256"], states[0]["sha256"], "{states:?}");
        }
        assert!(seen.insert(states[0]["sha256"].to_string()), "different states, one checksum");
    }
    assert_eq!(state(&cluster.node(1).data(), last)["live_leases"], tokens.len());
    for (node, before) in cluster.nodes().iter().zip(before) {
        let view = inspect_json(&node.data(), &["state"]);
        assert!(view["index"].as_u64().unwrap() <= last, "{view}");
        assert!(files(&node.data()) == before, "inspecting changes nothing");
    }

    let text = String::from_utf8(inspect(&cluster.node(2).data(), &["log"]).stdout).unwrap();
    for lease in tokens.keys() {
        assert!(text.contains(lease), "{lease} is missing in:\n{text}");
    }
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_shown_is_refused_with_a_reason() {
    let cluster = cluster().nodes(1).start().await.unwrap();
    let node = cluster.node(1);
    acquire(&cluster, 0..1).await;
    assert!(refusal(&node.data(), &["log"]).contains("in use by another process"));
    node.kill().unwrap();
    assert_eq!(inspect(&node.data(), &["snapshot"]).stdout, b"none\n");
    assert!(refusal(&node.data(), &["state", "--index", "4711"]).contains("entry 4711 cannot be told"));
    assert!(refusal(Path::new("/"), &["state"]).contains("not the data directory of a node"));

    let (path, mut bytes) = files(&node.data())
        .into_iter()
        .find(|(path, _)| path.extension().is_some_and(|it| it == "wal"))
        .unwrap();
    bytes[600] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let damaged = refusal(&node.data(), &["log"]);
    assert!(damaged.contains(path.to_str().unwrap()), "{damaged}");
}
