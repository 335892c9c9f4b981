//! How a client is closed, and what becomes of leases when their runtime ends.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use ringfence_client::wire::EndReason;
use ringfence_client::{Client, Consistency, Error, Lease, LeaseId, Loss, State};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::scripted::node::{Received, SOON, ScriptedNode};

/// Nothing may come within this time. This test is about time.
const LATER: Duration = Duration::from_millis(300);
const WAITING: &str = r#"{"lease_id":"ID","state":"waiting","ahead":0}"#;

pub(crate) fn id(put: &Received) -> String {
    put.path.split('/').nth(3).unwrap().to_owned()
}

pub(crate) async fn grant(put: Received) {
    let grant = format!(
        r#"{{"lease_id":"{}","state":"granted","token":7,"holder":null,"ttl_ms":600000,"expires_in_ms":600000,"keys":[]}}"#,
        id(&put)
    );
    put.respond("201 Created", &grant).await;
}

pub(crate) async fn acquired(node: &ScriptedNode, client: &Client, renews: bool) -> Lease {
    let lock = client.lock("a").ttl(Duration::from_secs(600));
    let lock = if renews { lock } else { lock.no_renew() };
    let (lease, ()) = tokio::join!(lock.acquire(), async { grant(node.receive().await).await });
    lease.unwrap()
}

pub(crate) fn is_delete(request: &Received, id: &str) {
    assert_eq!((request.method.as_str(), &request.path), ("DELETE", &format!("/v1/leases/{id}")));
}

pub(crate) async fn deleted(node: &ScriptedNode, id: &str) {
    let request = node.receive().await;
    is_delete(&request, id);
    request.respond("204 No Content", "").await;
}

#[tokio::test]
async fn a_client_that_is_closed_has_released_what_it_held_and_begins_nothing() {
    for renews in [true, false] {
        let node = ScriptedNode::new().await;
        let client = Client::connect([node.url()]).unwrap();
        let lease = acquired(&node, &client, renews).await;
        let (id, lost) = (lease.lease_id().to_string(), lease.lost());
        let (left, ()) = tokio::join!(client.close(SOON), deleted(&node, &id));
        assert_eq!(left, 0);
        let released = Loss::Ended(EndReason::Released);
        assert_eq!((lost.await, lease.state()), (released, State::Lost(released)));
        // Nobody receives any of these.
        assert_eq!(client.lock("a").acquire().await.unwrap_err(), Error::Closed);
        assert_eq!(client.adopt(lease.lease_id()).await.unwrap_err(), Error::Closed);
        assert_eq!(client.key("a", Consistency::Linearizable).await, Err(Error::Closed));
        assert_eq!(client.release(lease.lease_id()).await, Err(Error::Closed));
        assert_eq!(client.watch("a").next().await, Err(Error::Closed));
        assert_eq!(lease.release().await, Err(Error::Closed));
        assert_eq!(client.close(SOON).await, 0);
    }
}

/// It would wait for up to 30 s more, and have the lease then.
#[tokio::test]
async fn what_waits_when_the_client_is_closed_gives_its_place_back() {
    for has_place in [false, true] {
        let node = ScriptedNode::new().await;
        let client = Client::connect([node.url()]).unwrap();
        let acquiring = tokio::spawn(client.lock("a").acquire());
        let mut put = node.receive().await;
        let id = id(&put);
        if has_place {
            put.respond("202 Accepted", &WAITING.replace("ID", &id)).await;
            put = node.receive().await;
        }
        // By itself a wait ends later.
        let (left, ()) = tokio::join!(client.close(SOON / 3), deleted(&node, &id));
        assert_eq!(left, 0);
        assert_eq!(acquiring.await.unwrap().unwrap_err(), Error::Closed);
        drop(put);
    }
}

/// No node asks for more than a minute.
#[tokio::test]
async fn what_sleeps_when_the_client_is_closed_ends_at_once() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let acquiring = tokio::spawn(client.lock("a").acquire());
    let overloaded = r#"{"type":"urn:ringfence:problem:overloaded","title":"","status":429,"detail":""}"#;
    let put = node.receive().await;
    put.respond_with("429 Too Many Requests", "retry-after: 60\r\n", overloaded).await;
    // By then it sleeps. Were it late, there would be something to release.
    let free = r#"{"key":"b","fence":1,"holders":[],"waiters":[],"revision":1}"#;
    let (read, ()) = tokio::join!(client.key("b", Consistency::Linearizable), async {
        node.receive().await.respond("200 OK", free).await;
    });
    read.unwrap();
    let answers = async {
        loop {
            node.receive().await.respond("204 No Content", "").await;
        }
    };
    let left = tokio::select! {
        left = client.close(SOON / 2) => left,
        () = answers => unreachable!("it has no end"),
    };
    assert_eq!((left, acquiring.await.unwrap().unwrap_err()), (0, Error::Closed));
}

