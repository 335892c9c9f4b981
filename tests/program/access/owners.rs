//! Leases and the principals that acquired them, also when the rules change.

use std::fs;

use ringfence_access::Credential;
use ringfence_client::{Consistency, Error};
use ringfence_harness::{Answered, Cluster, until};
use ringfence_wire::{LeaseId, ProblemKind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::TTL;
use super::guarded::{guarded, guarded_on, new};
use crate::support::{ALL, PROGRAM, SOON, rules_of};

/// Longer than a waiting request may take to be answered.
const LONG_MS: u32 = 60_000;

#[tokio::test]
async fn leases_belong_to_the_principal_that_acquired_them_and_count_towards_its_limits() {
    let [ann, bob] = [new(), new()];
    let limited = format!("{}\nlimits = {{ leases = 2, waiting = 1 }}", ALL);
    let rules = rules_of("ann", &ann, &limited) + &rules_of("bob", &bob, ALL);
    let anonymous = "[anonymous]\nallow = [{ keys = \"*\", may = [\"acquire\"] }]\n";
    let guarded = guarded(&(rules + anonymous), &[]).await;
    let id = LeaseId::random();
    let lease = format!("/v1/leases/{id}");
    let send = async |who: &Credential, method: &str, target: &str, body: Option<Value>| {
        let (status, text) = guarded.send(method, target, Some(who.reveal()), body.as_ref()).await;
        (status, serde_json::from_str::<Value>(&text).unwrap_or_default())
    };
    let acquire = |key: &str, wait_ms: u32| {
        Some(json!({ "keys": [{ "key": key }], "wait_ms": wait_ms, "ttl_ms": LONG_MS }))
    };
    let renew = format!("{lease}/renew");
    // The anonymous are another principal: they cannot use the id of her lease, before or after she does.
    assert_eq!(guarded.send("DELETE", &lease, None, None).await.0, 204);
    assert_eq!(send(&ann, "PUT", &lease, acquire("a", 0)).await.0, 201);
    assert_eq!(guarded.send("POST", &renew, None, Some(&json!({}))).await.0, 410);
    for (method, target, body) in
        [("GET", &lease, None), ("POST", &renew, Some(json!({}))), ("DELETE", &lease, None)]
    {
        let (status, body) = send(&bob, method, target, body).await;
        assert_eq!(status, if method == "DELETE" { 204 } else { 404 }, "{method}: {body}");
    }
    let operations =
        json!({ "operations": [{ "renew": { "lease_id": id } }, { "release": { "lease_id": id } }] });
    let (_, body) = send(&bob, "POST", "/v1/batch", Some(operations)).await;
    assert_eq!((&body["results"][0]["status"], &body["results"][1]["status"]), (&json!(410), &json!(204)));
    assert_eq!(send(&ann, "POST", &renew, Some(json!({}))).await.0, 200);
    let other = format!("/v1/leases/{}", LeaseId::random());
    assert_eq!(send(&ann, "PUT", &other, acquire("b", 0)).await.0, 201);
    assert_eq!(send(&bob, "PUT", &other, acquire("c", 0)).await.0, 201, "the same id is another lease");
    let (status, body) = send(&ann, "POST", "/v1/leases", acquire("d", 0)).await;
    assert!(status == 429 && body["detail"].as_str().unwrap().contains("2 leases"), "{status}: {body}");
    assert_eq!(send(&ann, "DELETE", &other, None).await.0, 204);
    assert_eq!(send(&bob, "GET", &other, None).await.0, 200);

    // It waits for the lease that it has itself.
    let waiting = format!("/v1/leases/{}", LeaseId::random());
    let waits = guarded.waits(&waiting, &ann, acquire("a", LONG_MS).unwrap()).await;
    let view = async || send(&bob, "GET", "/v1/keys/a", None).await.1;
    let is_queued = async || (view().await["waiters"][0]["by"] == "ann").then_some(());
    until(SOON, "it waits", is_queued).await.unwrap();
    assert_eq!(view().await["holders"][0]["by"], "ann");
    let (status, body) = send(&ann, "POST", "/v1/leases", acquire("c", 0)).await;
    assert!(status == 409 || status == 429, "{status}: {body}");
    // Its own release grants the one that waits, and the request that waits for it learns that.
    assert_eq!(send(&ann, "DELETE", &lease, None).await.0, 204);
    let (status, body) = waits.await.unwrap();
    assert_eq!(status, 201, "{body}");
}

#[tokio::test]
async fn who_gets_another_name_waits_no_more_for_a_lease_of_the_old_one() {
    let (all, worker) = (new(), new());
    let rules = |name| rules_of("all", &all, ALL) + &rules_of(name, &worker, ALL);
    let guarded = guarded(&rules("worker"), &[]).await;
    let everything = guarded.client(guarded.cluster.nodes(), &all);
    let _held = everything.lock("a").ttl(TTL).acquire().await.unwrap();
    let body = json!({ "keys": [{ "key": "a" }], "wait_ms": LONG_MS });
    let waits = guarded.waits(&format!("/v1/leases/{}", LeaseId::random()), &worker, body).await;
    let waiters =
        async || everything.key("a", Consistency::Linearizable).await.map(|view| view.waiters.len());
    until(SOON, "it waits", async || (waiters().await.ok()? == 1).then_some(())).await.unwrap();
    guarded.replace_rules(&rules("renamed")).await;
    let (status, body) = waits.await.unwrap();
    assert_eq!(status, 403, "{body}");
    until(SOON, "its place is free", async || (waiters().await.ok()? == 0).then_some(())).await.unwrap();
}

/// A client that gets a name, because the rules name it from now on, would lose all its leases otherwise.
#[tokio::test]
async fn leases_from_before_there_were_rules_can_be_renewed_with_the_right_and_the_id() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let ids = [LeaseId::random(), LeaseId::random()];
    for (id, key) in ids.iter().zip(["own/a", "other/a"]) {
        let body = json!({ "keys": [{ "key": key }], "ttl_ms": 10 * LONG_MS });
        cluster.node(1).client().acquire(*id, &serde_json::from_value(body).unwrap()).await.done();
    }
    cluster.node(1).terminate().await.unwrap();
    let worker = new();
    let allow = "allow = [{ keys = \"own/\", may = [\"acquire\"] }]";
    let guarded = guarded_on(cluster, &rules_of("worker", &worker, allow), &[]).await;
    let renew = async |id: LeaseId| {
        let target = format!("/v1/leases/{id}/renew");
        guarded.send("POST", &target, Some(worker.reveal()), Some(&json!({}))).await.0
    };
    assert_eq!((renew(ids[0]).await, renew(ids[1]).await, renew(LeaseId::random()).await), (200, 403, 404));
}

