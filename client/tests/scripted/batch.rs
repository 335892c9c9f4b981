//! How concurrent calls share requests.

use std::future::poll_fn;
use std::task::Poll;

use ringfence_client::wire::{BatchRequest, Operation};
use ringfence_client::{Client, Error, LeaseId};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::scripted::node::{Received, SOON, ScriptedNode};

/// How many calls get a request of their own.
const PERMITS: usize = 8;
/// How many of them may wait.
const WAITING_PERMITS: usize = 4;
const CALLS: usize = 20;

fn operations(request: &Received) -> Vec<Operation> {
    assert_eq!((&*request.method, &*request.path), ("POST", "/v1/batch"));
    serde_json::from_slice::<BatchRequest>(&request.body).unwrap().operations
}

fn grant(lease_id: LeaseId, token: &str) -> Value {
    let token: u64 = token.parse().unwrap();
    json!({ "lease_id": lease_id, "state": "granted", "token": token, "holder": null, "ttl_ms": 60_000,
        "expires_in_ms": 60_000, "keys": [] })
}

fn problem(name: &str, status: u16) -> Value {
    json!({ "type": format!("urn:ringfence:problem:{name}"), "title": "t", "status": status, "detail": "d" })
}

/// How a node would respond. Keys are numbers: odd ones are held, and no queue is empty.
fn result(operation: &Operation) -> Value {
    match operation {
        Operation::Acquire(acquire) if acquire.keep_place => {
            let place = json!({ "lease_id": acquire.lease_id, "state": "waiting", "ahead": 0 });
            json!({ "status": 202, "body": place })
        }
        Operation::Acquire(acquire) => match acquire.keys[0].key.as_str() {
            key if key.ends_with(['1', '3', '5', '7', '9']) => {
                json!({ "status": 409, "body": problem("held", 409) })
            }
            key => json!({ "status": 201, "body": grant(acquire.lease_id, key) }),
        },
        Operation::Renew(_) | Operation::Release(_) => json!({ "status": 204, "body": null }),
    }
}

async fn respond_to_all(request: Received) -> usize {
    let results: Vec<Value> = operations(&request).iter().map(result).collect();
    request.respond("200 OK", &json!({ "results": results }).to_string()).await;
    results.len()
}

/// Concurrent releases of unknown leases.
fn releases(client: &Client) -> JoinSet<Result<(), Error>> {
    let release = |client: Client| async move { client.release(LeaseId::random()).await };
    (0..CALLS).map(|_| release(client.clone())).collect()
}

/// Receives this many calls that were sent alone.
async fn receive_alone(node: &ScriptedNode, count: usize, method: &str) -> Vec<Received> {
    let mut requests = Vec::new();
    for _ in 0..count {
        requests.push(node.receive().await);
    }
    assert!(requests.iter().all(|request| request.method == method));
    requests
}

#[tokio::test]
async fn calls_without_a_lane_share_a_batch_and_each_gets_its_own_result() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let acquire = |number: usize| {
        let acquire = client.lock(number.to_string()).no_renew().try_acquire();
        async move {
            let acquired = acquire.await.map(|lease| {
                let token = lease.token();
                lease.into_id();
                token
            });
            (number, acquired)
        }
    };
    let mut acquires: JoinSet<_> = (0..CALLS).map(acquire).collect();
    let alone = receive_alone(&node, PERMITS, "PUT").await;
    let batch = node.receive().await;
    for request in alone {
        request.respond("409 Conflict", &problem("held", 409).to_string()).await;
    }
    assert_eq!(respond_to_all(batch).await, CALLS - PERMITS);
    while let Some(acquired) = timeout(SOON, acquires.join_next()).await.unwrap() {
        let (number, acquired) = acquired.unwrap();
        match acquired {
            Ok(token) => assert!(number >= PERMITS && number % 2 == 0 && token.0 == number as u64, "{token}"),
            Err(error) => {
                assert!(matches!(error, Error::Held { .. }), "{error:?}");
                assert!(number < PERMITS || number % 2 == 1, "{number}");
            }
        }
    }
}

#[tokio::test]
async fn calls_that_hang_delay_no_others_and_a_broken_batch_is_repeated() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut releases = releases(&client);
    let _hang = receive_alone(&node, PERMITS, "DELETE").await;
    let batch = node.receive().await;
    let lost = operations(&batch);
    assert_eq!(lost.len(), CALLS - PERMITS);
    drop(batch);
    // After an ambiguous outcome each call goes alone.
    for _ in &lost {
        let request = node.receive().await;
        assert_eq!(request.method, "DELETE");
        request.respond("204 No Content", "").await;
    }
    for _ in 0..lost.len() {
        timeout(SOON, releases.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    }
    assert_eq!(releases.len(), PERMITS, "these have no response yet");
}

