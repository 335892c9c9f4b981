//! Other writers to the same Redis: a former leader, another cluster, anybody.

use std::future::ready;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use ringfence_harness::until;
use ringfence_mirror::{Identity, Mirror, MirrorMode, PurgeError, Settings, State, purge};
use ringfence_wire::{Key, Revision, Token};
use tokio::time::sleep;

use crate::proxy::SlowProxy;
use crate::sampler::Sampler;
use crate::table::Table;
use crate::world::{WITHIN, World, churn, keys, name, one_server, unswept};

#[tokio::test]
async fn a_former_leader_that_resumes_while_publishing_changes_nothing() {
    let (server, redis) = one_server().await;
    let proxy = SlowProxy::start(server.address(), Duration::ZERO).await;
    let keys = keys(40);
    // Its linearizable reads fail: it no longer leads by then.
    let former = World::start(unswept(proxy.url()), &redis, Table::new(1_000).node(false));
    let leases = former.table.grant_all(&keys);
    former.is_equal("the start").await;
    former.state(State::Published).await;

    proxy.hold();
    let received = proxy.received();
    for (key, lease) in keys.iter().zip(&leases).take(20) {
        former.table.release(*lease);
        former.table.grant(key).unwrap();
    }
    let look = || ready((proxy.received() > received + 20 * 100).then_some(()));
    until(WITHIN, "20 writes are in flight", look).await.unwrap();

    let next = World::start(unswept(server.url()), &redis, former.table.node(true));
    let sampler = Sampler::start(&redis, &next.table, &keys);
    leases[20..].iter().for_each(|lease| next.table.release(*lease));
    let churn = churn(&next.table, &keys);
    churn.more(40).await;
    churn.end().await;
    next.is_equal("another leads").await;
    let before = redis.dump().await.unwrap();

    let received = proxy.received();
    proxy.release();
    let look = || ready((proxy.delivered() >= received).then_some(()));
    until(WITHIN, "the writes arrive", look).await.unwrap();
    // It connects again and compares its old table with Redis.
    former.state(State::Published).await;
    assert_eq!(redis.dump().await.unwrap(), before);
    next.is_equal("the former leader came back").await;
    sampler.finish();
}

