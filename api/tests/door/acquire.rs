use ringfence_lease::{Acquire, Attachment, Command};
use ringfence_wire::{Grant, Key, LeaseId, Mode, ModeName, Ttl, Wait, Waiting};
use serde_json::{Value, json};

use crate::service::Service;

#[tokio::test]
async fn a_repeated_put_answers_the_same_grant() {
    let service = Service::start().await;
    let id = LeaseId::random();
    let body = json!({ "keys": ["a", { "key": "b", "mode": "shared", "limit": 3 }], "holder": "me" });
    let first: Grant = service.put(id, body.clone()).await.expect(201);
    assert_eq!(first.lease_id, id);
    assert_eq!(first.holder.as_ref().map(|holder| holder.as_str()), Some("me"));
    assert_eq!(first.expires_in_ms, Some(15_000));
    assert_eq!(first.keys.len(), 2);
    assert_eq!((first.keys[1].mode, first.keys[1].limit.map(u32::from)), (ModeName::Shared, Some(3)));
    assert!(first.keys.iter().all(|key| key.fence == first.token), "nobody else holds them");

    let second: Grant = service.put(id, body).await.expect(200);
    assert_eq!(second.token, first.token);
}

#[tokio::test]
async fn a_post_is_granted_under_an_id_made_by_the_server() {
    let service = Service::start().await;
    let grant: Grant = service.post("/v1/leases", json!({ "keys": ["a"] })).await.expect(201);
    let seen: Grant = service.lease(grant.lease_id).await.expect(200);
    assert_eq!(seen.token, grant.token);

    let problem = service.post("/v1/leases", json!({ "keys": ["a"] })).await.problem("held");
    assert!(problem.lease_id.is_some_and(|id| id != grant.lease_id), "the problem has the generated id");
}

#[tokio::test]
async fn trying_a_held_key_names_its_holders() {
    let service = Service::start().await;
    let holder = service.hold("a").await;
    service.queue("a").await;
    let id = LeaseId::random();
    let problem = service.put(id, json!({ "keys": ["free", "a"] })).await.problem("held");
    assert_eq!(problem.lease_id, Some(id));
    assert_eq!(problem.waiters, Some(1));
    let holders = problem.holders.expect("they are named");
    assert_eq!(
        holders.iter().map(|it| (it.key.as_str(), it.token)).collect::<Vec<_>>(),
        [("a", holder.token)]
    );
    service.lease(id).await.problem("unknown-lease");
}

#[tokio::test]
async fn the_owner_sees_its_lease_granted_and_waiting() {
    let service = Service::start().await;
    let holder = service.hold("a").await;
    let seen: Grant = service.lease(holder.lease_id).await.expect(200);
    assert_eq!(seen.token, holder.token);
    assert!(seen.expires_in_ms.is_some_and(|ms| ms <= 15_000), "{seen:?}");
    let local: Grant =
        service.get(&format!("/v1/leases/{}?consistency=local", holder.lease_id)).await.expect(200);
    assert_eq!((local.token, local.expires_in_ms), (holder.token, None), "a local read cannot tell");

    service.queue("a").await;
    let waiter = service.queue("a").await;
    let seen: Waiting = service.lease(waiter.lease_id).await.expect(200);
    assert_eq!(seen.ahead, 1);
    service.lease(LeaseId::random()).await.problem("unknown-lease");
}

#[tokio::test]
async fn a_queue_has_at_most_ten_thousand_waiters() {
    let service = Service::start().await;
    service.hold("a").await;
    for _ in 0..10 {
        let waiters = (0..1_000).map(|number| waiter_for("a", number));
        service.handle.propose(waiters.collect::<Vec<_>>()).await.unwrap();
    }
    service.until_waiters(10_000).await;
    let id = LeaseId::random();
    let response = service.put(id, json!({ "keys": ["a"], "wait_ms": 60_000 })).await;
    assert_eq!(response.problem("overloaded").lease_id, Some(id));
    assert_eq!(response.header("retry-after"), Some("1"));
    let view: Value = service.get("/v1/keys/a").await.expect(200);
    assert_eq!(view["waiters"].as_array().map(Vec::len), Some(100));
    assert_eq!((&view["more_waiters"], &view["more_holders"]), (&json!(9_900), &json!(0)));
}

fn waiter_for(key: &str, number: u64) -> Command {
    Command::Acquire(Box::new(Acquire {
        lease_id: LeaseId::random(),
        claims: vec![(Key::new(key).unwrap(), Mode::Exclusive)],
        ttl: Ttl::default(),
        wait: Wait::from_ms(60_000).unwrap(),
        keep_place: false,
        holder: None,
        metadata: Default::default(),
        attachment: Attachment(number),
    }))
}
