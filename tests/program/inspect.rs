//! `ringfence inspect`: its output is correct, and it changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ringfence_harness::{
    Cluster, churn_until, definite, granted, key, queued, released, take, try_once, wait_for,
};
use ringfence_wire::{Holder, LeaseId, Mode, Token};
use serde_json::{Value, json};

use crate::support::{PROGRAM, SOON, cluster};

fn inspect(data: &Path, arguments: &[&str]) -> Output {
    let program = PROGRAM;
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

/// Acquires these keys through all running nodes in turn. Returns the tokens by lease.
async fn acquire(cluster: &Cluster, keys: std::ops::Range<u64>) -> BTreeMap<String, u64> {
    let mut tokens = BTreeMap::new();
    for key in keys {
        let client = cluster.running().nth(key as usize % cluster.running().count()).unwrap().client();
        let grant = take(&client, &format!("inspected/{key}")).await;
        tokens.insert(grant.lease_id.to_string(), grant.token.0);
    }
    tokens
}

/// All files in a folder, with their contents.
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
async fn nodes_have_equal_checksums_after_the_same_entry() {
    let cluster = cluster().start().await.unwrap();
    let mut tokens = acquire(&cluster, 0..10).await;
    cluster.leader().await.unwrap().kill().unwrap();
    tokens.extend(acquire(&cluster, 10..20).await);
    cluster.all_ready().await.unwrap();
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
            assert_eq!(view["blake3"], states[0]["blake3"], "{states:?}");
        }
        assert!(seen.insert(states[0]["blake3"].to_string()), "different states with equal checksums");
    }
    assert_eq!(state(&cluster.node(1).data(), last)["live_leases"], tokens.len());
    for (node, before) in cluster.nodes().iter().zip(before) {
        let view = inspect_json(&node.data(), &["state"]);
        assert!(view["index"].as_u64().unwrap() <= last, "{view}");
        assert!(files(&node.data()) == before, "inspect changed a file");
    }

    let text = String::from_utf8(inspect(&cluster.node(2).data(), &["log"]).stdout).unwrap();
    for lease in tokens.keys() {
        assert!(text.contains(lease), "{lease} is missing in:\n{text}");
    }
    cluster.all_ready().await.unwrap();
}

fn entries(log: &Value) -> Vec<u64> {
    log["entries"].as_array().unwrap().iter().map(|entry| entry["index"].as_u64().unwrap()).collect()
}

