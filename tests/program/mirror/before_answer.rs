//! Answers that wait for Redis.

use futures_util::future::{join, join_all};
use redis::aio::MultiplexedConnection;
use ringfence_harness::{
    Acquired, Answered, Client, Cluster, RedisServer, queued, try_once, until, wait_for,
};
use ringfence_wire::{AcquireRequest, BatchAnswer, BatchBody, Grant, LeaseId};
use serde_json::json;

use super::{SOON, cluster, connect, equal, hash, number, state};

/// A grant, and whether its answer says that it is mirrored.
async fn acquire(client: &Client, lease: LeaseId, request: &AcquireRequest) -> (Grant, bool) {
    let answer = client.within(2 * SOON).patient().acquire_mirrored(lease, request).await.done();
    match answer {
        (Acquired::Granted(grant) | Acquired::Standing(grant), Some(is_mirrored)) => (grant, is_mirrored),
        other => panic!("{other:?}"),
    }
}

/// A grant that is answered mirrored in the end, and whether its first answer said so. On a busy machine Redis may seem to be
/// away for a moment.
async fn mirrored(client: &Client, request: &AcquireRequest) -> (Grant, bool) {
    let lease = LeaseId::random();
    let (grant, at_once) = acquire(client, lease, request).await;
    if !at_once {
        let again = || async { acquire(client, lease, request).await.1.then_some(()) };
        until(SOON, "it is mirrored", again).await.unwrap();
    }
    (grant, at_once)
}

/// Waits until the mirror of whichever node leads is in this state.
async fn becomes_at_the_leader(cluster: &Cluster, wanted: &str) {
    let look = || async {
        let leader = cluster.leader().await.ok()?;
        (state(leader).await == wanted).then_some(())
    };
    until(SOON, format!("the mirror is {wanted}"), look).await.unwrap();
}

/// A batch that acquires this many keys.
fn batch(count: usize) -> String {
    let acquire = |number| {
        let key = format!("batch/{number}");
        json!({"acquire": {"lease_id": LeaseId::random(), "keys": [key], "ttl_ms": 600_000}})
    };
    json!({ "operations": (0..count).map(acquire).collect::<Vec<_>>() }).to_string()
}

/// Sends the batch until all of its grants are answered mirrored, and returns their statuses.
async fn batch_is_mirrored(client: &Client, body: &str, reader: &mut MultiplexedConnection) -> Vec<u16> {
    let send = || async {
        let answer = client.within(2 * SOON).raw("POST", "/v1/batch", body.to_owned()).await.ok()?;
        let answer: BatchAnswer = serde_json::from_slice(&answer.body).ok()?;
        let grant = |body| match body {
            Some(BatchBody::Mirrored(answer)) if answer.mirrored => Some(answer.grant),
            _ => None,
        };
        let grants: Option<Vec<_>> =
            answer.results.into_iter().map(|result| Some((result.status, grant(result.body)?))).collect();
        grants
    };
    let grants = until(2 * SOON, "the batch is mirrored", send).await.unwrap();
    for (_, grant) in &grants {
        let name = grant.keys[0].key.as_str();
        assert!(number(&hash(reader, name).await, "fence") >= grant.token.0, "{name}");
    }
    grants.into_iter().map(|(status, _)| status).collect()
}

