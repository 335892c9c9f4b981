//! The metrics of real nodes, and the alerts and dashboard that use them, checked with a real Prometheus.

mod shown;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ringfence_harness::{
    Answered, Builder, Certificates, Cluster, Consistency, Node, PrometheusServer, RedisServer, Reply, key,
    until,
};
use ringfence_wire::LeaseId;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::shown::{Sample, defined, matchers, metrics, names, panels, samples, value};
use crate::support::{PROGRAM, SOON};

const ALERTS: &str = include_str!("../../deploy/alerts.yml");

/// Chosen by clients, and contained in nothing else.
const KEY: &str = "odd-key/Schlüssel 7";
const HOLDER: &str = "odd-holder Ω";
const ODD: [&str; 4] = ["odd-", "Schl", "Ω", "odd%2D"];

#[tokio::test]
async fn metrics_have_help_texts_and_contain_no_names_of_clients() {
    let redis = RedisServer::builder().start().await.unwrap();
    let (cluster, _files) = cluster(&redis).await;
    let leases = traffic(&cluster).await;
    let mut measured = BTreeSet::new();
    for node in cluster.nodes() {
        let text = metrics(node).await;
        promtool(&["check", "metrics"], Path::new("."), &text);
        for word in ODD.map(str::to_owned).into_iter().chain(leases.iter().map(LeaseId::to_string)) {
            assert!(!text.contains(&word), "{word} is in {text}");
        }
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        for family in families {
            assert!(text.contains(&format!("# HELP {family} ")), "{family} is not explained");
            measured.insert(family.to_owned());
        }
    }
    let room = async || {
        let (size, available) = ("ringfence_disk_size_bytes", "ringfence_disk_available_bytes");
        let (size, available) = (value(cluster.node(1), size).await, value(cluster.node(1), available).await);
        (0.0 < available && available <= size).then_some(())
    };
    until(SOON, "the room on the disk is known", room).await.unwrap();
    // `tests/tidy/` checks what documents name against the definitions.
    for name in defined() {
        assert!(measured.contains(name), "no node has {name}");
    }
}

#[tokio::test]
async fn every_end_of_a_lease_is_counted_by_one_node_and_not_again_after_a_restart() {
    let redis = RedisServer::builder().start().await.unwrap();
    let (cluster, _files) = cluster(&redis).await;
    traffic(&cluster).await;
    let ends = async |node: &Node| -> BTreeMap<String, f64> {
        let ended = samples(&metrics(node).await).into_iter();
        let ended = ended.filter(|sample| sample.name == "ringfence_lease_end_total");
        ended.map(|sample| (sample.labels["reason"].clone(), sample.value)).collect()
    };
    let (mut sum, mut leaders) = (BTreeMap::new(), BTreeSet::new());
    for node in cluster.nodes() {
        for (reason, count) in ends(node).await {
            *sum.entry(reason).or_insert(0.0) += count;
        }
        leaders.insert(value(node, "ringfence_raft_leader_changes_total").await as u64);
    }
    let expected = [("abandoned", 0.0), ("expired", 1.0), ("released", 3.0), ("revoked", 1.0)];
    // An end whose leader lost its leadership meanwhile is counted by no node.
    if leaders == BTreeSet::from([1]) {
        assert_eq!(sum, expected.map(|(reason, count)| (reason.to_owned(), count)).into());
    } else {
        eprintln!("skipped: the leader changed meanwhile, {leaders:?}");
    }

    let led = cluster.leader().await.unwrap();
    led.restart().unwrap();
    cluster.ready().await.unwrap();
    cluster.caught_up(SOON).await.unwrap();
    let applied = value(led, "ringfence_raft_commands_applied_total").await;
    assert!(applied > 10.0, "it has replayed its log: {applied}");
    assert_eq!(ends(led).await.values().sum::<f64>(), 0.0);
}

