//! Others that write to the same Redis: a former leader, another cluster, anybody.

use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_harness::{RedisServer, until};
use ringfence_mirror::{Identity, Mirror, PurgeError, Settings, State, purge};
use ringfence_wire::{Key, Revision, Token};
use tokio::time::sleep;

use crate::proxy::Proxy;
use crate::sampler::Sampler;
use crate::table::Table;
use crate::world::{Churn, Redis, WITHIN, World, keys, name, unswept};

#[tokio::test]
async fn a_former_leader_that_resumes_in_the_middle_of_publishing_changes_nothing() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    let proxy = Proxy::start(server.address(), Duration::ZERO).await;
    let keys = keys(40);
    // It is never told that it leads when it asks: by then it does not.
    let former = World::start(unswept(proxy.url()), &redis, Table::new(1_000).node(false));
    let leases = former.table.grant_all(&keys);
    former.is_equal("the start").await;
    former.state(State::Published).await;

    proxy.hold();
    let given = proxy.given();
    for (key, lease) in keys.iter().zip(&leases).take(20) {
        former.table.release(*lease);
        former.table.grant(key).unwrap();
    }
    let look = || ready((proxy.given() > given + 20 * 100).then_some(()));
    until(WITHIN, "20 writes are under way", look).await.unwrap();

    let next = World::start(unswept(server.url()), &redis, former.table.node(true));
    let sampler = Sampler::start(&redis, &next.table, &keys);
    leases[20..].iter().for_each(|lease| next.table.release(*lease));
    let churn = Churn::start(&next.table, &keys);
    churn.goes_on(40).await;
    churn.stop().await;
    next.is_equal("another leads").await;
    let before = redis.dump().await.unwrap();

    let given = proxy.given();
    proxy.let_go();
    let look = || ready((proxy.delivered() >= given).then_some(()));
    until(WITHIN, "the writes arrive", look).await.unwrap();
    // It connects again and compares its old table with what stands.
    former.state(State::Published).await;
    assert_eq!(redis.dump().await.unwrap(), before);
    next.is_equal("the former leader came back").await;
    sampler.finish();
}

#[tokio::test]
async fn a_key_that_is_freed_reconciled_and_granted_at_once_never_shows_a_live_token_as_stale() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    let mut world = World::start(unswept(server.url()), &redis, Table::new(1_000));
    let keys = keys(3);
    let sampler = Sampler::start(&redis, &world.table, &keys);
    for round in 0..100_u64 {
        // Whoever begins to lead compares everything.
        world.step_down().await;
        world.lead_again();
        for key in &keys {
            let (lease, _) = world.table.grant(key).unwrap();
            sleep(Duration::from_micros(round * 37 % 2_000)).await;
            world.table.release(lease);
        }
    }
    sampler.finish();
    world.is_equal("100 rounds").await;
}

#[tokio::test]
async fn a_foreign_hand_is_noticed_and_what_it_wrote_replaced() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    let world = World::start(Settings::new(server.url()), &redis, Table::new(1_000));
    let huge = ["rev", "9007199254740990", "fence", "9007199254740991"];
    let deeds: [&[&str]; 9] = [
        &["hset", "", huge[0], huge[1], huge[2], huge[3]],
        &["hset", "", huge[0], huge[1]],
        &["hset", "", huge[2], huge[3]],
        &["hset", "", "rev", "not a number", "fence", "1"],
        &["hset", "", "rev", "99999999999999999999"],
        &["hset", "", "fence", "-1"],
        &["hset", "", "token", "7", "holder", "nobody"],
        &["hdel", "", "rev", "fence", "state"],
        &["del", ""],
    ];
    let spoil = async || {
        for (number, deed) in deeds.iter().enumerate() {
            for state in ["held", "freed", "unknown"] {
                let name = format!("ringfence:{{{state}/{number}}}");
                let words = deed.iter().map(|word| if word.is_empty() { &name } else { *word });
                server.command(words).await.unwrap();
            }
        }
        for state in ["held", "freed", "unknown"] {
            let name = format!("ringfence:{{{state}/type}}");
            server.command(["del", &name]).await.unwrap();
            server.command(["rpush", &name, "a list"]).await.unwrap();
        }
    };
    let named = |state: &str| {
        let numbers = (0..deeds.len()).map(|number| number.to_string()).chain(["type".to_owned()]);
        numbers.map(|number| Key::new(&format!("{state}/{number}")).unwrap()).collect::<Vec<_>>()
    };
    let held = world.table.grant_all(&named("held"));
    for key in named("freed") {
        let (lease, _) = world.table.grant(&key).unwrap();
        world.table.release(lease);
    }
    world.is_equal("the start").await;

    server.command(["set", "ringfence:{not//a/key}", "is left alone"]).await.unwrap();
    spoil().await;
    server.command(["del", "ringfence:{not//a/key}"]).await.unwrap();
    world.is_equal("a foreign hand").await;
    // It does not go on and on.
    let settled = redis.dump().await.unwrap();
    let scans = async || {
        let stats = server.command(["info", "commandstats"]).await.unwrap();
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_scan:calls="));
        calls.and_then(|calls| calls.split(',').next()?.parse::<u64>().ok()).unwrap()
    };
    let before = scans().await;
    let look = async || (scans().await >= before + 2).then_some(());
    until(WITHIN, "it is compared again", look).await.unwrap();
    assert_eq!(redis.dump().await.unwrap(), settled);

    // What clients do meanwhile is not kept out.
    spoil().await;
    held.iter().for_each(|lease| world.table.release(*lease));
    for key in named("held") {
        let (_, token) = world.table.grant(&key).unwrap();
        assert!(token > Token(1_000));
    }
    world.is_equal("a foreign hand, and grants").await;
}

