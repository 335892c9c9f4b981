use ringfence_wire::{BatchAnswer, BatchBody, EndReason, LeaseId};
use serde_json::{Value, json};

use crate::service::Service;

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
async fn a_revoked_lease_is_gone() {
    let service = Service::start().await;
    let grant = service.hold("a").await;
    let body = json!({ "key": "a", "token": grant.token });
    let response = service.post("/v1/revoke", body.clone()).await;
    assert_eq!(response.status, 204);
    is_lost(&service, grant.lease_id, EndReason::Revoked).await;
    service.post("/v1/revoke", body).await.problem("not-live");
}