#[tokio::test]
async fn reconciling_during_releases_and_grants_never_shows_a_live_token_as_stale() {
    let (server, redis) = one_server().await;
    let mut world = World::start(unswept(server.url()), &redis, Table::new(1_000));
    let keys = keys(3);
    let sampler = Sampler::start(&redis, &world.table, &keys);
    for round in 0..100_u64 {
        // A new leader compares everything.
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
#[ignore = "slow"]
async fn foreign_writes_are_noticed_and_replaced() {
    let (server, redis) = one_server().await;
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
    // It converges.
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

    // Grants meanwhile are published, too.
    spoil().await;
    held.iter().for_each(|lease| world.table.release(*lease));
    for key in named("held") {
        let (_, token) = world.table.grant(&key).unwrap();
        assert!(token > Token(1_000));
    }
    world.is_equal("a foreign hand, and grants").await;
}

/// Once the cluster that started later got the Redis, and readers rejected the live holders of the other.
#[tokio::test]
#[ignore = "slow"]
async fn a_cluster_keeps_its_redis_as_long_as_it_is_alive() {
    let (server, redis) = one_server().await;
    let settings = || unswept(server.url());
    let mut first = World::start(settings(), &redis, Table::new(1_000));
    let keys = keys(20);
    first.table.grant_all(&keys[..15]);
    first.state(State::Published).await;
    let sampler = Sampler::start(&redis, &first.table, &keys);

    // Somebody copied its configuration.
    let mut second = World::start(settings(), &redis, Table::new(9_000));
    second.table.grant_all(&keys[10..]);
    let status = second.state(State::Occupied).await;
    assert_eq!(status.masters[0].left_to, Some(first.table.identity()));
    first.table.grant_all(&keys[15..]);
    first.is_equal("another cluster came").await;
    // Nor does it get a Redis that is empty for a moment.
    for _ in 0..5 {
        sampler.data_is_lost();
        server.command(["flushall"]).await.unwrap();
        first.is_equal("a flush").await;
    }
    server.command(["save"]).await.unwrap();
    server.restart().await.unwrap();
    first.is_equal("a restart").await;
    first.state(State::Published).await;
    assert_eq!(second.state(State::Occupied).await.masters[0].left_to, Some(first.table.identity()));
    let second_id = second.table.identity().cluster_id;
    let refused = purge(settings(), second_id).await;
    assert!(matches!(refused, Err(PurgeError::OtherCluster { .. })), "{refused:?}");
    sampler.finish();

    // When it is gone, the other takes over by itself, but not after a moment's silence.
    first.step_down().await;
    let since = Instant::now();
    takes_over(&second).await;
    assert!(since.elapsed() > Duration::from_secs(10), "{:?}", since.elapsed());
    second.is_equal("the first is gone").await;
    first.lead_again();
    let status = first.state(State::Occupied).await;
    assert_eq!(status.masters[0].left_to, Some(second.table.identity()));
    second.is_equal("the first came back").await;

    // Larger revisions do not keep the first from taking over.
    second.step_down().await;
    takes_over(&first).await;
    first.is_equal("the second is gone").await;
    first.step_down().await;
    server.command(["set", "another program's", "1"]).await.unwrap();
    assert_eq!(purge(settings(), first.table.identity().cluster_id).await.unwrap(), 20);
    assert_eq!(server.command(["keys", "*"]).await.unwrap(), "another program's");
}

/// Waits until an occupied cluster publishes.
async fn takes_over(world: &World) {
    let look = || ready((world.mirror.status().state == State::Published).then_some(()));
    until(4 * WITHIN, "it takes over", look).await.unwrap();
}

/// Once checks succeeded while the owner's updates were refused, and found silence.
#[tokio::test]
async fn a_check_fails_while_redis_refuses_writes() {
    let (server, redis) = one_server().await;
    let first = World::start(unswept(server.url()), &redis, Table::new(1_000));
    first.table.grant_all(&keys(5));
    first.state(State::Published).await;
    let second = World::start(unswept(server.url()), &redis, Table::new(9_000));
    second.state(State::Occupied).await;
    server.command(["config", "set", "min-replicas-to-write", "1"]).await.unwrap();
    // If checks succeeded, it would take over instead.
    second.state(State::Failing).await;
    first.state(State::Failing).await;
    server.command(["config", "set", "min-replicas-to-write", "0"]).await.unwrap();
    first.state(State::Published).await;
    let status = second.state(State::Occupied).await;
    assert_eq!(status.masters[0].left_to, Some(first.table.identity()));
    first.is_equal("writes were refused").await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_silent_marker_of_an_earlier_version_is_replaced() {
    let (server, redis) = one_server().await;
    let id = Table::new(1).identity().cluster_id.to_string();
    let marker =
        ["hset", "ringfence:marker:{0}", "cluster", &id, "first_revision", "90000", "revision", "91000"];
    server.command(marker).await.unwrap();
    let world = World::start(unswept(server.url()), &redis, Table::new(1_000));
    world.table.grant_all(&keys(3));
    let status = world.state(State::Occupied).await;
    assert_eq!(status.masters[0].left_to.unwrap().cluster_id.to_string(), id);
    takes_over(&world).await;
    world.is_equal("nobody beat").await;
}

#[tokio::test]
async fn a_live_cluster_is_replaced_by_one_configured_to_take_over_from_it() {
    let (server, redis) = one_server().await;
    let first = World::start(unswept(server.url()), &redis, Table::new(9_000));
    let keys = keys(20);
    first.table.grant_all(&keys[..15]);
    first.state(State::Published).await;
    let take_over = Some(first.table.identity().cluster_id);
    let settings = || Settings { take_over, ..unswept(server.url()) };
    let second = World::start(settings(), &redis, Table::new(1_000));
    second.table.grant_all(&keys[5..]);
    let status = first.state(State::Occupied).await;
    assert_eq!(status.masters[0].left_to, Some(second.table.identity()));
    second.is_equal("it took over").await;
    // The same setting takes over from no other cluster.
    let third = World::start(settings(), &redis, Table::new(20_000));
    let status = third.state(State::Occupied).await;
    assert_eq!(status.masters[0].left_to, Some(second.table.identity()));
    second.state(State::Published).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_cluster_paused_during_a_take_over_writes_nothing_afterwards() {
    let (server, redis) = one_server().await;
    let keys = keys(10);
    // The test can pause its runtime. Its larger revisions would get its writes past the script.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = Settings { mode: MirrorMode::BeforeAnswer, ..unswept(server.url()) };
    let former = {
        let _inside = runtime.enter();
        World::start(settings, &redis, Table::new(9_000))
    };
    let (pauses, paused) = channel::<Receiver<()>>();
    let process = std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                match paused.try_recv() {
                    Ok(until) => drop(until.recv()),
                    Err(TryRecvError::Empty) => sleep(Duration::from_millis(1)).await,
                    Err(TryRecvError::Disconnected) => break,
                }
            }
        });
    });
    let leases = former.table.grant_all(&keys);
    former.is_equal("the start").await;
    former.state(State::Published).await;

    let (pause, until) = channel();
    pauses.send(until).unwrap();
    let take_over = Some(former.table.identity().cluster_id);
    let next = World::start(Settings { take_over, ..unswept(server.url()) }, &redis, Table::new(1_000));
    next.table.grant_all(&keys);
    next.state(State::Published).await;
    next.is_equal("it took over").await;
    let sampler = Sampler::start(&redis, &next.table, &keys);
    leases.iter().for_each(|lease| former.table.release(*lease));
    // Longer than a claim is relied on.
    sleep(Duration::from_secs(3)).await;
    drop(pause);
    former.state(State::Occupied).await;
    next.is_equal("the former one went on").await;
    sampler.finish();
    drop(pauses);
    process.join().unwrap();
}

