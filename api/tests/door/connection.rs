use std::io::Write;
use std::time::Duration;

use ringfence_wire::{Grant, LeaseId};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::client::{Connection, request};
use crate::service::{MOST_CONNECTIONS, Service};

#[tokio::test]
async fn requests_on_one_connection_are_answered_in_their_order() {
    let service = Service::start().await;
    let id = LeaseId::random();
    let target = format!("/v1/leases/{id}");
    let mut connection = Connection::open(service.address).await;
    let requests = [
        request("PUT", &target, &[], br#"{"keys":["a"]}"#),
        request("DELETE", &target, &[], b""),
        request("GET", "/nowhere", &[], b""),
        request("PUT", &target, &[], b"{"),
        request("HEAD", "/v1/keys/a", &[], b""),
        request("GET", "/v1/keys/a", &[], b""),
    ];
    connection.send(&requests.concat()).await;
    let mut statuses = Vec::new();
    for number in 0..requests.len() {
        statuses.push(connection.receive(number == 4).await.status);
    }
    assert_eq!(statuses, [201, 204, 404, 400, 200, 200]);
}

/// Many clients send the body after the head. The connection was once closed in between, and some never saw the response.
#[tokio::test]
async fn a_denial_waits_for_the_body_and_keeps_the_connection() {
    let service = Service::start().await;
    // As large as a batch may be.
    for size in [20, 1 << 20] {
        denied(&service, &vec![b' '; size]).await;
    }
}

async fn denied(service: &Service, body: &[u8]) {
    let mut connection = Connection::open(service.address).await;
    let foreign = request("POST", "/v1/batch", &[("Origin", "http://evil.test")], body);
    let (head, body) = foreign.split_at(foreign.len() - body.len());
    connection.send(head).await;
    // If the server does not wait, it has answered by then.
    sleep(Duration::from_millis(200)).await;
    connection.send(body).await;
    assert_eq!(connection.receive(false).await.status, 421);
    connection.send(&request("GET", "/livez", &[], b"")).await;
    assert_eq!(connection.receive(false).await.status, 200);
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    let service = Service::start().await;
    let grant = service.hold("a").await;
    let lease = format!("/v1/leases/{}?consistency=local", grant.lease_id);
    for target in [
        lease.as_str(),
        "/v1/keys/a?consistency=local",
        "/v1/keys?consistency=local",
        "/livez",
        "/openapi.json",
        "/v1/keys/",
    ] {
        let mut connection = Connection::open(service.address).await;
        connection.send(&request("HEAD", target, &[], b"")).await;
        connection.send(&request("GET", target, &[], b"")).await;
        let head = connection.receive(true).await;
        let get = connection.receive(false).await;
        assert_eq!(head.status, get.status, "{target}");
        for name in ["content-length", "content-type", "ringfence-leader", "ringfence-cluster"] {
            assert_eq!(head.header(name), get.header(name), "{target}: {name}");
        }
    }
}

#[tokio::test]
async fn a_body_may_be_chunked() {
    let service = Service::start().await;
    let head = |id| format!("PUT /v1/leases/{id} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut connection = Connection::open(service.address).await;
    connection.send(head(LeaseId::random()).as_bytes()).await;
    for piece in ["8\r\n{\"keys\":\r\n", "6\r\n[\"a\"]}\r\n", "0\r\n\r\n"] {
        connection.send(piece.as_bytes()).await;
    }
    connection.receive(false).await.expect::<Grant>(201);

    let mut large = head(LeaseId::random()).into_bytes();
    for _ in 0..5 {
        write!(large, "{:x}\r\n", 256 << 10).unwrap();
        large.extend(std::iter::repeat_n(b' ', 256 << 10));
        large.extend(b"\r\n");
    }
    connection.send(&large).await;
    connection.send(b"0\r\n\r\n").await;
    connection.receive(false).await.problem("too-large");
    connection.send(&request("GET", "/livez", &[], b"")).await;
    assert_eq!(connection.receive(false).await.status, 200, "the connection is still in order");
}

#[tokio::test]
async fn a_truncated_body_changes_nothing() {
    let service = Service::start().await;
    let id = LeaseId::random();
    let head = format!("PUT /v1/leases/{id} HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n");
    let mut connection = Connection::open(service.address).await;
    connection.send(format!("{head}{{\"keys\":[\"a\"]}}").as_bytes()).await;
    drop(connection);
    service.hold("a").await;
    service.lease(id).await.problem("unknown-lease");
}

#[tokio::test]
#[ignore = "slow"]
async fn a_body_that_does_not_arrive_times_out() {
    let service = Service::start().await;
    let mut connection = Connection::open(service.address).await;
    let target = format!("/v1/leases/{}", LeaseId::random());
    connection
        .send(format!("PUT {target} HTTP/1.1\r\nhost: h\r\ncontent-length: 20\r\n\r\n{{").as_bytes())
        .await;
    let problem = connection.receive(false).await.problem("invalid-request");
    assert!(problem.detail.contains("10 s"), "{}", problem.detail);
}

#[tokio::test]
async fn idle_connections_are_evicted_for_new_ones() {
    let service = Service::start().await;
    let mut silent = Vec::new();
    for number in 0..MOST_CONNECTIONS + 100 {
        let mut connection = Connection::open(service.address).await;
        if number % 2 == 0 {
            connection.send(b"GET /livez HT").await;
        }
        silent.push(connection);
        if number % 50 == 0 {
            assert_eq!(service.get("/livez").await.status, 200);
        }
    }
    let grant = service.hold("a").await;
    let measured = String::from_utf8(service.get("/metrics").await.body).unwrap();
    assert!(measured.contains(&format!("ringfence_http_connections_most {MOST_CONNECTIONS}")), "{measured}");
    service.delete(grant.lease_id).await;
}

/// They held all connections, and then the holder had none to release its lease on.
#[tokio::test]
async fn waits_make_room_for_new_connections_the_newest_first() {
    let service = Service::start().await;
    let body = json!({ "keys": ["a"], "ttl_ms": 600_000 });
    let holder: Grant = service.put(LeaseId::random(), body).await.expect(201);
    let mut waiting = Vec::new();
    for _ in 0..MOST_CONNECTIONS {
        let body = json!({ "keys": ["a"], "wait_ms": 60_000, "ttl_ms": 60_000 });
        waiting.push(service.put_later(LeaseId::random(), body).await);
        service.until_waiters(waiting.len()).await;
    }
    service.get("/livez").await.expect::<Value>(200);
    // The newest waiter left its queue, and the others stay.
    service.until_waiters(MOST_CONNECTIONS - 1).await;
    assert!(waiting.pop().unwrap().await.is_err_and(|error| error.is_panic()), "its connection was closed");
    service.delete(holder.lease_id).await;
    waiting.remove(0).await.unwrap().expect::<Grant>(201);
}

#[tokio::test]
async fn unfinished_bodies_are_dropped_to_make_room() {
    const BODY: usize = 1 << 20;
    let service = Service::start().await;
    let body = [br#"{"keys":["a"]}"#, vec![b' '; BODY - 14].as_slice()].concat();
    // All but the end of each. The budget is 64 MiB, and each counts twice.
    let mut unfinished = Vec::new();
    for _ in 0..40 {
        let target = format!("/v1/leases/{}", LeaseId::random());
        let mut connection = Connection::open(service.address).await;
        connection.send(&request("PUT", &target, &[], &body)[..BODY - 9]).await;
        unfinished.push(connection);
    }
    let problem = unfinished[0].receive(false).await.problem("unavailable");
    assert!(problem.detail.contains("others go first"), "{}", problem.detail);
    let target = format!("/v1/leases/{}", LeaseId::random());
    service.send("PUT", &target, &[], &body).await.expect::<Grant>(201);
}
