//! What a runtime leaves behind when it ends.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ringfence_client::Client;
use ringfence_client::wire::{BatchRequest, Operation};
use tokio::runtime::Builder;

use crate::scripted::close::{grant, id};
use crate::scripted::node::ScriptedNode;

const LEASES: usize = 100;

/// Each was a request of its own, all of them at once.
#[test]
fn leases_that_nobody_waits_for_any_more_share_requests() {
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

fn lease_id(operation: &Operation) -> String {
    match operation {
        Operation::Release(release) => release.lease_id.to_string(),
        other => panic!("{other:?} releases nothing"),
    }
}
