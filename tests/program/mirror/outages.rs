use std::time::{Duration, Instant};

use ringfence_harness::{Answered, RedisServer, take, until};

use super::traffic::{sample, traffic};
use super::{SOON, becomes, cluster, connect, equal, held_in_redis};

/// How long Redis is stopped.
const STOPPED: Duration = Duration::from_secs(10);

#[tokio::test]
#[ignore = "slow"]
async fn the_mirror_follows_the_leader_and_a_former_leader_changes_nothing() {
    let redis = RedisServer::builder().start().await.unwrap();
    let cluster = cluster(&redis).start().await.unwrap();
    let traffic = traffic(&cluster, &redis).await;
    let sampler = sample(&connect(&redis).await);
    for round in 0..3 {
        traffic.more(20).await;
        let leader = cluster.leader().await.unwrap();
        if round == 1 {
            leader.kill().unwrap();
        } else {
            leader.stop().unwrap();
        }
        let follower = cluster.others(leader.id()).next().unwrap().client();
        let next = || async { (follower.cluster().await.done().leader? != leader.id()).then_some(()) };
        until(SOON, "another leads", next).await.unwrap();
        traffic.more(20).await;
        if round == 1 {
            leader.start().unwrap();
        } else {
            leader.resume().unwrap();
        }
        cluster.ready().await.unwrap();
    }
    traffic.end().await;
    equal(&cluster, &redis).await;
    assert!(sampler.done() > 20, "the sampler saw fences rise");
    sampler.end().await;
}

#[tokio::test]
#[ignore = "slow"]
async fn grants_go_on_during_any_redis_outage_and_the_mirror_recovers() {
    let redis = RedisServer::builder().start().await.unwrap();
    redis.kill().unwrap();
    let cluster = cluster(&redis).start().await.unwrap();
    let client = cluster.leader().await.unwrap().client();
    for number in 0..50 {
        take(&client, &format!("early/{number}")).await;
    }
    redis.start().await.unwrap();
    equal(&cluster, &redis).await;

    let traffic = traffic(&cluster, &redis).await;
    redis.command(["flushall"]).await.unwrap();
    traffic.more(20).await;
    redis.stop().await.unwrap();
    let stopped = Instant::now();
    let mut meanwhile = 0;
    // The clients of `traffic` hang in their reads of Redis; others do not.
    while stopped.elapsed() < STOPPED {
        take(&client, &format!("meanwhile/{meanwhile}")).await;
        meanwhile += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    redis.resume().unwrap();
    equal(&cluster, &redis).await;
    traffic.more(20).await;
    traffic.end().await;
    redis.restart_empty().await.unwrap();
    equal(&cluster, &redis).await;
    let held = held_in_redis(&mut connect(&redis).await).await.unwrap();
    assert!(held.len() >= 50 + meanwhile, "{meanwhile}, and {held:?}");
}

#[tokio::test]
async fn a_node_reports_the_state_of_its_mirror() {
    let redis = RedisServer::builder().start().await.unwrap();
    let cluster = cluster(&redis).start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    becomes(leader, "published").await;
    for follower in cluster.others(leader.id()) {
        becomes(follower, "standby").await;
    }
    redis.kill().unwrap();
    becomes(leader, "failing").await;
    redis.start().await.unwrap();
    becomes(leader, "published").await;
    let keeps_up =
        || async { leader.metric("ringfence_mirror_lag_seconds").await.ok()?.filter(|lag| *lag < 1.0) };
    until(SOON, "nothing waits to be published", keeps_up).await.unwrap();
}
