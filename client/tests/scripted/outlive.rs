//! Leases that are held at least for a time.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use ringfence_client::wire::EndReason;
use ringfence_client::{Client, Error, Lease, Loss, State};
use serde_json::Value;

use crate::scripted::node::{Received, SOON, ScriptedNode};

const TTL: Duration = Duration::from_secs(600);

/// Answers a PUT or a renewal.
async fn grant(request: Received, lease_id: &str) {
    let status = if request.method == "PUT" { "201 Created" } else { "200 OK" };
    let grant = format!(
        r#"{{"lease_id":"{lease_id}","state":"granted","token":7,"holder":null,"ttl_ms":600000,"expires_in_ms":600000,"keys":[]}}"#
    );
    request.respond(status, &grant).await;
}

async fn acquired(node: &ScriptedNode, client: &Client, least: Duration) -> Lease {
    let lock = client.lock("a").ttl(TTL).hold_at_least(least);
    let (lease, ()) = tokio::join!(lock.acquire(), async {
        let request = node.receive().await;
        let lease_id = request.path.rsplit('/').next().unwrap().to_owned();
        grant(request, &lease_id).await;
    });
    lease.unwrap()
}

/// The next request, which renews the lease for this time or a little less.
async fn renewal(node: &ScriptedNode, lease_id: &str, least: Duration) -> Received {
    let request = node.receive().await;
    assert_eq!((request.method.as_str(), &request.path), ("POST", &format!("/v1/leases/{lease_id}/renew")));
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let ttl_ms = u128::from(body["ttl_ms"].as_u64().unwrap());
    let most = least + least / 500 + Duration::from_millis(1);
    assert!(ttl_ms <= most.as_millis(), "{body}");
    request
}

async fn deleted(node: &ScriptedNode, lease_id: &str) {
    let request = node.receive().await;
    assert_eq!((request.method.as_str(), &request.path), ("DELETE", &format!("/v1/leases/{lease_id}")));
    request.respond("204 No Content", "").await;
}

#[tokio::test]
async fn a_lease_outlives_its_release_and_its_drop_for_as_long_as_it_was_to_be_held() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    for is_dropped in [false, true] {
        let (begun, least) = (Instant::now(), Duration::from_secs(2));
        let lease = acquired(&node, &client, least).await;
        let (id, lost) = (lease.lease_id().to_string(), lease.lost());
        let answer = async { grant(renewal(&node, &id, least).await, &id).await };
        if is_dropped {
            drop(lease);
            answer.await;
        } else {
            let ((), released) = tokio::join!(answer, lease.release());
            assert_eq!(released, Ok(()));
        }
        assert_eq!(lost.await, Loss::Ended(EndReason::Released), "its holder has left it");
        deleted(&node, &id).await;
        assert!(begun.elapsed() >= least);
    }
}

/// The time once counted from the request, and had passed when the grant came.
#[tokio::test]
async fn the_time_counts_from_the_grant_however_long_that_was_waited_for() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let (least, waited) = (Duration::from_secs(600), Duration::from_secs(2));
    let lock = client.lock("a").ttl(TTL).hold_at_least(least);
    let (lease, id) = tokio::join!(lock.acquire(), async {
        let request = node.receive().await;
        tokio::time::sleep(waited).await;
        let id = request.path.rsplit('/').next().unwrap().to_owned();
        grant(request, &id).await;
        id
    });
    let granted = Instant::now();
    drop(lease.unwrap());
    let request = renewal(&node, &id, least).await;
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let asked = Duration::from_millis(body["ttl_ms"].as_u64().unwrap());
    assert!(asked + granted.elapsed() >= least, "{asked:?}");
    grant(request, &id).await;
}

/// A program that ends right after the renewal is sure of the time. One that has not got there is not.
#[tokio::test]
async fn who_closes_the_client_waits_for_the_renewal_and_not_for_the_time() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let hour = Duration::from_secs(3_600);
    let lease = acquired(&node, &client, hour).await;
    let id = lease.lease_id().to_string();
    drop(lease);
    let request = renewal(&node, &id, hour).await;
    let closed = client.close(SOON);
    tokio::pin!(closed);
    assert!(closed.as_mut().now_or_never().is_none());
    grant(request, &id).await;
    assert_eq!(closed.await, 0);
}

#[tokio::test]
async fn a_lease_that_was_held_for_long_enough_is_released_at_once() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let lease = acquired(&node, &client, Duration::from_millis(1)).await;
    let id = lease.lease_id().to_string();
    let passed = Instant::now() + Duration::from_millis(2);
    while Instant::now() < passed {
        tokio::task::yield_now().await;
    }
    let (released, ()) = tokio::join!(lease.release(), deleted(&node, &id));
    assert_eq!(released, Ok(()));
}

/// Others may have its keys: nothing is kept.
#[tokio::test]
async fn a_lost_lease_is_not_kept_and_its_release_says_so() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let hour = Duration::from_secs(3_600);
    let lease = acquired(&node, &client, hour).await;
    let id = lease.lease_id().to_string();
    let gone = r#"{"type":"urn:ringfence:problem:lease-gone","title":"","status":410,"detail":"","reason":"revoked"}"#;
    let (released, ()) = tokio::join!(lease.release(), async {
        renewal(&node, &id, hour).await.respond("410 Gone", gone).await;
    });
    let lost = Loss::Ended(EndReason::Revoked);
    assert_eq!(released, Err(Error::Lost(lost)));
    assert_eq!(client.close(SOON).await, 0);

    // It is known before.
    let client = Client::connect([node.url()]).unwrap();
    let lease = acquired(&node, &client, hour).await;
    let id = lease.lease_id().to_string();
    let (renewed, ()) = tokio::join!(lease.renew(), async {
        node.receive().await.respond("410 Gone", gone).await;
    });
    assert_eq!((renewed, lease.state()), (Err(Error::Lost(lost)), State::Lost(lost)));
    let (released, ()) = tokio::join!(lease.release(), deleted(&node, &id));
    assert_eq!(released, Err(Error::Lost(lost)));
}

#[tokio::test]
async fn a_renewal_for_the_rest_with_an_unknown_outcome_is_repeated_in_the_background() {
    let node = ScriptedNode::new().await;
    let client = Client::connect([node.url()]).unwrap();
    let hour = Duration::from_secs(3_600);
    let lease = acquired(&node, &client, hour).await;
    let (lease_id, id) = (lease.lease_id(), lease.lease_id().to_string());
    let script = async {
        loop {
            node.receive().await.respond("502 Bad Gateway", "").await;
        }
    };
    let released = tokio::select! {
        released = lease.release() => released,
        () = script => unreachable!("the script has no end"),
    };
    assert!(
        matches!(&released, Err(Error::Unknown { lease_id: Some(id), .. }) if *id == lease_id),
        "{released:?}"
    );
    grant(renewal(&node, &id, hour).await, &id).await;
    assert_eq!(client.close(SOON).await, 0);
}