/// The adoption once went on for 5 s, and the watch as long as its node sent events.
#[tokio::test]
async fn an_adoption_and_a_watch_end_when_the_client_is_closed() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let (adopts, watches) = (client.clone(), client.clone());
    let adopting = tokio::spawn(async move { adopts.adopt(LeaseId::random()).await });
    let _hangs = node.receive().await;
    let watching = tokio::spawn(async move { watches.watch("a").next().await });
    let mut stream = node.receive().await;
    stream.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nretry: 500\n\n").await;
    assert_eq!(client.close(SOON).await, 0);
    assert_eq!(adopting.await.unwrap().unwrap_err(), Error::Closed);
    assert_eq!(timeout(SOON, watching).await.unwrap().unwrap(), Err(Error::Closed));
}

#[tokio::test]
async fn a_close_waits_no_longer_than_it_is_told_to_and_sends_nothing_later() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let leases = [acquired(&node, &client, true).await, acquired(&node, &client, true).await];
    let ids = leases.each_ref().map(|lease| lease.lease_id().to_string());
    let begun = Instant::now();
    let (left, requests) = tokio::join!(client.close(Duration::from_millis(500)), async {
        [node.receive().await, node.receive().await]
    });
    assert_eq!(left, 2);
    assert!(begun.elapsed() >= Duration::from_millis(500));
    assert!(ids.iter().all(|id| requests.iter().any(|request| request.path.ends_with(id))));
    drop(requests);
    drop(leases);
    assert_eq!(client.close(SOON).await, 0, "nothing is under way");
    assert!(timeout(LATER, node.receive()).await.is_err());
}

/// Somebody goes on with it.
#[tokio::test]
async fn a_lease_that_was_left_to_its_id_outlives_the_client() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    acquired(&node, &client, true).await.into_id();
    assert_eq!(client.close(SOON).await, 0);
    assert!(timeout(LATER, node.receive()).await.is_err());
}

/// Somebody else may have had the key by then.
#[tokio::test]
async fn a_lease_that_was_lost_before_its_client_was_closed_says_so() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lease = acquired(&node, &client, true).await;
    let (id, stale) = (lease.lease_id().to_string(), lease.stale());
    let (left, ()) = tokio::join!(client.close(SOON), deleted(&node, &id));
    assert_eq!((left, lease.release().await), (0, Err(stale)));
}

#[tokio::test]
async fn a_grant_to_a_client_that_is_being_closed_is_released_at_once() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lock = client.lock("a").ttl(Duration::from_secs(600)).hold_at_least(Duration::from_secs(300));
    let acquiring = tokio::spawn(lock.try_acquire());
    let put = node.receive().await;
    let id = id(&put);
    let mut closed = pin!(client.close(SOON));
    assert!(closed.as_mut().now_or_never().is_none(), "it waits for the acquire");
    let (left, ()) = tokio::join!(closed, async {
        grant(put).await;
        deleted(&node, &id).await;
    });
    assert_eq!((left, acquiring.await.unwrap().unwrap_err()), (0, Error::Closed));
}

/// Its holder may give up meanwhile.
#[tokio::test]
async fn a_release_by_the_holder_that_is_under_way_is_waited_for_and_repeated() {
    for gives_up in [false, true] {
        let node = ScriptedNode::new().await;
        let client = Client::connect([node.url()]).unwrap();
        let lease = acquired(&node, &client, true).await;
        let id = lease.lease_id().to_string();
        let releasing = tokio::spawn(lease.release());
        let first = node.receive().await;
        let mut closed = pin!(client.close(SOON));
        assert!(closed.as_mut().now_or_never().is_none(), "it is under way");
        if gives_up {
            releasing.abort();
            assert!(releasing.await.unwrap_err().is_cancelled());
            let (left, ()) = tokio::join!(closed, deleted(&node, &id));
            assert_eq!(left, 0);
        } else {
            first.respond("204 No Content", "").await;
            assert_eq!((closed.await, releasing.await.unwrap()), (0, Ok(())));
        }
    }
}

/// The runtimes on which `main` may run.
fn runtimes() -> [Runtime; 2] {
    let mut flavors = [Builder::new_current_thread(), Builder::new_multi_thread()];
    flavors.each_mut().map(|flavor| flavor.enable_all().build().unwrap())
}

/// A release, which the node answers while another thread ends the runtime.
fn ends_with_a_release(outer: &Runtime, node: &ScriptedNode, runtime: Runtime, id: &str) {
    let ending = std::thread::spawn(move || {
        drop(runtime);
        Instant::now()
    });
    let answered = outer.block_on(async {
        let request = node.receive().await;
        is_delete(&request, id);
        let answered = Instant::now();
        request.respond("204 No Content", "").await;
        answered
    });
    assert!(ending.join().unwrap() >= answered, "the end waits for the release");
}

