//! Faults of a single Redis server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_harness::{RedisServer, Workers, until};
use ringfence_mirror::State;
use ringfence_wire::Key;

use crate::proxy::SlowProxy;
use crate::sampler::Sampler;
use crate::table::Table;
use crate::world::{Redis, WITHIN, World, churn, keys, one_server, unswept};

/// A table whose keys change all the time, its mirror, and a sampler.
async fn begin() -> (RedisServer, World, Workers, Sampler) {
    let server = RedisServer::builder().start().await.unwrap();
    let (world, churn, sampler) = begin_at(&server).await;
    (server, world, churn, sampler)
}

async fn begin_at(server: &RedisServer) -> (World, Workers, Sampler) {
    let redis = Redis::at([server.address()]);
    let world = World::start(unswept(server.url()), &redis, Table::new(1_000));
    let keys = keys(40);
    let churn = churn(&world.table, &keys);
    let sampler = Sampler::start(&redis, &world.table, &keys);
    churn.more(50).await;
    (world, churn, sampler)
}

/// Grants go on for a while, then stop; then the mirror must become equal.
async fn end(world: World, churn: Workers, sampler: Sampler, since: &str) {
    churn.more(50).await;
    churn.end().await;
    world.is_equal(since).await;
    world.state(State::Published).await;
    let samples = sampler.samples();
    let look = || std::future::ready((sampler.samples() > samples + 40).then_some(()));
    until(WITHIN, "the sampler has seen the end", look).await.unwrap();
    sampler.finish();
}

#[tokio::test]
async fn a_redis_that_is_down_at_the_start_gets_everything_later() {
    let server = RedisServer::builder().start().await.unwrap();
    server.kill().unwrap();
    let (world, churn, sampler) = begin_at(&server).await;
    let status = world.state(State::Failing).await;
    assert!(status.last_error.is_some() && status.lag_keys > 0, "{status:?}");
    churn.more(50).await;
    server.start().await.unwrap();
    end(world, churn, sampler, "Redis came").await;
}

#[tokio::test]
async fn a_redis_restarted_empty_gets_everything_again() {
    let (server, world, churn, sampler) = begin().await;
    world.state(State::Published).await;
    server.kill().unwrap();
    world.state(State::Failing).await;
    churn.more(50).await;
    sampler.data_is_lost();
    server.restart_empty().await.unwrap();
    end(world, churn, sampler, "Redis came back empty").await;
}

#[tokio::test]
async fn a_flush_is_noticed_without_a_lost_connection() {
    let (server, world, churn, sampler) = begin().await;
    // This one does not change again.
    world.table.grant(&Key::new("untouched").unwrap()).unwrap();
    world.state(State::Published).await;
    for what in ["flushall", "flushdb"] {
        sampler.data_is_lost();
        server.command([what]).await.unwrap();
        churn.more(20).await;
    }
    // Scripts can be lost as well.
    server.command(["script", "flush"]).await.unwrap();
    end(world, churn, sampler, "a flush").await;
}

#[tokio::test]
async fn an_old_replica_is_brought_up_to_date_frees_included() {
    let (server, world, churn, sampler) = begin().await;
    let freed = Key::new("freed").unwrap();
    let (lease, _) = world.table.grant(&freed).unwrap();
    churn.more(20).await;
    world.state(State::Published).await;
    server.command(["save"]).await.unwrap();
    let old = world.redis.dump().await.unwrap();
    assert_eq!(old["freed"]["state"], "held");
    world.table.release(lease);
    churn.more(100).await;
    server.kill().unwrap();
    sampler.data_is_lost();
    server.start().await.unwrap();
    let redis = world.redis.clone();
    end(world, churn, sampler, "an old replica took over").await;
    assert_eq!(redis.dump().await.unwrap()["freed"]["state"], "free");
}

#[tokio::test]
async fn a_stopped_redis_is_noticed_and_catches_up() {
    let (server, world, churn, sampler) = begin().await;
    world.state(State::Published).await;
    server.stop().await.unwrap();
    world.state(State::Failing).await;
    churn.more(200).await;
    server.resume().unwrap();
    end(world, churn, sampler, "Redis went on").await;
}