#[tokio::test]
async fn a_batch_that_fails_as_a_whole_counts_each_operation_and_a_hanging_proposal_is_measured() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let operations = json!([
        { "acquire": { "lease_id": LeaseId::random(), "keys": ["a"] } },
        { "acquire": { "lease_id": LeaseId::random(), "keys": ["b"] } },
        { "renew": { "lease_id": LeaseId::random() } },
    ]);
    let batch = json!({ "operations": operations }).to_string();
    let hangs = async || {
        let leader = cluster.leader().await.unwrap();
        cluster.others(leader.id()).for_each(|node| node.stop().unwrap());
        let answer = leader.client().raw("POST", "/v1/batch", batch.clone()).await.unwrap();
        if answer.status == 504 {
            return Some(leader);
        }
        // The leadership was lost before the batch came.
        assert_eq!(answer.status, 503);
        cluster.others(leader.id()).for_each(|node| node.resume().unwrap());
        cluster.ready().await.unwrap();
        None
    };
    let leader = until(SOON, "a batch hangs", hangs).await.unwrap();
    let failed = |samples: &[Sample], name: &str| -> f64 {
        let of = samples.iter().filter(|sample| sample.name == name);
        of.filter(|sample| sample.labels["outcome"] == "indeterminate").map(|sample| sample.value).sum()
    };
    let measured = samples(&metrics(leader).await);
    assert_eq!(failed(&measured, "ringfence_acquire_total"), 2.0);
    assert_eq!(failed(&measured, "ringfence_renew_total"), 1.0);
    // It has waited for as long as a request may take.
    let pending = value(leader, "ringfence_raft_proposal_pending_seconds").await;
    assert!(pending > 4.0, "{pending}");
}

#[tokio::test]
async fn a_change_of_the_leader_is_seen_by_every_node() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let mut before = BTreeMap::new();
    for node in cluster.nodes() {
        let seen = value(node, "ringfence_raft_leader_changes_total").await;
        assert!(seen >= 1.0, "node {} has seen the first", node.id());
        before.insert(node.id(), seen);
    }
    let leader = cluster.leader().await.unwrap();
    let to = json!({ "to": cluster.others(leader.id()).next().unwrap().id() }).to_string();
    let handed = async || {
        let answer = leader.client().raw("POST", "/v1/cluster/transfer", to.clone()).await.ok()?;
        (answer.status == 204).then_some(())
    };
    until(SOON, "the leadership is handed over", handed).await.unwrap();
    for node in cluster.nodes() {
        let sees = async || {
            let seen = value(node, "ringfence_raft_leader_changes_total").await;
            (seen > before[&node.id()]).then_some(())
        };
        until(SOON, format!("node {} sees the change", node.id()), sees).await.unwrap();
    }
}

#[test]
#[ignore = "slow"]
fn the_alerts_fire_as_their_tests_say() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    promtool(&["check", "config", "prometheus.yml"], &deploy, "");
    promtool(&["test", "rules", "alerts.test.yml"], &deploy, "");
}

#[tokio::test]
#[ignore = "slow"]
async fn alerts_and_dashboard_use_existing_metrics_and_a_lost_majority_raises_alerts() {
    let redis = RedisServer::builder().start().await.unwrap();
    let (cluster, _files) = cluster(&redis).await;
    traffic(&cluster).await;
    let prometheus = watch(&cluster).await;
    let all_up = async || {
        let up = prometheus.query("sum(up)").await.unwrap();
        (up[0]["value"][1] == "3").then_some(())
    };
    until(SOON, "all nodes are scraped", all_up).await.unwrap();

    let rules = until(SOON, "every rule was evaluated", || evaluated(&prometheus)).await.unwrap();
    let mut expressions = BTreeMap::new();
    for rule in &rules {
        assert_eq!((&rule["health"], &rule["lastError"]), (&json!("ok"), &Value::Null), "{rule}");
        expressions
            .insert(rule["name"].as_str().unwrap().to_owned(), rule["query"].as_str().unwrap().to_owned());
    }
    assert_eq!(rules.len(), ALERTS.matches("- alert:").count());
    let panels = panels();
    assert!(panels.len() > 20, "{panels:?}");
    for (title, expression) in &panels {
        let shown = async || {
            let result =
                prometheus.query(expression).await.unwrap_or_else(|error| panic!("{title}: {error}"));
            (!result.as_array().unwrap().is_empty()).then_some(())
        };
        until(SOON, format!("{title} shows something: {expression}"), shown).await.unwrap();
    }
    expressions.extend(panels);
    uses_only_existing_metrics(&expressions, &cluster).await;

    let quiet = async || (!firing(&prometheus).await.contains_key("RingfenceNoLeader")).then_some(());
    until(SOON, "no alert says that nobody leads", quiet).await.unwrap();
    // The remaining follower still remembers the leader.
    let leader = cluster.leader().await.unwrap();
    let stopped = [leader, cluster.others(leader.id()).next().unwrap()];
    stopped.iter().for_each(|node| node.stop().unwrap());
    let told = async || {
        let firing = firing(&prometheus).await;
        let down: BTreeSet<_> = stopped.iter().map(|node| node.http().to_string()).collect();
        (firing.contains_key("RingfenceNoLeader") && firing.get("RingfenceNodeDown") == Some(&down))
            .then_some(())
    };
    until(SOON, "a lost majority raises alerts", told).await.unwrap();
    stopped.iter().for_each(|node| node.resume().unwrap());
    let over = async || {
        let firing = firing(&prometheus).await;
        (!firing.contains_key("RingfenceNoLeader") && !firing.contains_key("RingfenceNodeDown")).then_some(())
    };
    until(SOON, "the alerts end", over).await.unwrap();
}

