use std::sync::atomic::Ordering::SeqCst;

use ringfence_wire::LeaseId;
use serde_json::{Value, json};

use crate::service::Service;

#[tokio::test]
async fn every_answer_names_the_leader_and_the_cluster() {
    let service = Service::start().await;
    let url = format!("http://{}", service.address);
    let status: Value = service.get("/v1/cluster").await.expect(200);
    for (method, target) in
        [("GET", "/livez"), ("GET", "/nowhere"), ("PATCH", "/v1/keys"), ("PUT", "/v1/leases/x")]
    {
        let response = service.send(method, target, &[], b"").await;
        assert_eq!(response.header("ringfence-leader"), Some(url.as_str()), "{method} {target}");
        assert_eq!(response.header("ringfence-cluster"), status["cluster_id"].as_str(), "{method} {target}");
    }
}

#[tokio::test]
async fn a_response_repeats_the_request_id_and_makes_none() {
    let service = Service::start().await;
    let id_of = async |method: &str, target: &str, headers: &[(&str, &str)]| {
        let response = service.send(method, target, headers, b"").await;
        response.header("x-request-id").map(str::to_owned)
    };
    for (method, target) in [("GET", "/livez"), ("PUT", "/v1/leases/x"), ("PATCH", "/nowhere")] {
        let sent = id_of(method, target, &[("X-Request-Id", "a-1/b:2")]).await;
        assert_eq!(sent.as_deref(), Some("a-1/b:2"), "{method} {target}");
        assert_eq!(id_of(method, target, &[]).await, None, "{method} {target}");
        assert_eq!(id_of(method, target, &[("x-request-id", "two words")]).await, None, "{method} {target}");
    }
}

/// A client that waits does not know which thread has its request.
#[tokio::test]
async fn a_node_lives_while_no_thread_hangs_for_longer_than_the_client_allows() {
    let service = Service::start().await;
    let live = async |headers: &[(&str, &str)]| service.send("GET", "/livez", headers, b"").await;
    for (hangs_for_ms, allows, lives) in [
        (0, None, true),
        (900, Some("1000"), true),
        (1_100, Some("1000"), false),
        (1_100, Some("2000"), true),
        (1_100, None, true),
        (9_000, None, true),
        (11_000, None, false),
        (11_000, Some("18446744073709551615"), false),
    ] {
        service.hangs_for_ms.store(hangs_for_ms, SeqCst);
        let headers: Vec<_> = allows.into_iter().map(|ms| ("Ringfence-Within-Ms", ms)).collect();
        let response = live(&headers).await;
        if lives {
            response.expect::<Value>(200);
        } else {
            let problem = response.problem("unavailable");
            assert!(problem.detail.contains("a thread has been blocked for 1"), "{}", problem.detail);
        }
    }
    for (hangs_for_ms, is_ready) in [(1_900, true), (2_100, false), (0, true)] {
        service.hangs_for_ms.store(hangs_for_ms, SeqCst);
        let status = service.get("/readyz").await.status;
        assert_eq!(status, if is_ready { 200 } else { 503 }, "{hangs_for_ms}");
    }
    for wrong in ["", "499", "-1", "1.5", "1s", "18446744073709551616"] {
        let problem = live(&[("Ringfence-Within-Ms", wrong)]).await.problem("invalid-request");
        assert_eq!(problem.field.as_deref(), Some("ringfence-within-ms"), "{wrong}");
    }
}

#[tokio::test]
async fn the_cluster_status_has_its_members_and_their_progress() {
    let service = Service::start().await;
    service.hold("a").await;
    let status: Value = service.get("/v1/cluster").await.expect(200);
    assert_eq!(
        (&status["role"], &status["leader"], &status["node_id"]),
        (&json!("leader"), &json!(1), &json!(1))
    );
    assert_eq!(status["members"]["1"]["voter"], true);
    assert_eq!(status["live_leases"], 1);
    assert_eq!(status["revision"], service.handle.view(|table| table.revision().0));
}

#[tokio::test]
async fn metrics_have_routes_and_outcomes_but_no_values_from_clients() {
    let service = Service::start().await;
    let grant = service.hold("secret-key").await;
    let id = LeaseId::random();
    service.put(id, json!({ "keys": ["secret-key"] })).await.problem("held");
    service.put(id, json!({ "keys": ["secret-key"], "wait_ms": 100 })).await.problem("wait-timeout");
    service.post(&format!("/v1/leases/{}/renew", grant.lease_id), Value::Null).await;
    service.get("/v1/keys/secret-key").await;
    service.get("/secret-path").await;
    let waiting =
        service.put_later(LeaseId::random(), json!({ "keys": ["secret-key"], "wait_ms": 60_000 })).await;
    service.until_waiters(1).await;
    service.delete(grant.lease_id).await;
    waiting.await.unwrap();

    let response = service.get("/metrics").await;
    let text = String::from_utf8(response.body).unwrap();
    for line in [
        r#"ringfence_acquire_total{outcome="granted"} "#,
        r#"ringfence_acquire_total{outcome="held"} "#,
        r#"ringfence_acquire_total{outcome="wait-timeout"} "#,
        r#"ringfence_renew_total{outcome="renewed"} "#,
        "ringfence_release_total ",
        r#"ringfence_acquire_wait_seconds_bucket{le="60"} "#,
        r#"ringfence_http_requests_total{method="PUT",route="/v1/leases/{lease_id}",status="201"} "#,
        r#"ringfence_http_requests_total{method="GET",route="/v1/keys/{key}",status="200"} "#,
        r#"ringfence_http_requests_total{method="GET",route="none",status="404"} "#,
        r#"ringfence_http_request_duration_seconds_bucket{method="PUT",route="/v1/leases/{lease_id}",le="0.001"} "#,
        "ringfence_raft_has_leader 1",
        "ringfence_raft_is_leader 1",
        "ringfence_raft_term ",
        "ringfence_raft_last_log_index ",
        "ringfence_raft_committed_index ",
        "ringfence_raft_applied_index ",
        "ringfence_leases_live ",
        "ringfence_waiters ",
        "ringfence_watchers ",
        "ringfence_revision ",
    ] {
        assert!(text.lines().any(|it| it.starts_with(line)), "lacks {line}: {text}");
    }
    assert!(!text.contains("secret") && !text.contains(&grant.lease_id.to_string()), "{text}");
}