#[tokio::test]
async fn a_full_redis_gets_the_rest_once_it_has_memory() {
    let server = RedisServer::builder().line("maxmemory-policy noeviction").start().await.unwrap();
    let (world, churn, sampler) = begin_at(&server).await;
    world.state(State::Published).await;
    // Less than it uses.
    server.command(["config", "set", "maxmemory", "500kb"]).await.unwrap();
    let status = world.state(State::Failing).await;
    assert!(status.last_error.unwrap().contains("OOM"));
    churn.more(50).await;
    // Another cluster does not take this one for dead meanwhile.
    let beat = async || server.command(["hget", "ringfence:marker:{0}", "beat"]).await.unwrap();
    let before = beat().await;
    until(WITHIN, "its marker beats", async || (beat().await != before).then_some(())).await.unwrap();
    server.command(["config", "set", "maxmemory", "0"]).await.unwrap();
    end(world, churn, sampler, "there was room").await;
}

#[tokio::test]
#[ignore = "slow"]
async fn evicted_keys_are_published_again() {
    let server = RedisServer::builder()
        .line("maxmemory 3mb")
        .line("maxmemory-policy allkeys-random")
        .start()
        .await
        .unwrap();
    let (world, churn, sampler) = begin_at(&server).await;
    let quiet: Vec<Key> = (0..200).map(|number| Key::new(&format!("quiet/{number}")).unwrap()).collect();
    world.table.grant_all(&quiet);
    world.state(State::Published).await;
    let ballast = "x".repeat(1 << 16);
    let count = AtomicU64::new(0);
    let evicts = async || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        server.command(["set", &format!("ballast:{number}"), &ballast]).await.unwrap();
        let dump = world.redis.dump().await.unwrap();
        quiet.iter().any(|key| !dump.contains_key(key.as_str())).then_some(())
    };
    until(WITHIN, "Redis evicts hashes", evicts).await.unwrap();
    server.command(["config", "set", "maxmemory", "0"]).await.unwrap();
    end(world, churn, sampler, "Redis had evicted").await;
}

#[tokio::test]
async fn a_slow_redis_gets_everything() {
    let server = RedisServer::builder().start().await.unwrap();
    let proxy = SlowProxy::start(server.address(), Duration::from_millis(150)).await;
    let redis = Redis::at([server.address()]);
    let world = World::start(unswept(proxy.url()), &redis, Table::new(1_000));
    let keys = keys(40);
    let churn = churn(&world.table, &keys);
    let sampler = Sampler::start(&redis, &world.table, &keys);
    churn.more(100).await;
    end(world, churn, sampler, "the last grant, at 300 ms a round trip").await;
}

#[tokio::test]
async fn an_overflow_of_changes_becomes_a_full_comparison() {
    let (server, redis) = one_server().await;
    let table = Table::new(1_000);
    table.keep_changed(10);
    let world = World::start(unswept(server.url()), &redis, table);
    world.state(State::Published).await;
    let leases = world.table.grant_all(&keys(1_000));
    world.is_equal("1,000 grants at once").await;
    leases.into_iter().for_each(|lease| world.table.release(lease));
    world.is_equal("1,000 releases at once").await;
}

#[tokio::test]
async fn a_new_leader_publishes_what_the_last_one_did_not() {
    let (_server, mut world, churn, sampler) = begin().await;
    world.state(State::Published).await;
    world.step_down().await;
    churn.more(50).await;
    churn.end().await;
    sampler.finish();
    // Recorded changes are not handed over.
    world.table = world.table.node(true);
    world.lead_again();
    // It need not wait until the last one has gone silent.
    let begins = |state| !matches!(state, State::Standby | State::Connecting);
    let status = world.status("it has connected", |status| begins(status.state)).await;
    assert!(matches!(status.state, State::Reconciling | State::Published), "{status:?}");
    world.is_equal("a new leader").await;
}

#[tokio::test]
#[ignore = "slow"]
async fn many_live_keys_are_published_again_after_a_flush() {
    let server = RedisServer::builder().start().await.unwrap();
    let table = Table::new(1_000);
    table.grant_all(&keys(20_000));
    let world = World::start(unswept(server.url()), &Redis::at([server.address()]), table);
    world.state(State::Published).await;
    world.has_hashes(20_000, "the start").await;
    server.command(["flushall"]).await.unwrap();
    world.has_hashes(20_000, "a flush").await;
    world.state(State::Published).await;
}