#[tokio::test]
async fn a_batch_that_was_not_done_was_not_done_for_any_of_its_calls() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut releases = releases(&client);
    let script = async {
        loop {
            let request = node.receive().await;
            request.respond("503 Service Unavailable", &problem("unavailable", 503).to_string()).await;
        }
    };
    tokio::select! {
        () = script => unreachable!("the script has no end"),
        () = async {
            while let Some(released) = timeout(SOON, releases.join_next()).await.unwrap() {
                match released.unwrap().unwrap_err() {
                    Error::Unavailable { .. } => {}
                    // On a busy machine the last attempt may end before the response arrives.
                    Error::Unknown { why, .. } if why.contains("no response within") => {}
                    error => panic!("{error:?}"),
                }
            }
        } => {}
    }
}

#[tokio::test]
async fn if_a_batch_is_refused_as_a_whole_each_of_its_calls_goes_alone() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut releases = releases(&client);
    let mut refused = 0;
    for _ in 0..CALLS + 1 {
        let request = node.receive().await;
        match &*request.method {
            "DELETE" => request.respond("204 No Content", "").await,
            _ => {
                refused += operations(&request).len();
                request.respond("400 Bad Request", &problem("invalid-request", 400).to_string()).await;
            }
        }
    }
    assert_eq!(refused, CALLS - PERMITS);
    while let Some(released) = timeout(SOON, releases.join_next()).await.unwrap() {
        released.unwrap().unwrap();
    }
}

#[tokio::test]
async fn futures_that_are_not_polled_delay_no_others() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut idle: Vec<_> = (0..PERMITS).map(|_| Box::pin(client.release(LeaseId::random()))).collect();
    poll_fn(|context| {
        assert!(idle.iter_mut().all(|release| release.as_mut().poll(context).is_pending()));
        Poll::Ready(())
    })
    .await;
    node.ignore(PERMITS).await;
    let (released, ()) = tokio::join!(client.release(LeaseId::random()), async {
        assert_eq!(respond_to_all(node.receive().await).await, 1);
    });
    released.unwrap();
}

/// The batch once had as much time as a PUT that waits.
#[tokio::test]
async fn an_acquire_that_waits_takes_a_place_in_a_batch_and_waits_with_a_put_of_its_own() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut acquires: JoinSet<_> =
        (0..WAITING_PERMITS + 1).map(|number| client.lock(number.to_string()).no_renew().acquire()).collect();
    let _waiting = receive_alone(&node, WAITING_PERMITS, "PUT").await;
    // The one without a permit goes as a batch of one, and alone after that hangs.
    let batch = node.receive().await;
    let [Operation::Acquire(acquire)] = &operations(&batch)[..] else { panic!("an acquire") };
    assert!(acquire.keep_place);
    let put = node.receive().await;
    assert_eq!((&*put.method, &*put.path), ("PUT", &*format!("/v1/leases/{}", acquire.lease_id)));
    let place = json!({ "lease_id": acquire.lease_id, "state": "waiting", "ahead": 0 });
    put.respond("202 Accepted", &place.to_string()).await;
    let put = node.receive().await;
    assert_eq!((&*put.method, &*put.path), ("PUT", &*format!("/v1/leases/{}", acquire.lease_id)));
    let body: Value = serde_json::from_slice(&put.body).unwrap();
    assert_eq!((&body["wait_ms"], &body["keep_place"]), (&json!(30_000), &json!(true)));
    put.respond("201 Created", &grant(acquire.lease_id, "7").to_string()).await;
    let lease = timeout(SOON, acquires.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(lease.into_id(), acquire.lease_id);
}

#[tokio::test]
async fn acquires_with_a_place_each_wait_with_a_put_of_their_own() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let _acquires: JoinSet<_> = (0..CALLS).map(|number| client.lock(number.to_string()).acquire()).collect();
    let _waiting = receive_alone(&node, WAITING_PERMITS, "PUT").await;
    // The others share requests, as permits are free.
    let mut batches = Vec::new();
    while batches.iter().map(|batch| operations(batch).len()).sum::<usize>() < CALLS - WAITING_PERMITS {
        batches.push(node.receive().await);
    }
    assert!(batches.len() <= PERMITS - WAITING_PERMITS, "{} batches", batches.len());
    let mut places: Vec<LeaseId> = Vec::new();
    for batch in batches {
        for operation in operations(&batch) {
            let Operation::Acquire(acquire) = operation else { panic!("an acquire") };
            places.push(acquire.lease_id);
        }
        respond_to_all(batch).await;
    }
    let mut waiting = Vec::new();
    for _ in &places {
        waiting.push(node.receive().await);
    }
    for place in places {
        assert!(waiting.iter().any(|put| put.method == "PUT" && put.path == format!("/v1/leases/{place}")));
    }
}

#[tokio::test]
async fn nothing_is_batched_if_grants_wait_for_the_mirror() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let (lease, ()) = tokio::join!(client.lock("0").no_renew().try_acquire(), async {
        let put = node.receive().await;
        let lease_id: LeaseId = put.path.strip_prefix("/v1/leases/").unwrap().parse().unwrap();
        let mut grant = grant(lease_id, "0");
        grant["mirrored"] = json!(true);
        put.respond("201 Created", &grant.to_string()).await;
    });
    lease.unwrap().into_id();
    let _releases = releases(&client);
    receive_alone(&node, CALLS, "DELETE").await;
}
