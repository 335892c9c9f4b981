//! How calls share a request where many are made at once.

use std::future::poll_fn;
use std::task::Poll;

use ringfence_client::wire::{BatchRequest, Operation};
use ringfence_client::{Client, Error, LeaseId};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::played::node::{Asked, Played, SOON};

/// How many calls go on their own.
const LANES: usize = 8;
/// How many of them may wait.
const FOR_WAITERS: usize = 4;
const CALLS: usize = 20;

fn operations(asked: &Asked) -> Vec<Operation> {
    assert_eq!((&*asked.method, &*asked.path), ("POST", "/v1/batch"));
    serde_json::from_slice::<BatchRequest>(&asked.body).unwrap().operations
}

fn grant(lease_id: LeaseId, token: &str) -> Value {
    let token: u64 = token.parse().unwrap();
    json!({ "lease_id": lease_id, "state": "granted", "token": token, "holder": null, "ttl_ms": 60_000,
        "expires_in_ms": 60_000, "keys": [] })
}

fn problem(name: &str, status: u16) -> Value {
    json!({ "type": format!("urn:ringfence:problem:{name}"), "title": "t", "status": status, "detail": "d" })
}

/// What a node would say to an acquire of a key that is a number: an odd one is held, and no queue is empty.
fn answer(operation: &Operation) -> Value {
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

async fn answer_all(asked: Asked) -> usize {
    let results: Vec<Value> = operations(&asked).iter().map(answer).collect();
    asked.answer("200 OK", &json!({ "results": results }).to_string()).await;
    results.len()
}

/// Releases at once, of leases that nobody knows.
fn releases(client: &Client) -> JoinSet<Result<(), Error>> {
    let release = |client: Client| async move { client.release(LeaseId::random()).await };
    (0..CALLS).map(|_| release(client.clone())).collect()
}

/// So many calls that go on their own, which nobody has answered yet.
async fn on_their_own(node: &Played, count: usize, method: &str) -> Vec<Asked> {
    let mut asked = Vec::new();
    for _ in 0..count {
        asked.push(node.asked().await);
    }
    assert!(asked.iter().all(|asked| asked.method == method));
    asked
}

#[tokio::test]
async fn what_finds_no_lane_goes_as_one_batch_and_each_call_is_told_what_is_its_own() {
    let node = Played::new().await;
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
    let on_their_own = on_their_own(&node, LANES, "PUT").await;
    let batch = node.asked().await;
    for asked in on_their_own {
        asked.answer("409 Conflict", &problem("held", 409).to_string()).await;
    }
    assert_eq!(answer_all(batch).await, CALLS - LANES);
    while let Some(acquired) = timeout(SOON, acquires.join_next()).await.unwrap() {
        let (number, acquired) = acquired.unwrap();
        match acquired {
            Ok(token) => assert!(number >= LANES && number % 2 == 0 && token.0 == number as u64, "{token}"),
            Err(error) => {
                assert!(matches!(error, Error::Held { .. }), "{error:?}");
                assert!(number < LANES || number % 2 == 1, "{number}");
            }
        }
    }
}

#[tokio::test]
async fn a_node_that_hangs_holds_up_nobody_and_a_batch_that_breaks_off_is_repeated() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut releases = releases(&client);
    let _hang = on_their_own(&node, LANES, "DELETE").await;
    let batch = node.asked().await;
    let lost = operations(&batch);
    assert_eq!(lost.len(), CALLS - LANES);
    drop(batch);
    // Whoever is in doubt asks alone.
    for _ in &lost {
        let asked = node.asked().await;
        assert_eq!(asked.method, "DELETE");
        asked.answer("204 No Content", "").await;
    }
    for _ in 0..lost.len() {
        timeout(SOON, releases.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    }
    assert_eq!(releases.len(), LANES, "these have no answer yet");
}

#[tokio::test]
async fn a_batch_that_nobody_could_take_was_not_done_for_any_of_its_calls() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut releases = releases(&client);
    let nobody_leads = async {
        loop {
            let asked = node.asked().await;
            asked.answer("503 Service Unavailable", &problem("unavailable", 503).to_string()).await;
        }
    };
    tokio::select! {
        () = nobody_leads => unreachable!("that goes on for ever"),
        () = async {
            while let Some(released) = timeout(SOON, releases.join_next()).await.unwrap() {
                let error = released.unwrap().unwrap_err();
                assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            }
        } => {}
    }
}