/// Nodes with all that is measured, and the folder of their certificates.
async fn cluster(redis: &RedisServer) -> (Cluster, TempDir) {
    let dir = TempDir::new().unwrap();
    let names = "URI:ringfence:node:1,URI:ringfence:node:2,URI:ringfence:node:3";
    let files = Certificates::new(dir.path(), names).unwrap();
    let builder = Cluster::builder(PROGRAM);
    let builder = builder.argument(format!("--redis={}", redis.url()));
    let cluster = files.peer_arguments().into_iter().fold(builder, Builder::argument).start().await.unwrap();
    (cluster, dir)
}

/// Makes calls of every kind, through all nodes in turn. Returns the ids of the leases.
async fn traffic(cluster: &Cluster) -> Vec<LeaseId> {
    let mut calls = 0;
    let mut send = async |method: &str, path: &str, body: Value, expected: u16| {
        let node = &cluster.nodes()[calls % cluster.nodes().len()];
        calls += 1;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let tries = Cell::new(0);
        let answer = async || {
            tries.set(tries.get() + 1);
            let answer = node.client().raw(method, path, body.clone()).await;
            answer.ok().filter(|answer| answer.status < 500)
        };
        let answer = until(SOON, format!("{method} {path} is answered"), answer).await.unwrap();
        let text = String::from_utf8_lossy(&answer.body);
        // After a change of the leader, the answer to a repeat may differ.
        assert!(answer.status == expected || tries.get() > 1, "{method} {path}: {} {text}", answer.status);
        serde_json::from_str::<Value>(&text).unwrap_or_default()
    };
    let ids: Vec<LeaseId> = (0..7).map(|_| LeaseId::random()).collect();
    let path: Vec<String> = ids.iter().map(|id| format!("/v1/leases/{id}")).collect();
    let request = |wait_ms: u32, keep_place: bool| {
        json!({ "keys": [KEY], "holder": HOLDER, "metadata": { "odd-name": "odd-value" },
                "wait_ms": wait_ms, "keep_place": keep_place, "ttl_ms": 600_000 })
    };
    send("PUT", &path[0], request(0, false), 201).await;
    send("PUT", &path[0], request(0, false), 200).await;
    send("PUT", &path[0], json!({ "keys": ["odd-other"] }), 409).await;
    send("PUT", &path[1], request(0, false), 409).await;
    send("POST", "/v1/leases", request(0, false), 409).await;
    send("PUT", &path[1], request(100, false), 409).await;
    send("PUT", &path[2], request(0, true), 202).await;
    send("DELETE", &path[2], Value::Null, 204).await;
    send("POST", &format!("{}/renew", path[0]), Value::Null, 200).await;
    send("POST", &format!("{}/renew", path[5]), Value::Null, 404).await;
    let waits = {
        let (client, path, request) =
            (cluster.nodes()[0].client().within(SOON), path[6].clone(), request(60_000, false));
        tokio::spawn(async move { drop(client.raw("PUT", &path, request.to_string()).await) })
    };
    let waiting = async || {
        let view = cluster.nodes()[1].client().key(&key(KEY), Consistency::Linearizable).await;
        matches!(view, Ok(Reply::Done { body, .. }) if body.waiters.len() == 1).then_some(())
    };
    until(SOON, "a lease waits", waiting).await.unwrap();
    send("DELETE", &path[0], Value::Null, 204).await;
    waits.await.unwrap();
    send("DELETE", &path[6], Value::Null, 204).await;

    send("PUT", &path[3], json!({ "keys": ["odd-brief"], "ttl_ms": 100 }), 201).await;
    let expired = async || {
        let answer = cluster.nodes()[0].client().raw("GET", &path[3], "").await.unwrap();
        (answer.status == 410).then_some(())
    };
    until(SOON, "a lease expires", expired).await.unwrap();
    let grant = send("PUT", &path[4], json!({ "keys": ["odd-revoked"], "ttl_ms": 600_000 }), 201).await;
    let (node, waits) =
        (&cluster.nodes()[0], json!({ "keys": ["odd-revoked"], "wait_ms": 60_000 }).to_string());
    let given_up = format!("/v1/leases/{}", LeaseId::random());
    let impatient = node.client().within(Duration::from_millis(200));
    let gives_up = async || {
        drop(impatient.raw("PUT", &given_up, waits.clone()).await);
        metrics(node).await.contains(r#"status="closed""#).then_some(())
    };
    until(SOON, "an abandoned request is counted", gives_up).await.unwrap();
    let nobody_waits = async || {
        let view = node.client().key(&key("odd-revoked"), Consistency::Linearizable).await.done();
        view.waiters.is_empty().then_some(())
    };
    until(SOON, "the abandoned request has left the queue", nobody_waits).await.unwrap();
    send("POST", "/v1/revoke", json!({ "key": "odd-revoked", "token": grant["token"] }), 204).await;
    let batched = json!({ "operations": [
        { "acquire": { "lease_id": ids[5], "keys": ["odd-batch"], "holder": HOLDER } },
        { "renew": { "lease_id": ids[5] } },
        { "release": { "lease_id": ids[5] } },
    ] });
    send("POST", "/v1/batch", batched, 200).await;
    send("GET", "/v1/keys?prefix=odd-", Value::Null, 200).await;
    send("GET", "/v1/keys/odd%2Dkey", Value::Null, 200).await;
    send("POST", "/v1/validate", json!({ "key": KEY, "token": 1 }), 200).await;
    send("GET", "/odd-path", Value::Null, 404).await;
    send("odd-method", "/livez", Value::Null, 405).await;
    send("GET", "/livez", Value::Null, 200).await;
    ids
}

/// A Prometheus that scrapes the cluster with the files of `deploy/`, but with other addresses and shorter times.
async fn watch(cluster: &Cluster) -> PrometheusServer {
    let targets: Vec<String> = cluster.nodes().iter().map(|node| format!("'{}'", node.http())).collect();
    let config = include_str!("../../deploy/prometheus.yml")
        .replace("'10.0.0.1:7400', '10.0.0.2:7400', '10.0.0.3:7400'", &targets.join(", "))
        .replace("15s", "1s")
        .replace("5s", "1s");
    let alerts: Vec<&str> = ALERTS.lines().filter(|line| !line.starts_with("        for: ")).collect();
    let files = [("prometheus.yml", config.as_str()), ("alerts.yml", &alerts.join("\n"))];
    PrometheusServer::start(&files).await.unwrap()
}

/// All rules, once each has been evaluated.
async fn evaluated(prometheus: &PrometheusServer) -> Option<Vec<Value>> {
    let mut groups = prometheus.get("/api/v1/rules").await.unwrap();
    let groups = groups["groups"].as_array_mut().unwrap();
    let rules: Vec<Value> =
        groups.iter_mut().flat_map(|group| group["rules"].as_array_mut().unwrap().drain(..)).collect();
    (!rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown")).then_some(rules)
}

/// The firing alerts, and the instances that they name.
async fn firing(prometheus: &PrometheusServer) -> BTreeMap<String, BTreeSet<String>> {
    let mut firing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for alert in prometheus.get("/api/v1/alerts").await.unwrap()["alerts"].as_array().unwrap() {
        let name = alert["labels"]["alertname"].as_str().unwrap().to_owned();
        let instances = firing.entry(name).or_default();
        instances.extend(alert["labels"]["instance"].as_str().map(str::to_owned));
    }
    firing
}

/// Fails if an expression names a metric, a label or a value that no node has.
async fn uses_only_existing_metrics(expressions: &BTreeMap<String, String>, cluster: &Cluster) {
    let mut known: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for node in cluster.nodes() {
        for sample in samples(&metrics(node).await) {
            let labels = known.entry(sample.name).or_default();
            for (label, value) in sample.labels {
                labels.entry(label).or_default().insert(value);
            }
        }
    }
    for (of, expression) in expressions {
        let mut labels = BTreeSet::from(["job", "instance"]);
        for name in names(expression) {
            let measured = known.get(name).unwrap_or_else(|| panic!("{of}: no node has {name}"));
            labels.extend(measured.keys().map(String::as_str));
            for (label, value) in matchers(expression, name).into_iter().filter(|(label, _)| label != "job") {
                let values = measured.get(&label).unwrap_or_else(|| panic!("{of}: {name} has no {label}"));
                // Patterns like 5.. are about failures, which do not happen here.
                for value in value.split('|').filter(|value| !value.contains("..")) {
                    assert!(values.contains(value), "{of}: no {label} of {name} is {value}: {values:?}");
                }
            }
        }
        for list in expression.split("by (").skip(1) {
            for label in list.split(')').next().unwrap().split(',').map(str::trim) {
                assert!(labels.contains(label), "{of}: none of its metrics has a label {label}");
            }
        }
    }
}

/// Runs promtool, which must succeed.
fn promtool(arguments: &[&str], dir: &Path, input: &str) {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = [ended.stdout, ended.stderr].concat();
    assert!(ended.status.success(), "promtool {arguments:?}: {}", String::from_utf8_lossy(&said));
}
