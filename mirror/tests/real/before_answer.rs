//! Answers that wait for Redis.

use std::time::Duration;

use ringfence_harness::{RedisSentinel, RedisServer, until};
use ringfence_mirror::{Mirror, MirrorMode, Settings, State, Status};
use ringfence_wire::{Key, Revision, Token};
use tokio::time::timeout;

use crate::proxy::SlowProxy;
use crate::table::Table;
use crate::world::{Redis, WITHIN, World, keys, name, one_server, unswept};

/// Longer than any test: an answer that waits for so long waits in vain.
const PATIENCE: Duration = Duration::from_secs(3_000);

fn settings(server: &RedisServer, timeout: Duration) -> Settings {
    Settings { mode: MirrorMode::BeforeAnswer, timeout, ..unswept(server.url()) }
}

/// Waits until `key` is mirrored. No answer waits while Redis seems to be away, as it may on a busy machine.
async fn is_mirrored(mirror: &Mirror, key: &Key, token: Token) {
    let mirrored =
        async || mirror.wait_published(std::slice::from_ref(key), Revision(token.0)).await.then_some(());
    until(WITHIN, "it is mirrored", mirrored).await.unwrap();
}

/// The fence that a reader sees, once it gets an answer.
async fn seen(redis: &Redis, key: &Key) -> Option<u64> {
    until(WITHIN, "a reader is answered", async || redis.fence(&name(key)).await.ok()).await.unwrap()
}

#[tokio::test]
async fn a_mirrored_answer_means_that_readers_see_its_fence() {
    let (server, redis) = one_server().await;
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
        is_mirrored(&world.mirror, key, token).await;
        let seen = seen(&redis, key).await;
        assert!(seen >= Some(token.0), "{key} {token}: {seen:?}");
        world.table.release(lease);
    }
}

#[tokio::test]
async fn concurrent_answers_wait_each_for_its_own_keys() {
    let (server, redis) = one_server().await;
    // The reader must be faster than the mirror.
    let proxy = SlowProxy::start(server.address(), Duration::from_millis(20)).await;
    let settings = Settings { url: proxy.url(), ..settings(&server, Duration::from_secs(20)) };
    let world = World::start(settings, &redis, Table::new(1_000));
    world.state(State::Published).await;
    let answers = keys(2_000).into_iter().map(|key| {
        let (_, token) = world.table.grant(&key).unwrap();
        let (mirror, redis) = (world.mirror.clone(), redis.clone());
        tokio::spawn(async move {
            is_mirrored(&mirror, &key, token).await;
            seen(&redis, &key).await >= Some(token.0)
        })
    });
    for answer in answers.collect::<Vec<_>>() {
        assert!(answer.await.unwrap());
    }
}

/// Redis fails, or is about to: no answer waits for it, and none says that it is mirrored.
async fn no_answer_waits(world: &World, why: &str) {
    let key = [Key::new(why).unwrap()];
    let (_, token) = world.table.grant(&key[0]).unwrap();
    // The first one may ask before anybody knows.
    for _ in 0..2 {
        let waits = timeout(WITHIN, world.mirror.wait_published(&key, Revision(token.0)));
        assert!(!waits.await.unwrap_or_else(|_| panic!("it waits in vain: {why}")));
        let failing = |status: &Status| status.state == State::Failing && status.last_error.is_some();
        world.status(&format!("it is known: {why}"), failing).await;
    }
}

/// Redis works again, which is noticed although nobody asks. Then answers wait for it.
async fn answers_wait_again(world: &World, why: &str) {
    let is_well = |status: &Status| status.state == State::Published && status.last_error.is_none();
    world.status(&format!("it is over: {why}"), is_well).await;
    let key = [Key::new(why).unwrap()];
    let published = async || {
        let waits = world.mirror.wait_published(&key, world.table.revision());
        timeout(WITHIN, waits).await.is_ok_and(|is_mirrored| is_mirrored).then_some(())
    };
    until(WITHIN, "it is mirrored", published).await.unwrap();
}

#[tokio::test]
async fn no_answer_waits_for_a_redis_that_is_known_to_fail() {
    let server = RedisServer::builder()
        .line("maxmemory-policy noeviction")
        .line("user publisher on >secret ~* &* +@all")
        .start()
        .await
        .unwrap();
    let url = server.url().replace("://", "://publisher:secret@");
    let settings = Settings { url, ..settings(&server, PATIENCE) };
    let mut world = World::start(settings, &Redis::at([server.address()]), Table::new(1_000));
    world.state(State::Published).await;

    server.stop().await.unwrap();
    no_answer_waits(&world, "it hangs").await;
    server.resume().unwrap();
    answers_wait_again(&world, "it hangs").await;

    server.kill().unwrap();
    no_answer_waits(&world, "it is gone").await;
    server.start().await.unwrap();
    answers_wait_again(&world, "it is gone").await;

    server.command(["config", "set", "maxmemory", "1"]).await.unwrap();
    no_answer_waits(&world, "it is full").await;
    server.command(["config", "set", "maxmemory", "0"]).await.unwrap();
    answers_wait_again(&world, "it is full").await;

    let password = async |password: &str| {
        server.command(["acl", "setuser", "publisher", "resetpass", password]).await.unwrap();
    };
    password(">other").await;
    server.command(["client", "kill", "user", "publisher"]).await.unwrap();
    no_answer_waits(&world, "it wants another password").await;
    password(">secret").await;
    answers_wait_again(&world, "it wants another password").await;

    world.is_equal("all of that").await;
    // A node that does not lead has nothing to wait for.
    world.step_down().await;
    let key = [Key::new("it hangs").unwrap()];
    assert!(!world.mirror.wait_published(&key, world.table.revision()).await);
}

#[tokio::test]
async fn no_answer_waits_while_sentinel_knows_no_master() {
    let group = RedisSentinel::start(&RedisServer::builder()).await.unwrap();
    let master = group.servers()[0].address();
    for sentinel in group.sentinels() {
        sentinel.command(["sentinel", "remove", "leases"]).await.unwrap();
    }
    let settings = Settings { mode: MirrorMode::BeforeAnswer, timeout: PATIENCE, ..unswept(group.url()) };
    let world = World::start(settings, &Redis::at([master]), Table::new(1_000));
    no_answer_waits(&world, "there is no master").await;
    let (ip, port) = (master.ip().to_string(), master.port().to_string());
    for sentinel in group.sentinels() {
        sentinel.command(["sentinel", "monitor", "leases", &ip, &port, "2"]).await.unwrap();
    }
    answers_wait_again(&world, "there is no master").await;
}

#[tokio::test]
async fn a_key_written_by_an_earlier_leader_is_written_again_for_an_answer() {
    let (server, redis) = one_server().await;
    let mut world = World::start(settings(&server, Duration::from_secs(20)), &redis, Table::new(1_000));
    let key = [Key::new("a").unwrap()];
    let (_, token) = world.table.grant(&key[0]).unwrap();
    world.is_equal("a grant").await;
    world.step_down().await;
    world.lead_again();
    world.state(State::Published).await;
    is_mirrored(&world.mirror, &key[0], token).await;
}