/// The revisions of all events. Each change has one, so none may be missing or repeated.
fn revisions(view: &Value) -> Vec<u64> {
    let told = view["events"].as_array().unwrap().iter().map(|event| event["revision"].as_u64().unwrap());
    let told: Vec<u64> = told.collect();
    assert!(told.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{told:?}");
    told
}

#[tokio::test]
async fn every_change_in_the_log_is_shown_and_equal_on_all_nodes() {
    let cluster = cluster().start().await.unwrap();
    let client = cluster.node(1).client();
    let [first, second, reader, vain] = [LeaseId::random(); 4].map(|_| LeaseId::random());
    let mut request = try_once("told/a");
    request.holder = Holder::new("worker 1");
    let token = granted(&client, first, &request).await.token.0;
    let other = cluster.node(2).client();
    let waiter =
        tokio::spawn(async move { granted(&other, second, &wait_for("told/a", 60_000)).await.token.0 });
    queued(&client, "told/a", 1).await;
    request = wait_for("told/a", 1);
    definite(SOON, || client.acquire(vain, &request)).await.unwrap();
    released(&client, first).await;
    let next = waiter.await.unwrap();
    request = try_once("told/b");
    request.keys[0].mode = Mode::Shared { limit: NonZeroU32::new(2) };
    let shared = granted(&client, reader, &request).await.token.0;
    let b = key("told/b");
    definite(SOON, || client.revoke(&b, Token(shared))).await.unwrap();
    // Otherwise the log of a lagging node might end before the last change.
    cluster.caught_up(SOON).await.unwrap();
    cluster.kill_all().unwrap();

    let logs = cluster.nodes().iter().map(|node| entries(&inspect_json(&node.data(), &["log"])));
    let last = logs.map(|log| *log.last().unwrap()).min().unwrap().to_string();
    let views = cluster.nodes().iter().map(|node| inspect_json(&node.data(), &["events", "--index", &last]));
    let views: Vec<Value> = views.collect();
    for (id, view) in (1..).zip(&views) {
        assert_eq!((&view["node_id"], &view["index"].to_string()), (&json!(id), &last));
        assert_eq!((&view["events"], &view["after_revision"]), (&views[0]["events"], &json!(0)));
    }
    revisions(&views[0]);
    let told = views[0]["events"].as_array().unwrap();
    let told: Vec<_> = told
        .iter()
        .map(|event| json!([event["lease_id"], event["change"], event["reason"], event["token"]]))
        .collect();
    let expected = json!([
        [first, "granted", null, token],
        [second, "queued", null, null],
        [vain, "queued", null, null],
        [vain, "left", null, null],
        [first, "ended", "released", token],
        [second, "granted", null, next],
        [reader, "granted", null, shared],
        [reader, "ended", "revoked", shared],
    ]);
    assert_eq!(json!(told), expected);
    let events = &views[0]["events"];
    assert_eq!(events[0]["keys"], json!([{"key": "told/a", "mode": "Exclusive", "fence": token}]));
    assert_eq!(events[0]["holder"], "worker 1");
    let mode = json!({"Shared": {"limit": 2}});
    assert_eq!(events[7]["keys"], json!([{"key": "told/b", "mode": mode, "fence": shared + 2}]));
    assert!(events[3]["at_ms"].as_u64() > events[2]["at_ms"].as_u64(), "a wait takes time: {events}");

    let text = inspect(&cluster.node(3).data(), &["events", "--index", &last]);
    let text = String::from_utf8(text.stdout).unwrap();
    for line in [
        format!("granted {first}, token {token}, \"worker 1\": told/a (fence {token})\n"),
        format!("queued {second}: told/a (fence {token})\n"),
        format!("left (wait timed out) {vain}: told/a (fence {token})\n"),
        format!("ended (revoked) {reader}, token {shared}: told/b shared(2) (fence {})\n", shared + 2),
    ] {
        assert!(text.contains(&line), "{line}is missing in:\n{text}");
    }
}

#[tokio::test]
async fn changes_are_shown_from_the_oldest_usable_snapshot_on() {
    let cluster = cluster().nodes(1).argument("--snapshot-after-bytes=1048576").start().await.unwrap();
    let node = cluster.node(1);
    let first = node.segments();
    // While the log begins with its first entry, no snapshot is needed to tell what it changed.
    churn_until(&cluster, "told", || node.snapshots().len() == 2 && node.segments()[0] != first[0]).await;
    node.kill().unwrap();
    let log = inspect_json(&node.data(), &["log"]);
    let snapshots = inspect_json(&node.data(), &["snapshot"]);
    let oldest = snapshots["snapshots"].as_array().unwrap().last().unwrap();
    let newest = &snapshots["snapshots"][0];
    assert!(oldest["index"].as_u64() < newest["index"].as_u64(), "{snapshots}");
    assert!(log["purged"]["index"].as_u64() <= oldest["index"].as_u64(), "{snapshots}");

    let last = entries(&log).last().unwrap().to_string();
    let view = inspect_json(&node.data(), &["events", "--index", &last]);
    let told = revisions(&view);
    let state = inspect_json(&node.data(), &["state", "--index", &last]);
    assert_eq!(view["after_revision"], oldest["revision"]);
    assert_eq!(json!([told[0] - 1, told.last()]), json!([oldest["revision"], state["revision"]]));

    let newest_index = newest["index"].to_string();
    let view = inspect_json(&node.data(), &["events", "--index", &newest_index]);
    assert_eq!(json!(revisions(&view).last()), newest["revision"]);
}

#[tokio::test]
async fn unreadable_data_is_refused_with_a_reason() {
    let cluster = cluster().nodes(1).start().await.unwrap();
    let node = cluster.node(1);
    acquire(&cluster, 0..1).await;
    assert!(refusal(&node.data(), &["log"]).contains("in use by another process"));
    node.kill().unwrap();
    assert_eq!(inspect(&node.data(), &["snapshot"]).stdout, b"none\n");
    for what in ["state", "events"] {
        assert!(refusal(&node.data(), &[what, "--index", "4711"]).contains("entry 4711 cannot be told"));
    }
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