#[tokio::test]
async fn of_two_clusters_the_one_that_started_later_has_the_redis_until_it_is_purged() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    let settings = || unswept(server.url());
    let earlier = World::start(settings(), &redis, Table::new(1_000));
    let (earlier_id, later_id) =
        (earlier.table.identity().cluster_id, Table::new(9_000).identity().cluster_id);
    let keys = keys(20);
    earlier.table.grant_all(&keys[..15]);
    earlier.is_equal("the start").await;

    let mut later = World::start(settings(), &redis, Table::new(9_000));
    later.table.grant_all(&keys[10..]);
    let status = earlier.state(State::Superseded).await;
    assert_eq!(status.masters[0].left_to, Some(later.table.identity()));
    later.is_equal("another cluster's data").await;
    later.state(State::Published).await;

    // No fight: what the earlier one does is not seen.
    let before = redis.dump().await.unwrap();
    let churn = Churn::start(&earlier.table, &keys[15..]);
    churn.goes_on(3).await;
    churn.stop().await;
    let looks = async || {
        let stats = server.command(["info", "stats"]).await.unwrap();
        let count = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        count.and_then(|count| count.trim().parse::<u64>().ok()).unwrap()
    };
    // Each command of this test is a connection too.
    let (from, asked) = (looks().await, AtomicU64::new(0));
    let look = async || {
        let own = asked.fetch_add(1, Ordering::Relaxed) + 1;
        (looks().await > from + own).then_some(())
    };
    until(WITHIN, "the earlier cluster looks whether the later one is gone", look).await.unwrap();
    assert_eq!(redis.dump().await.unwrap(), before);
    assert_eq!(earlier.mirror.status().state, State::Superseded);

    let refused = purge(settings(), earlier_id).await;
    assert!(matches!(refused, Err(PurgeError::OtherCluster { .. })), "{refused:?}");
    assert_eq!(redis.dump().await.unwrap(), before);

    later.step_down().await;
    server.command(["set", "another program's", "1"]).await.unwrap();
    assert_eq!(purge(settings(), later_id).await.unwrap(), 20);
    earlier.state(State::Published).await;
    earlier.is_equal("the later cluster was purged").await;
    assert_eq!(server.command(["exists", "another program's"]).await.unwrap(), "1");
}

#[tokio::test]
async fn a_cluster_leaves_word_of_how_far_it_has_come() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    let mut world = World::start(unswept(server.url()), &redis, Table::new(1_000));
    world.table.grant_all(&keys(50));
    let next = Mirror::new(unswept(server.url())).unwrap();
    let is_told = async || next.elder().await.filter(|elder| elder.reached == Revision(1_050));
    let elder = until(WITHIN, "it has come to 1,050", is_told).await.unwrap();
    let Identity { cluster_id, .. } = world.table.identity();
    assert_eq!((elder.address, elder.cluster), (server.address().to_string(), cluster_id.to_string()));

    // An earlier version's marker, what is none, and a Redis that is gone.
    world.step_down().await;
    let marker = "ringfence:marker:{0}";
    server.command(["del", marker]).await.unwrap();
    server.command(["hset", marker, "cluster", "c", "first_revision", "77"]).await.unwrap();
    assert_eq!(next.elder().await.unwrap().reached, Revision(77));
    server.command(["hset", marker, "first_revision", "no number"]).await.unwrap();
    assert_eq!(next.elder().await, None);
    server.command(["set", marker, "no hash"]).await.unwrap();
    assert_eq!(next.elder().await, None);
    server.kill().unwrap();
    assert_eq!(next.elder().await, None);
}

#[tokio::test]
async fn a_freed_key_goes_after_its_retention_and_a_held_one_stays() {
    let server = RedisServer::builder().start().await.unwrap();
    let redis = Redis::at([server.address()]);
    let settings = Settings { retention: Duration::from_secs(1_000), ..unswept(server.url()) };
    let world = World::start(settings, &redis, Table::new(1_000));
    let key = Key::new("a").unwrap();
    let expires = async || server.command(["ttl", &name(&key)]).await.unwrap().parse::<i64>().unwrap();
    let (lease, _) = world.table.grant(&key).unwrap();
    world.is_equal("a grant").await;
    assert_eq!(expires().await, -1);
    world.table.release(lease);
    world.is_equal("its release").await;
    assert!((1..=1_000).contains(&expires().await));
    world.table.grant(&key).unwrap();
    world.is_equal("another grant").await;
    assert_eq!(expires().await, -1);
}