#[tokio::test]
#[ignore = "slow"]
async fn when_a_grant_is_answered_mirrored_redis_has_its_fence() {
    let redis = RedisServer::builder().start().await.unwrap();
    let cluster = cluster(&redis).argument("--mirror-mode=before-answer").argument("--mirror-timeout=10s");
    let cluster = cluster.start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    becomes_at_the_leader(&cluster, "published").await;
    let mut reader = connect(&redis).await;
    let mut at_once = Vec::new();
    for round in 0..20 {
        for node in cluster.nodes() {
            let client = node.client();
            let name = format!("mirrored/{}/{round}", node.id());
            let (grant, first) = mirrored(&client, &try_once(&name)).await;
            let token = grant.token.0;
            assert!(number(&hash(&mut reader, &name).await, "fence") >= token, "{name}");
            // A waiter is granted when the lease before it ends, and its own node answers it.
            let waiter = tokio::spawn({
                let (client, request) = (client.clone(), wait_for(&name, 60_000));
                async move { mirrored(&client, &request).await }
            });
            queued(&client, &name, 1).await;
            client.patient().release(grant.lease_id).await.done();
            let (next, second) = waiter.await.unwrap();
            assert!(next.token.0 > token);
            assert!(number(&hash(&mut reader, &name).await, "fence") >= next.token.0, "{name}");
            at_once.extend([first, second]);
        }
    }
    let waited = at_once.iter().filter(|at_once| **at_once).count();
    assert!(2 * waited > at_once.len(), "of {} first answers, {waited} waited for Redis", at_once.len());

    let follower = cluster.others(leader.id()).next().unwrap().client();
    let batch = batch(50);
    assert_eq!(batch_is_mirrored(&follower, &batch, &mut reader).await.len(), 50);
    // The leases exist already.
    assert_eq!(batch_is_mirrored(&follower, &batch, &mut reader).await, [200; 50]);

    redis.kill().unwrap();
    let without = cluster.nodes().iter().map(|node| async {
        let request = try_once(&format!("without/{}", node.id()));
        assert!(!acquire(&node.client(), LeaseId::random(), &request).await.1);
    });
    let large = async {
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
    };
    join(join_all(without), large).await;
    redis.start().await.unwrap();
    mirrored(&follower, &try_once("again")).await;
    equal(&cluster, &redis).await;
}

#[tokio::test]
async fn no_grant_waits_for_a_redis_that_is_known_to_hang() {
    let redis = RedisServer::builder().start().await.unwrap();
    // Longer than any test.
    let cluster = cluster(&redis).argument("--mirror-mode=before-answer").argument("--mirror-timeout=1h");
    let cluster = cluster.start().await.unwrap();
    becomes_at_the_leader(&cluster, "published").await;
    redis.stop().await.unwrap();
    // The first ones wait until it is known.
    for round in 0..2 {
        for node in cluster.nodes() {
            let request = try_once(&format!("without/{}/{round}", node.id()));
            assert!(!acquire(&node.client(), LeaseId::random(), &request).await.1);
        }
        becomes_at_the_leader(&cluster, "failing").await;
    }
    redis.resume().unwrap();
    let is_over = || async {
        let status = cluster.leader().await.ok()?.client().patient().cluster().await.done().mirror?;
        (status["state"] == "published" && status["last_error"].is_null()).then_some(())
    };
    until(SOON, "it is over", is_over).await.unwrap();
    for node in cluster.nodes() {
        mirrored(&node.client(), &try_once(&format!("again/{}", node.id()))).await;
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn a_new_leader_mirrors_the_existing_grants_of_a_batch_again() {
    let redis = RedisServer::builder().start().await.unwrap();
    // So long that answers wait for Redis, not for the timeout.
    let cluster = cluster(&redis).argument("--mirror-mode=before-answer").argument("--mirror-timeout=20s");
    let cluster = cluster.start().await.unwrap();
    let batch = batch(1_000);
    let mut reader = connect(&redis).await;
    for round in 0..3 {
        if round == 2 {
            // The next leader does not know what the first one had written.
            cluster.leader().await.unwrap().kill().unwrap();
        }
        becomes_at_the_leader(&cluster, "published").await;
        let leader = cluster.leader().await.unwrap();
        let statuses = batch_is_mirrored(&leader.client(), &batch, &mut reader).await;
        assert_eq!(statuses.len(), 1_000, "round {round}");
        assert!(round == 0 || statuses.iter().all(|status| *status == 200), "{statuses:?}");
    }
}