#[tokio::test]
async fn where_a_batch_is_refused_as_a_whole_each_of_its_calls_goes_alone() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut releases = releases(&client);
    let mut refused = 0;
    for _ in 0..CALLS + 1 {
        let asked = node.asked().await;
        match &*asked.method {
            "DELETE" => asked.answer("204 No Content", "").await,
            _ => {
                refused += operations(&asked).len();
                asked.answer("400 Bad Request", &problem("invalid-request", 400).to_string()).await;
            }
        }
    }
    assert_eq!(refused, CALLS - LANES);
    while let Some(released) = timeout(SOON, releases.join_next()).await.unwrap() {
        released.unwrap().unwrap();
    }
}

/// Their futures are there, but something else is done where they are.
#[tokio::test]
async fn who_is_not_polled_holds_up_nobody() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut idle: Vec<_> = (0..LANES).map(|_| Box::pin(client.release(LeaseId::random()))).collect();
    poll_fn(|context| {
        assert!(idle.iter_mut().all(|release| release.as_mut().poll(context).is_pending()));
        Poll::Ready(())
    })
    .await;
    let _silent = node.connections(LANES).await;
    let (released, ()) = tokio::join!(client.release(LeaseId::random()), async {
        assert_eq!(answer_all(node.asked().await).await, 1);
    });
    released.unwrap();
}

/// It waited for a batch as long as a call of its own would have waited.
#[tokio::test]
async fn an_acquire_that_waits_asks_for_a_place_with_others_and_waits_there_on_its_own() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let mut acquires: JoinSet<_> =
        (0..FOR_WAITERS + 1).map(|number| client.lock(number.to_string()).no_renew().acquire()).collect();
    let _wait = on_their_own(&node, FOR_WAITERS, "PUT").await;
    // The one that found no lane goes as a batch of one, and on its own when that is not answered.
    let batch = node.asked().await;
    let [Operation::Acquire(acquire)] = &operations(&batch)[..] else { panic!("an acquire") };
    assert!(acquire.keep_place);
    let put = node.asked().await;
    assert_eq!((&*put.method, &*put.path), ("PUT", &*format!("/v1/leases/{}", acquire.lease_id)));
    let place = json!({ "lease_id": acquire.lease_id, "state": "waiting", "ahead": 0 });
    put.answer("202 Accepted", &place.to_string()).await;
    let put = node.asked().await;
    assert_eq!((&*put.method, &*put.path), ("PUT", &*format!("/v1/leases/{}", acquire.lease_id)));
    let wish: Value = serde_json::from_slice(&put.body).unwrap();
    assert_eq!((&wish["wait_ms"], &wish["keep_place"]), (&json!(30_000), &json!(true)));
    put.answer("201 Created", &grant(acquire.lease_id, "7").to_string()).await;
    let lease = timeout(SOON, acquires.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(lease.into_id(), acquire.lease_id);
}

#[tokio::test]
async fn whoever_has_a_place_waits_there_on_its_own() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let _acquires: JoinSet<_> = (0..CALLS).map(|number| client.lock(number.to_string()).acquire()).collect();
    let _wait = on_their_own(&node, FOR_WAITERS, "PUT").await;
    // Each of the other lanes takes along who finds it free. The rest has none.
    let mut batches = Vec::new();
    while batches.iter().map(|batch| operations(batch).len()).sum::<usize>() < CALLS - FOR_WAITERS {
        batches.push(node.asked().await);
    }
    assert_eq!(batches.len(), LANES - FOR_WAITERS + 1);
    let mut places: Vec<LeaseId> = Vec::new();
    for batch in batches {
        for operation in operations(&batch) {
            let Operation::Acquire(acquire) = operation else { panic!("an acquire") };
            places.push(acquire.lease_id);
        }
        answer_all(batch).await;
    }
    let mut waiting = Vec::new();
    for _ in &places {
        waiting.push(node.asked().await);
    }
    for place in places {
        assert!(waiting.iter().any(|put| put.method == "PUT" && put.path == format!("/v1/leases/{place}")));
    }
}

#[tokio::test]
async fn nothing_waits_for_the_mirror_along_with_a_grant() {
    let node = Played::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let (lease, ()) = tokio::join!(client.lock("0").no_renew().try_acquire(), async {
        let put = node.asked().await;
        let lease_id: LeaseId = put.path.strip_prefix("/v1/leases/").unwrap().parse().unwrap();
        let mut grant = grant(lease_id, "0");
        grant["mirrored"] = json!(true);
        put.answer("201 Created", &grant.to_string()).await;
    });
    lease.unwrap().into_id();
    let _releases = releases(&client);
    on_their_own(&node, CALLS, "DELETE").await;
}
