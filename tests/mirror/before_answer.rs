//! Answers that wait for Redis.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use redis::aio::MultiplexedConnection;
use ringfence_harness::{Answered, Client, Consistency, RedisServer, key, until};
use ringfence_wire::{BatchAnswer, BatchBody, LeaseId, MirroredGrant};
use serde_json::json;

use crate::{SOON, becomes, cluster, connect, equal, hash, number};

/// Acquires a key, waiting for up to `wait_ms`.
async fn mirrored(client: &Client, name: &str, wait_ms: u32) -> MirroredGrant {
    let lease = LeaseId::random();
    let body = json!({"keys": [name], "ttl_ms": 600_000, "wait_ms": wait_ms}).to_string();
    let answer = client.within(2 * SOON).raw("PUT", &format!("/v1/leases/{lease}"), body).await.unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    serde_json::from_slice(&answer.body).unwrap()
}

/// Waits until a grant is mirrored. Each try acquires another key.
async fn grants_are_mirrored(client: &Client) {
    let look = || async {
        mirrored(client, &format!("probe/{}", LeaseId::random()), 0).await.mirrored.then_some(())
    };
    until(SOON, "grants are mirrored", look).await.unwrap();
}

/// A batch that acquires this many keys.
fn batch(count: usize) -> String {
    let acquire = |number| {
        let key = format!("batch/{number}");
        json!({"acquire": {"lease_id": LeaseId::random(), "keys": [key], "ttl_ms": 600_000}})
    };
    json!({ "operations": (0..count).map(acquire).collect::<Vec<_>>() }).to_string()
}

/// Sends the batch; all of its grants must be mirrored, with this status.
async fn batch_is_mirrored(
    client: &Client,
    body: &str,
    status: u16,
    reader: &mut MultiplexedConnection,
) -> usize {
    let answer = client.within(2 * SOON).raw("POST", "/v1/batch", body.to_owned()).await.unwrap();
    let answer: BatchAnswer = serde_json::from_slice(&answer.body).unwrap();
    for result in &answer.results {
        let Some(BatchBody::Mirrored(answer)) = &result.body else { panic!("{result:?}") };
        assert!(answer.mirrored && result.status == status, "{answer:?}");
        let name = answer.grant.keys[0].key.as_str();
        assert!(number(&hash(reader, name).await, "fence") >= answer.grant.token.0, "{name}");
    }
    answer.results.len()
}

#[tokio::test]
async fn when_a_grant_is_answered_mirrored_redis_has_its_fence() {
    let redis = RedisServer::builder().start().await.unwrap();
    let cluster = cluster(&redis).argument("--mirror-mode=before-answer").argument("--mirror-timeout=10s");
    let cluster = cluster.start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    grants_are_mirrored(&leader.client()).await;
    let mut reader = connect(&redis).await;
    for round in 0..20 {
        for node in cluster.nodes() {
            let name = format!("mirrored/{}/{round}", node.id());
            let answer = mirrored(&node.client(), &name, 0).await;
            assert!(answer.mirrored, "{name}");
            let token = answer.grant.token.0;
            assert!(number(&hash(&mut reader, &name).await, "fence") >= token, "{name}");
            // A waiter is granted when the lease before it ends, and its own node answers it.
            let waiter = tokio::spawn({
                let (client, name) = (node.client(), name.clone());
                async move { mirrored(&client, &name, 60_000).await }
            });
            let queued = || async {
                let view = node.client().patient().key(&key(&name), Consistency::Linearizable).await.done();
                (!view.waiters.is_empty()).then_some(())
            };
            until(SOON, "one waits", queued).await.unwrap();
            node.client().patient().release(answer.grant.lease_id).await.done();
            let next = waiter.await.unwrap();
            assert!(next.mirrored && next.grant.token.0 > token);
            assert!(number(&hash(&mut reader, &name).await, "fence") >= next.grant.token.0, "{name}");
        }
    }

    let follower = cluster.others(leader.id()).next().unwrap().client();
    let batch = batch(50);
    // The second time the leases exist already.
    for status in [201, 200] {
        assert_eq!(batch_is_mirrored(&follower, &batch, status, &mut reader).await, 50);
    }

    redis.kill().unwrap();
    let without = cluster.nodes().iter().map(|node| async {
        assert!(!mirrored(&node.client(), &format!("without/{}", node.id()), 0).await.mirrored);
    });
    // It is proposed in parts, which share the time that a response waits for Redis: 10 s.
    let parts = async {
        let began = Instant::now();
        let acquire = |number| {
            let keys: Vec<String> = (0..64).map(|key| format!("part/{number}/{key}")).collect();
            json!({"acquire": {"lease_id": LeaseId::random(), "keys": keys, "ttl_ms": 600_000}})
        };
        let body = json!({ "operations": (0..400).map(acquire).collect::<Vec<_>>() }).to_string();
        let answer = follower.within(2 * SOON).raw("POST", "/v1/batch", body).await.unwrap();
        let answer: BatchAnswer = serde_json::from_slice(&answer.body).unwrap();
        for result in answer.results {
            assert!(matches!(result.body, Some(BatchBody::Mirrored(grant)) if !grant.mirrored));
        }
        assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    };
    join(join_all(without), parts).await;
    redis.start().await.unwrap();
    grants_are_mirrored(&follower).await;
    equal(&cluster, &redis).await;
}

#[tokio::test]
async fn a_new_leader_mirrors_the_existing_grants_of_a_batch_again() {
    let redis = RedisServer::builder().start().await.unwrap();
    // So long that answers wait for Redis, not for the timeout.
    let cluster = cluster(&redis).argument("--mirror-mode=before-answer").argument("--mirror-timeout=20s");
    let cluster = cluster.start().await.unwrap();
    let batch = batch(1_000);
    let mut reader = connect(&redis).await;
    for (round, status) in [201, 200, 200].into_iter().enumerate() {
        if round == 2 {
            // The next leader does not know what the first one had written.
            cluster.leader().await.unwrap().kill().unwrap();
        }
        let leader = cluster.leader().await.unwrap();
        becomes(leader, "published").await;
        let count = batch_is_mirrored(&leader.client(), &batch, status, &mut reader).await;
        assert_eq!(count, 1_000, "round {round}");
    }
}
