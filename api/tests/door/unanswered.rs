//! *Certainly not done* (503) is kept apart from *maybe done* (504).

use ringfence_wire::{Grant, LeaseId, Verdict};
use serde_json::{Value, json};

use tokio::time::Instant;

use crate::service::{PATIENCE, Service, eventually};

/// Three nodes, the leader first.
async fn three() -> Vec<Service> {
    let mut services = Service::start_three().await;
    let leader = |services: &[Service]| services.iter().position(|service| service.leads());
    eventually("a leader", || leader(&services).is_some()).await;
    let leader = leader(&services).unwrap();
    services.swap(0, leader);
    services
}

#[tokio::test]
async fn any_node_takes_any_request_and_names_the_leader() {
    let services = three().await;
    let grant = services[1].hold("a").await;
    let waiting = services[2].put_later(LeaseId::random(), json!({ "keys": ["a"], "wait_ms": 60_000 })).await;
    services[0].until_waiters(1).await;
    services[1].delete(grant.lease_id).await;
    let next: Grant = waiting.await.unwrap().expect(201);
    let response = services[1].lease(next.lease_id).await;
    assert_eq!(response.expect::<Grant>(200).token, next.token, "a read on another node sees it at once");
    assert_eq!(response.header("ringfence-leader"), Some(format!("http://{}", services[0].address).as_str()));
}

#[tokio::test]
async fn a_command_that_a_leader_took_without_a_quorum_is_indeterminate() {
    let mut services = three().await;
    services[1].kill();
    services[2].kill();
    let leader = &services[0];
    let id = LeaseId::random();
    let target = format!("/v1/leases/{id}");
    let renew = format!("{target}/renew");
    let batch = json!({ "operations": [{ "release": { "lease_id": id } }] });
    let (put, delete, renew, batch) = tokio::join!(
        leader.put(id, json!({ "keys": ["a"] })),
        leader.call("DELETE", &target, Value::Null),
        leader.post(&renew, Value::Null),
        leader.post("/v1/batch", batch),
    );
    assert_eq!(put.problem("indeterminate").lease_id, Some(id));
    for response in [delete, renew, batch] {
        response.problem("indeterminate");
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn a_command_that_no_leader_took_is_unavailable() {
    let mut services = three().await;
    let grant = services[1].hold("a").await;
    eventually("it has applied the grant", || services[1].handle.view(|table| table.live()) == 1).await;
    services[0].kill();
    services[2].kill();
    let follower = &services[1];
    let id = LeaseId::random();
    let body = json!({ "keys": ["b"] });
    // A command sent to the leader before the follower notices its end may have arrived.
    let deadline = Instant::now() + PATIENCE;
    while follower.put(id, body.clone()).await.status == 504 {
        assert!(Instant::now() < deadline, "it notices in the end");
    }

    let target = format!("/v1/leases/{}", grant.lease_id);
    let check = json!({ "key": "a", "token": grant.token });
    let (put, get, validate) = tokio::join!(
        follower.put(id, body),
        follower.get(&target),
        follower.post("/v1/validate", check.clone()),
    );
    assert_eq!(put.problem("unavailable").lease_id, Some(id));
    for response in [put, get, validate] {
        response.problem("unavailable");
        assert_eq!(response.header("retry-after"), Some("1"));
    }

    let local = follower.get(&format!("{target}?consistency=local")).await;
    assert_eq!(local.expect::<Grant>(200).token, grant.token, "a local read needs no leader");
    follower.post("/v1/validate?consistency=local", check).await.expect::<Verdict>(200);
}
