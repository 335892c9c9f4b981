use ringfence_wire::{Grant, LeaseId, Verdict, VerdictName, VerdictsAnswer};
use serde_json::json;

use crate::service::Service;

#[tokio::test]
async fn a_linearizable_verdict_is_live_or_stale_or_of_a_token_that_may_be_granted_yet() {
    let service = Service::start().await;
    let grant = service.hold("a").await;
    let body = json!({ "key": "a", "token": grant.token });
    let verdict: Verdict = service.post("/v1/validate", body.clone()).await.expect(200);
    assert_eq!(verdict, Verdict { verdict: VerdictName::Live, fence: grant.token });

    service.delete(grant.lease_id).await;
    let verdict: Verdict = service.post("/v1/validate?consistency=linearizable", body).await.expect(200);
    assert_eq!(verdict.verdict, VerdictName::Stale);
    assert!(verdict.fence > grant.token, "every token so far is below the fence");
    // Once it was `stale`, which is for good, and then it was granted.
    let next = json!({ "key": "a", "token": verdict.fence });
    let verdict: Verdict = service.post("/v1/validate", next.clone()).await.expect(200);
    assert_eq!(verdict.verdict, VerdictName::Unknown);
    let granted = service.hold("a").await;
    assert_eq!(granted.token, verdict.fence);
    let verdict: Verdict = service.post("/v1/validate", next).await.expect(200);
    assert_eq!(verdict.verdict, VerdictName::Live);
}

#[tokio::test]
async fn a_local_verdict_is_never_live() {
    let service = Service::start().await;
    let grant = service.hold("a").await;
    let target = "/v1/validate?consistency=local";
    for (token, expected) in [
        (grant.token.0 - 1, VerdictName::Stale),
        (grant.token.0, VerdictName::Unknown),
        (grant.token.0 + 1, VerdictName::Unknown),
    ] {
        let verdict: Verdict = service.post(target, json!({ "key": "a", "token": token })).await.expect(200);
        assert_eq!(verdict, Verdict { verdict: expected, fence: grant.token }, "{token}");
    }
}

#[tokio::test]
async fn a_local_verdict_is_stale_above_the_fence_if_this_node_saw_the_end() {
    let service = Service::start().await;
    let shared = json!({ "keys": [{ "key": "a", "mode": "shared" }] });
    let first: Grant = service.put(LeaseId::random(), shared.clone()).await.expect(201);
    let second: Grant = service.put(LeaseId::random(), shared).await.expect(201);
    service.delete(second.lease_id).await;
    let body = json!({ "key": "a", "token": second.token });
    let verdict: Verdict = service.post("/v1/validate?consistency=local", body).await.expect(200);
    assert_eq!(verdict, Verdict { verdict: VerdictName::Stale, fence: first.token });
}

#[tokio::test]
async fn many_checks_are_answered_in_their_order() {
    let service = Service::start().await;
    let [a, b] = [service.hold("a").await, service.hold("b").await];
    let checks = json!({ "checks": [
        { "key": "b", "token": b.token },
        { "key": "b", "token": a.token },
        { "key": "a", "token": a.token },
    ] });
    let answer: VerdictsAnswer = service.post("/v1/validate", checks).await.expect(200);
    let verdicts: Vec<_> = answer.results.iter().map(|result| result.verdict).collect();
    assert_eq!(verdicts, [VerdictName::Live, VerdictName::Stale, VerdictName::Live]);
    let one = json!({ "checks": [{ "key": "a", "token": a.token }] });
    let answer: VerdictsAnswer = service.post("/v1/validate", one).await.expect(200);
    assert_eq!(answer.results.len(), 1, "a list of one is a list");
}
