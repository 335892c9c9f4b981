use ringfence_wire::{BatchAnswer, BatchBody, BatchResult, Grant, LeaseId, Problem, ProblemKind};
use serde_json::json;

use crate::service::Service;

fn grant(result: &BatchResult) -> &Grant {
    match &result.body {
        Some(BatchBody::Grant(grant)) => grant,
        other => panic!("no grant: {other:?}"),
    }
}

fn problem(result: &BatchResult) -> &Problem {
    match &result.body {
        Some(BatchBody::Problem(problem)) => problem,
        other => panic!("no problem: {other:?}"),
    }
}

#[tokio::test]
async fn many_leases_are_renewed_in_their_order() {
    let service = Service::start().await;
    let [first, second] = [service.hold("a").await, service.hold("b").await];
    let unknown = LeaseId::random();
    let body = json!({ "lease_ids": [second.lease_id, unknown, first.lease_id] });
    let BatchAnswer { results } = service.post("/v1/renew", body).await.expect(200);
    assert_eq!(results.iter().map(|result| result.status).collect::<Vec<_>>(), [200, 404, 200]);
    assert_eq!(grant(&results[0]).token, second.token);
    assert_eq!(problem(&results[1]).kind, ProblemKind::UnknownLease);
    assert_eq!(grant(&results[2]).token, first.token);

    let none: BatchAnswer = service.post("/v1/renew", json!({ "lease_ids": [] })).await.expect(200);
    assert_eq!(none.results, []);
}

#[tokio::test]
async fn the_operations_of_a_batch_are_answered_in_order_each_on_its_own() {
    let service = Service::start().await;
    let held = service.hold("held").await;
    let [id, refused] = [LeaseId::random(), LeaseId::random()];
    let acquire = json!({ "acquire": { "lease_id": id, "keys": ["a"], "holder": "me" } });
    let body = json!({ "operations": [
        acquire,
        acquire,
        { "acquire": { "lease_id": refused, "keys": ["held"] } },
        { "renew": { "lease_id": id, "ttl_ms": 20_000 } },
        { "release": { "lease_id": id } },
        acquire,
        { "release": { "lease_id": held.lease_id } },
        { "acquire": { "lease_id": refused, "keys": ["held"] } },
    ] });
    let BatchAnswer { results } = service.post("/v1/batch", body).await.expect(200);
    assert_eq!(
        results.iter().map(|result| result.status).collect::<Vec<_>>(),
        [201, 200, 409, 200, 204, 410, 204, 201],
        "{results:?}"
    );
    assert_eq!(grant(&results[1]).token, grant(&results[0]).token);
    assert_eq!(
        (problem(&results[2]).kind, problem(&results[2]).lease_id),
        (ProblemKind::Held, Some(refused))
    );
    assert_eq!(grant(&results[3]).ttl_ms, 20_000);
    assert_eq!(results[4].body, None);
    assert_eq!(problem(&results[5]).kind, ProblemKind::LeaseGone);
}

#[tokio::test]
#[ignore = "slow"]
async fn a_response_that_is_too_long_ends_the_batch() {
    let service = Service::start().await;
    let ids: Vec<_> = (0..400).map(|_| LeaseId::random()).collect();
    for (part, ids) in ids.chunks(25).enumerate() {
        let keys = |number: usize| {
            (0..64).map(|key| format!("{part}/{number}/{key}/{}", "k".repeat(490))).collect::<Vec<_>>()
        };
        let acquire =
            |(number, id)| json!({ "acquire": { "lease_id": id, "keys": keys(number), "ttl_ms": 600_000 } });
        let operations: Vec<_> = ids.iter().enumerate().map(acquire).collect();
        let answer = service.post("/v1/batch", json!({ "operations": operations })).await;
        assert!(answer.expect::<BatchAnswer>(200).results.iter().all(|result| result.status == 201));
    }
    let response = service.post("/v1/renew", json!({ "lease_ids": ids })).await;
    assert!(response.body.len() < 12 << 20, "{} bytes", response.body.len());
    let BatchAnswer { results } = response.expect(200);
    let done = results.iter().take_while(|result| result.status == 200).count();
    assert!((100..400).contains(&done), "{done} of {}", results.len());
    assert_eq!(results.len(), ids.len());
    assert!(results[done..].iter().all(|result| problem(result).kind == ProblemKind::TooLarge));
}
