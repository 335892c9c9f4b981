use ringfence_wire::Grant;
use serde_json::{Value, json};

use crate::service::Service;

#[tokio::test]
async fn a_renewal_restores_the_full_time_to_live() {
    let service = Service::start().await;
    let grant = service.hold("a").await;
    let target = format!("/v1/leases/{}/renew", grant.lease_id);
    for body in [Value::Null, json!({}), json!({ "ttl_ms": null })] {
        let renewed: Grant = service.post(&target, body).await.expect(200);
        assert_eq!(renewed.token, grant.token, "a renewal is no new grant");
        assert_eq!(renewed.expires_in_ms, Some(15_000));
    }
    let renewed: Grant = service.post(&target, json!({ "ttl_ms": 60_000 })).await.expect(200);
    assert_eq!((renewed.ttl_ms, renewed.expires_in_ms), (60_000, Some(60_000)));
}