#[tokio::test]
#[ignore = "slow"]
async fn who_loses_a_right_keeps_nothing_that_rests_on_it() {
    let (all, worker) = (new(), new());
    let rules = |allow: &str| rules_of("all", &all, ALL) + &rules_of("worker", &worker, allow);
    let may = rules("allow = [{ keys = \"a/\", may = [\"acquire\", \"read\"] }]");
    let guarded = guarded(&may, &[]).await;
    let (everything, client) =
        (guarded.client(guarded.cluster.nodes(), &all), guarded.client(guarded.cluster.nodes(), &worker));
    let held = client.lock("a/held").ttl(TTL).acquire().await.unwrap();
    let in_the_way = everything.lock("a/waiting").ttl(TTL).acquire().await.unwrap();
    let http = guarded.cluster.node(1).http();
    let mut watch = guarded.shake_hands(guarded.reach(http).await.unwrap(), http.ip()).await.unwrap();
    let secret = worker.reveal();
    let watches =
        format!("GET /v1/watch?prefix=a/ HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {secret}\r\n\r\n");
    watch.write_all(watches.as_bytes()).await.unwrap();
    let waiting = LeaseId::random();
    let body = json!({ "keys": [{ "key": "a/waiting" }], "wait_ms": LONG_MS });
    let acquire = guarded.waits(&format!("/v1/leases/{waiting}"), &worker, body).await;
    let queued = async || {
        (everything.key("a/waiting", Consistency::Linearizable).await.ok()?.waiters.len() == 1).then_some(())
    };
    until(SOON, "it waits", queued).await.unwrap();

    // What is not valid changes nothing.
    fs::write(guarded.path("access.toml"), may.replace("acquire", "aquire")).unwrap();
    let refused =
        async || guarded.cluster.node(1).log().contains("files that changed cannot be used").then_some(());
    until(SOON, "refused", refused).await.unwrap();
    assert!(client.renew(held.lease_id(), None).await.is_ok());
    let metrics = guarded.send("GET", "/metrics", Some(all.reveal()), None).await.1;
    assert!(metrics.contains("ringfence_files_refused{use=\"access\"} 1"), "{metrics}");

    guarded.replace_rules(&rules("allow = [{ keys = \"b/\", may = [\"acquire\", \"read\"] }]")).await;
    let denied = |result: Result<_, Error>| match result.err().unwrap() {
        Error::Rejected(problem) => assert_eq!(problem.kind, ProblemKind::Forbidden),
        other => panic!("{other:?}"),
    };
    denied(client.renew(held.lease_id(), None).await.map(drop));
    denied(client.lease(held.lease_id(), Consistency::Local).await.map(drop));
    denied(client.release(held.lease_id()).await);
    denied(client.lock("a/other").try_acquire().await.map(drop));
    assert!(client.lock("b/other").try_acquire().await.is_ok());
    // The watch ends, and the acquire that waited is answered and leaves the queue.
    let mut events = Vec::new();
    while !events.ends_with(b"\r\n0\r\n\r\n") {
        let read = tokio::time::timeout(SOON, watch.read_buf(&mut events)).await.unwrap().unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&events));
    }
    let (status, body) = acquire.await.unwrap();
    assert_eq!(status, 403, "{body}");
    let left = async || {
        everything.key("a/waiting", Consistency::Linearizable).await.ok()?.waiters.is_empty().then_some(())
    };
    until(SOON, "it left the queue", left).await.unwrap();
    in_the_way.release().await.unwrap();

    // A credential that is removed ends everything.
    guarded.replace_rules(&rules_of("all", &all, ALL)).await;
    match client.access().await {
        Err(Error::Rejected(problem)) => assert_eq!(problem.kind, ProblemKind::Unauthenticated),
        other => panic!("{other:?}"),
    }
    guarded.cluster.node(1).tells("a request was denied").await.unwrap();
    let log = guarded.cluster.node(1).log();
    for secret in [worker.reveal(), all.reveal(), &held.lease_id().to_string(), &waiting.to_string()] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
    assert!(log.contains("principal=\"worker\""), "{log}");
}
