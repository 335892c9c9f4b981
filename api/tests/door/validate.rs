use ringfence_wire::{VerdictName, VerdictsAnswer};
use serde_json::json;

use crate::service::Service;

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