#[tokio::test]
async fn a_marker_says_how_far_its_cluster_has_come() {
    let (server, redis) = one_server().await;
    let mut world = World::start(unswept(server.url()), &redis, Table::new(1_000));
    world.table.grant_all(&keys(50));
    let next = Mirror::new(unswept(server.url())).unwrap();
    let reached =
        async || next.furthest_marker().await.filter(|(_, marker)| marker.reached == Revision(1_050));
    let (address, marker) = until(WITHIN, "it has reached 1,050", reached).await.unwrap();
    let Identity { cluster_id, .. } = world.table.identity();
    assert_eq!((address, marker.cluster), (server.address().to_string(), cluster_id.to_string()));

    // The marker of an earlier version, a value that is no marker, and a Redis that is down.
    world.step_down().await;
    let marker = "ringfence:marker:{0}";
    server.command(["del", marker]).await.unwrap();
    server.command(["hset", marker, "cluster", "c", "first_revision", "77"]).await.unwrap();
    assert_eq!(next.furthest_marker().await.unwrap().1.reached, Revision(77));
    server.command(["hset", marker, "first_revision", "no number"]).await.unwrap();
    assert_eq!(next.furthest_marker().await, None);
    server.command(["set", marker, "no hash"]).await.unwrap();
    assert_eq!(next.furthest_marker().await, None);
    server.kill().unwrap();
    assert_eq!(next.furthest_marker().await, None);
}

#[tokio::test]
async fn a_freed_key_goes_after_its_retention_and_a_held_one_stays() {
    let (server, redis) = one_server().await;
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
