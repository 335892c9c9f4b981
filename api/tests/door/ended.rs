use ringfence_wire::{BatchAnswer, BatchBody, EndReason, Grant, LeaseId};
use serde_json::{Value, json};

use crate::client::{Connection, request};
use crate::service::{Service, eventually};

/// PUT, renewal and GET of an ended lease say how it ended.
async fn is_gone(service: &Service, id: LeaseId, reason: EndReason) {
    let renew = format!("/v1/leases/{id}/renew");
    for response in [
        service.put(id, json!({ "keys": ["a"] })).await,
        service.post(&renew, Value::Null).await,
        service.lease(id).await,
    ] {
        assert_eq!(response.problem("lease-gone").reason, Some(reason));
    }
}

/// So does a release, alone, in a batch, and repeated.
async fn is_lost(service: &Service, id: LeaseId, reason: EndReason) {
    is_gone(service, id, reason).await;
    let operation = json!({ "release": { "lease_id": id } });
    let batch = json!({ "operations": [operation, operation] });
    for _ in 0..2 {
        let alone = service.call("DELETE", &format!("/v1/leases/{id}"), Value::Null).await;
        assert_eq!(alone.problem("lease-gone").reason, Some(reason));
        let BatchAnswer { results } = service.post("/v1/batch", batch.clone()).await.expect(200);
        for result in results {
            let Some(BatchBody::Problem(problem)) = &result.body else { panic!("{result:?}") };
            assert_eq!((result.status, problem.reason), (410, Some(reason)));
        }
    }
}

#[tokio::test]
async fn a_released_lease_is_gone() {
    let service = Service::start().await;
    let grant = service.hold("a").await;
    service.delete(grant.lease_id).await;
    service.delete(grant.lease_id).await;
    is_gone(&service, grant.lease_id, EndReason::Released).await;
}

#[tokio::test]
async fn an_expired_lease_is_gone() {
    let service = Service::start().await;
    let body = json!({ "keys": ["a"], "ttl_ms": 100 });
    let grant: Grant = service.put(LeaseId::random(), body).await.expect(201);
    eventually("it expires", || service.handle.view(|table| table.live()) == 0).await;
    is_lost(&service, grant.lease_id, EndReason::Expired).await;
}

#[tokio::test]
async fn a_revoked_lease_is_gone() {
    let service = Service::start().await;
    let grant = service.hold("a").await;
    let body = json!({ "key": "a", "token": grant.token });
    let response = service.post("/v1/revoke", body.clone()).await;
    assert_eq!(response.status, 204);
    is_lost(&service, grant.lease_id, EndReason::Revoked).await;
    service.post("/v1/revoke", body).await.problem("not-live");
}

#[tokio::test]
async fn a_token_is_revoked_only_on_a_key_that_it_holds() {
    let service = Service::start().await;
    let grant = service.hold("a").await;
    service.post("/v1/revoke", json!({ "key": "b", "token": grant.token })).await.problem("not-live");
    service.post("/v1/revoke", json!({ "key": "a", "token": grant.token.0 + 1 })).await.problem("not-live");
    service.lease(grant.lease_id).await.expect::<Grant>(200);
}

#[tokio::test]
async fn an_abandoned_lease_is_gone() {
    let service = Service::start().await;
    service.hold("a").await;
    let id = LeaseId::random();
    let body = json!({ "keys": ["a"], "wait_ms": 60_000 }).to_string();
    let mut connection = Connection::open(service.address).await;
    connection.send(&request("PUT", &format!("/v1/leases/{id}"), &[], body.as_bytes())).await;
    service.until_waiters(1).await;
    drop(connection);
    service.until_waiters(0).await;
    is_lost(&service, id, EndReason::Abandoned).await;
}
