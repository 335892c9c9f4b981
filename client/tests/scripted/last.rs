//! What a runtime leaves behind when it ends.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ringfence_client::Client;
use ringfence_client::wire::{BatchRequest, Operation};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::scripted::close::{grant, id};
use crate::scripted::node::ScriptedNode;

const LEASES: usize = 100;

/// A runtime with leases that nobody waits for any more.
struct Left {
    outer: Runtime,
    node: ScriptedNode,
    runtime: Runtime,
    ids: BTreeSet<String>,
}

fn leave() -> Left {
    let outer = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = outer.block_on(ScriptedNode::new());
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = Client::connect([node.url()]).unwrap();
    let mut ids = BTreeSet::new();
    let mut leases = Vec::new();
    for _ in 0..LEASES {
        let acquiring = runtime.spawn(client.lock("a").ttl(Duration::from_secs(600)).no_renew().acquire());
        let put = outer.block_on(node.receive());
        ids.insert(id(&put));
        outer.block_on(grant(put));
        leases.push(outer.block_on(acquiring).unwrap().unwrap());
    }
    runtime.spawn(async move {
        let _leases = leases;
        std::future::pending::<()>().await;
    });
    Left { outer, node, runtime, ids }
}

/// Each release was once a request of its own, all at once.
#[test]
fn leases_that_nobody_waits_for_any_more_share_requests() {
    let Left { outer, node, runtime, mut ids } = leave();
    let begun = Instant::now();
    // The first is not answered in time.
    drop(runtime);
    assert!(begun.elapsed() >= Duration::from_secs(1), "it does not wait");
    let mut requests = Vec::new();
    outer.block_on(async {
        while !ids.is_empty() {
            let request = node.receive().await;
            let mut released = vec![request.path.rsplit('/').next().unwrap().to_owned()];
            if request.path == "/v1/batch" {
                let batch: BatchRequest = serde_json::from_slice(&request.body).unwrap();
                released = batch.operations.iter().map(lease_id).collect();
            }
            ids.retain(|id| !released.contains(id));
            requests.push((request, released.len()));
        }
        let seen = requests.len();
        assert!(seen < LEASES / 2, "{seen} requests for {LEASES} leases");
        join_all(requests.into_iter().map(|(request, count)| {
            let results = vec![r#"{"status":204,"body":null}"#; count].join(",");
            async move { request.respond("200 OK", &format!(r#"{{"results":[{results}]}}"#)).await }
        }))
        .await;
    });
}

/// Once, there were as many requests at once as leases.
#[test]
fn a_batch_that_is_refused_becomes_few_requests_at_a_time() {
    let Left { outer, node, runtime, mut ids } = leave();
    // As long as the end of the runtime waits, one request follows the other.
    drop(runtime);
    let refusal = r#"{"type":"urn:ringfence:problem:invalid-request","title":"","status":400,"detail":""}"#;
    outer.block_on(async {
        while !ids.is_empty() {
            let mut alone = Vec::new();
            while let Ok(request) = timeout(Duration::from_millis(100), node.receive()).await {
                if request.path == "/v1/batch" {
                    request.respond("400 Bad Request", refusal).await;
                } else {
                    alone.push(request);
                }
            }
            let at_once = alone.iter().filter(|request| !request.is_closed()).count();
            assert!(at_once < LEASES / 2, "{at_once} requests at once");
            for request in alone {
                ids.remove(&id(&request));
                request.respond("204 No Content", "").await;
            }
        }
    });
}

fn lease_id(operation: &Operation) -> String {
    match operation {
        Operation::Release(release) => release.lease_id.to_string(),
        other => panic!("{other:?} releases nothing"),
    }
}
