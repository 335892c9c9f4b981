//! Answers that wait for Redis.

use std::time::Duration;

use ringfence_harness::{RedisServer, until};
use ringfence_mirror::{MirrorMode, Settings, State};
use ringfence_wire::{Key, Revision};
use tokio::time::Instant;

use crate::proxy::Proxy;
use crate::table::Table;
use crate::world::{Redis, WITHIN, World, keys, name, unswept};

fn settings(server: &RedisServer, timeout: Duration) -> Settings {
    Settings { mode: MirrorMode::BeforeAnswer, timeout, ..unswept(server.url()) }
}

#[tokio::test]
async fn a_mirrored_answer_means_that_readers_see_its_fence() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    let world = World::start(settings(&server, Duration::from_secs(20)), &redis, Table::new(1_000));
    world.state(State::Published).await;
    for (number, key) in keys(300).iter().enumerate() {
        if number % 100 == 50 {
            server.restart_empty().await.unwrap();
        }
        let (lease, token) = world.table.grant(key).unwrap();
        if number % 3 == 1 {
            // Written before the answer waits.
            until(WITHIN, "it is written", async || redis.fence(&name(key)).await.ok().flatten())
                .await
                .unwrap();
        }
        assert!(world.mirror.wait_published(std::slice::from_ref(key), Revision(token.0)).await);
        let seen =
            until(WITHIN, "a reader connects", async || redis.fence(&name(key)).await.ok()).await.unwrap();
        assert!(seen >= Some(token.0), "{key} {token}: {seen:?}");
        world.table.release(lease);
    }
}

#[tokio::test]
async fn concurrent_answers_wait_each_for_its_own_keys() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    // The reader must be faster than the mirror.
    let proxy = Proxy::start(server.address(), Duration::from_millis(20)).await;
    let settings = Settings { url: proxy.url(), ..settings(&server, Duration::from_secs(20)) };
    let world = World::start(settings, &redis, Table::new(1_000));
    world.state(State::Published).await;
    let answers = keys(2_000).into_iter().map(|key| {
        let (_, token) = world.table.grant(&key).unwrap();
        let (mirror, redis) = (world.mirror.clone(), redis.clone());
        tokio::spawn(async move {
            let is_mirrored = mirror.wait_published(std::slice::from_ref(&key), Revision(token.0)).await;
            (is_mirrored, redis.fence(&name(&key)).await.unwrap() >= Some(token.0))
        })
    });
    for answer in answers.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap(), (true, true));
    }
}

#[tokio::test]
async fn with_redis_down_an_answer_waits_for_its_timeout() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    let timeout = Duration::from_millis(300);
    let mut world = World::start(settings(&server, timeout), &redis, Table::new(1_000));
    world.state(State::Published).await;
    server.stop().await.unwrap();
    let key = [Key::new("a").unwrap()];
    let (_, token) = world.table.grant(&key[0]).unwrap();
    let asked = Instant::now();
    assert!(!world.mirror.wait_published(&key, Revision(token.0)).await);
    assert!(asked.elapsed() >= timeout, "it did not wait");
    server.resume().unwrap();
    world.is_equal("Redis went on").await;
    let published = async || world.mirror.wait_published(&key, Revision(token.0)).await.then_some(());
    until(WITHIN, "it is published", published).await.unwrap();
    // A node that does not lead has nothing to wait for.
    world.step_down().await;
    assert!(!world.mirror.wait_published(&key, Revision(token.0)).await);
}

#[tokio::test]
async fn a_key_written_by_an_earlier_leader_is_written_again_for_an_answer() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    let mut world = World::start(settings(&server, Duration::from_secs(20)), &redis, Table::new(1_000));
    let key = [Key::new("a").unwrap()];
    let (_, token) = world.table.grant(&key[0]).unwrap();
    world.is_equal("a grant").await;
    world.step_down().await;
    world.lead_again();
    world.state(State::Published).await;
    assert!(world.mirror.wait_published(&key, Revision(token.0)).await);
}
