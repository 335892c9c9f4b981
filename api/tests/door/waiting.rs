use std::io::Write;
use std::time::Duration;

use ringfence_wire::{EndReason, Grant, LeaseId, Waiting};
use serde_json::json;
use tokio::time::Instant;

use crate::client::{Connection, request};
use crate::service::{Service, eventually};

#[tokio::test]
async fn a_release_grants_the_next_waiter() {
    let service = Service::start().await;
    let holder = service.hold("a").await;
    let id = LeaseId::random();
    let waiting = service.put_later(id, json!({ "keys": ["a"], "wait_ms": 60_000 })).await;
    service.until_waiters(1).await;
    service.delete(holder.lease_id).await;
    let grant: Grant = waiting.await.unwrap().expect(201);
    assert_eq!(grant.lease_id, id);
    assert!(grant.token > holder.token);
}

#[tokio::test]
async fn a_wait_times_out_and_its_repeat_too() {
    let service = Service::start().await;
    let holder = service.hold("a").await;
    let id = LeaseId::random();
    let began = Instant::now();
    let body = json!({ "keys": ["a"], "wait_ms": 200 });
    let problem = service.put(id, body.clone()).await.problem("wait-timeout");
    assert!(began.elapsed() >= Duration::from_millis(200), "it waited");
    assert_eq!(problem.lease_id, Some(id));
    service.delete(holder.lease_id).await;
    service.put(id, body).await.problem("wait-timeout");
    service.lease(id).await.problem("wait-timeout");
    service.hold("a").await;
}

#[tokio::test]
async fn a_waiter_whose_connection_closes_loses_its_place_to_the_next() {
    let service = Service::start().await;
    let holder = service.hold("a").await;
    let gone = LeaseId::random();
    let body = json!({ "keys": ["a"], "wait_ms": 60_000 });
    let mut connection = Connection::open(service.address).await;
    connection.send(&request("PUT", &format!("/v1/leases/{gone}"), &[], body.to_string().as_bytes())).await;
    service.until_waiters(1).await;
    let waiting = service.put_later(LeaseId::random(), body).await;
    service.until_waiters(2).await;

    let closed_at = Instant::now();
    drop(connection);
    service.until_waiters(1).await;
    let took = closed_at.elapsed();
    assert!(took >= Duration::from_millis(1_900), "it took {took:?}");
    assert_eq!(service.lease(gone).await.problem("lease-gone").reason, Some(EndReason::Abandoned));
    service.delete(holder.lease_id).await;
    waiting.await.unwrap().expect::<Grant>(201);
}

/// hyper does not notice a hang-up behind bytes that it has not parsed yet.
#[tokio::test]
#[ignore = "slow"]
async fn a_hang_up_is_noticed_behind_further_bytes() {
    let service = Service::start().await;
    service.hold("a").await;
    let body = json!({ "keys": ["a"], "wait_ms": 60_000 });
    let later = [b"\r\n".to_vec(), request("GET", "/livez", &[], b""), vec![b' '; 4_000]];
    for (sent_with_it, more) in later.iter().flat_map(|more| [(true, more), (false, more)]) {
        let gone = LeaseId::random();
        let put = request("PUT", &format!("/v1/leases/{gone}"), &[], body.to_string().as_bytes());
        let mut connection = Connection::open(service.address).await;
        if sent_with_it {
            connection.send(&[put, more.clone()].concat()).await;
            service.until_waiters(1).await;
        } else {
            connection.send(&put).await;
            service.until_waiters(1).await;
            connection.send(more).await;
        }
        drop(connection);
        service.until_waiters(0).await;
        assert_eq!(service.lease(gone).await.problem("lease-gone").reason, Some(EndReason::Abandoned));
    }
}

/// As after a pause of the node, or when it is slower than its clients' timeouts.
#[tokio::test]
async fn a_request_that_was_abandoned_before_it_is_read_is_not_executed() {
    let service = Service::start().await;
    let holder = service.hold("held").await;
    let ids = [(); 3].map(|()| LeaseId::random());
    let body = br#"{"keys":["a"]}"#;
    let long = [&body[..], &[b' '; 200_000]].concat();
    let batch = json!({ "operations": [{ "acquire": { "lease_id": ids[2], "keys": ["a"] } }] }).to_string();
    for bytes in [
        request("PUT", &format!("/v1/leases/{}", ids[0]), &[], body),
        request("PUT", &format!("/v1/leases/{}", ids[1]), &[], &long),
        request("POST", "/v1/batch", &[], batch.as_bytes()),
        request("DELETE", &format!("/v1/leases/{}", holder.lease_id), &[], b""),
    ] {
        // Nothing else runs meanwhile: the node runs on this thread.
        let mut connection = std::net::TcpStream::connect(service.address).unwrap();
        connection.write_all(&bytes).unwrap();
    }
    // Later connections are accepted by a later turn.
    service.get("/livez").await;
    eventually("they are read", || service.connections.count().0 == 0).await;
    for id in ids {
        service.lease(id).await.problem("unknown-lease");
    }
    service.lease(holder.lease_id).await.expect::<Grant>(200);
    service.hold("a").await;
}

/// Regression: it ended 2 s later.
#[tokio::test]
async fn a_late_put_on_a_closed_connection_ends_no_lease_that_was_answered() {
    let service = Service::start().await;
    let held = service.hold("a").await;
    let mut late = Connection::open(service.address).await;
    let body = json!({ "keys": ["a"], "wait_ms": 60_000 });
    let target = format!("/v1/leases/{}", held.lease_id);
    late.send(&request("PUT", &target, &[], body.to_string().as_bytes())).await;
    drop(late);
    // Longer than the 2 s after which an acquire is abandoned.
    let body = json!({ "keys": ["a"], "wait_ms": 3_000 });
    service.put(LeaseId::random(), body).await.problem("wait-timeout");
    service.lease(held.lease_id).await.expect::<Grant>(200);
}

#[tokio::test]
async fn a_draining_node_answers_its_waiters_and_keeps_their_places() {
    let service = Service::start().await;
    let holder = service.hold("a").await;
    let [kept, plain] = [LeaseId::random(), LeaseId::random()];
    let body = |keep_place| json!({ "keys": ["a"], "wait_ms": 60_000, "keep_place": keep_place });
    let kept_answer = service.put_later(kept, body(true)).await;
    service.until_waiters(1).await;
    let plain_answer = service.put_later(plain, body(false)).await;
    service.until_waiters(2).await;
    service.get("/readyz").await.expect::<serde_json::Value>(200);

    service.draining.send(true).unwrap();
    assert_eq!(kept_answer.await.unwrap().expect::<Waiting>(202).ahead, 0);
    assert_eq!(plain_answer.await.unwrap().problem("indeterminate").lease_id, Some(plain));
    service.get("/readyz").await.problem("unavailable");
    service.get("/livez").await.expect::<serde_json::Value>(200);
    assert_eq!(service.lease(plain).await.expect::<Waiting>(200).ahead, 1);
    service.delete(holder.lease_id).await;
    service.put(kept, body(true)).await.expect::<Grant>(200);
}