#[test]
fn a_runtime_that_ends_leaves_neither_places_nor_leases_behind() {
    let outer = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = outer.block_on(ScriptedNode::new());
    for waits in [true, false] {
        for runtime in runtimes() {
            let client = Client::connect([node.url()]).unwrap();
            let acquiring = client.lock("a").ttl(Duration::from_secs(600)).acquire();
            let (granted, is_granted) = oneshot::channel();
            // Has it, or waits for it, until it is dropped.
            runtime.spawn(async move {
                let _lease = acquiring.await.unwrap();
                granted.send(()).unwrap();
                std::future::pending::<()>().await;
            });
            let put = std::thread::scope(|scope| {
                // A runtime of one thread is driven by whoever waits for it.
                let put = scope.spawn(|| outer.block_on(node.receive()));
                runtime.block_on(async {
                    while !put.is_finished() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                });
                put.join().unwrap()
            });
            let id = id(&put);
            let mut open = None;
            if waits {
                open = Some(put);
            } else {
                outer.block_on(grant(put));
                runtime.block_on(is_granted).unwrap();
            }
            ends_with_a_release(&outer, &node, runtime, &id);
            drop(open);
        }
    }
}

#[test]
fn a_release_that_is_under_way_when_its_runtime_ends_is_done_all_the_same() {
    let outer = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = outer.block_on(ScriptedNode::new());
    for runtime in runtimes() {
        let client = Client::connect([node.url()]).unwrap();
        let lease = runtime.block_on(async {
            let acquiring = tokio::spawn(client.lock("a").ttl(Duration::from_secs(600)).acquire());
            let put = node.receive().await;
            grant(put).await;
            acquiring.await.unwrap().unwrap()
        });
        let id = lease.lease_id().to_string();
        let hangs = runtime.block_on(async {
            drop(lease);
            node.receive().await
        });
        is_delete(&hangs, &id);
        ends_with_a_release(&outer, &node, runtime, &id);
    }
}

/// What is to be held is: the program may be started again elsewhere.
#[test]
fn a_runtime_that_ends_keeps_what_is_to_be_held_at_least_for_a_time() {
    let outer = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = outer.block_on(ScriptedNode::new());
    for runtime in runtimes() {
        let client = Client::connect([node.url()]).unwrap();
        let lock = client.lock("a").ttl(Duration::from_secs(1)).no_renew();
        let lock = lock.hold_at_least(Duration::from_secs(600));
        let lease = runtime.block_on(async {
            let (lease, ()) = tokio::join!(lock.acquire(), async { grant(node.receive().await).await });
            lease.unwrap()
        });
        let id = lease.lease_id().to_string();
        drop(runtime);
        let dropping = std::thread::spawn(move || drop(lease));
        let request = outer.block_on(node.receive());
        assert_eq!(
            (request.method.as_str(), request.path.clone()),
            ("POST", format!("/v1/leases/{id}/renew"))
        );
        assert!(String::from_utf8_lossy(&request.body).contains("ttl_ms"));
        outer.block_on(grant(request));
        dropping.join().unwrap();
    }
}

/// A drop that waits would hold up all that runs there.
#[test]
fn a_lease_of_a_runtime_that_has_ended_is_released_by_the_one_that_drops_it() {
    let [second, first] = runtimes();
    let node = second.block_on(ScriptedNode::new());
    let client = Client::connect([node.url()]).unwrap();
    // The runtime of many threads goes on by itself.
    let acquiring = first.spawn(client.lock("a").ttl(Duration::from_secs(600)).acquire());
    let lease = second.block_on(async {
        grant(node.receive().await).await;
        acquiring.await.unwrap().unwrap()
    });
    let id = lease.lease_id().to_string();
    drop(first);
    second.block_on(async {
        drop(lease);
        let mut closed = pin!(client.close(SOON));
        assert!(closed.as_mut().now_or_never().is_none(), "it is under way");
        let (left, ()) = tokio::join!(closed, deleted(&node, &id));
        assert_eq!(left, 0);
    });
}

/// It is bounded, however many leases there are.
#[test]
fn the_end_of_a_runtime_waits_for_a_second_for_a_node_that_does_not_answer() {
    let outer = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = outer.block_on(ScriptedNode::new());
    let client = Client::connect([node.url()]).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let leases: Vec<_> = (0..20).map(|_| runtime.block_on(acquired(&node, &client, true))).collect();
    let begun = Instant::now();
    drop(runtime);
    drop(leases);
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(900), "{waited:?}");
    // With a limit of its own, each would have made it 20 s.
    assert!(waited < Duration::from_secs(10), "{waited:?}");
}
