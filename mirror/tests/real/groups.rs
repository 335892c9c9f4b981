//! Several servers: Sentinel, and Redis Cluster.

use std::time::Duration;

use ringfence_harness::{RedisCluster, RedisSentinel, RedisServer, until};
use ringfence_mirror::{MirrorMode, Settings, State, Status, purge};
use ringfence_wire::Revision;

use crate::sampler::Sampler;
use crate::table::Table;
use crate::world::{Redis, WITHIN, World, churn, keys, name, unswept};

async fn redis_cluster() -> (RedisCluster, Redis) {
    let cluster = RedisCluster::start(&RedisServer::builder()).await.unwrap();
    let redis = Redis::at(cluster.masters().iter().map(RedisServer::address));
    (cluster, redis)
}

#[tokio::test]
#[ignore = "slow"]
async fn a_failover_of_sentinel_is_followed() {
    let group = RedisSentinel::start(&RedisServer::builder()).await.unwrap();
    let [first, second] = group.servers() else { panic!("not two servers") };
    let world = World::start(unswept(group.url()), &Redis::at([second.address()]), Table::new(1_000));
    let keys = keys(40);
    let churn = churn(&world.table, &keys);
    world.state(State::Published).await;
    assert_eq!(world.mirror.status().masters[0].address, first.address().to_string());
    churn.more(50).await;
    first.stop().await.unwrap();
    world.state(State::Failing).await;
    group.fails_over(first.address()).await.unwrap();
    churn.more(50).await;
    churn.end().await;
    world.is_equal("a failover").await;
    let status = world.state(State::Published).await;
    assert_eq!(status.masters[0].address, second.address().to_string());
    // Late writes to the former master harm nobody.
    first.resume().unwrap();
    world.is_equal("the former master came back").await;
}

/// Once the first Sentinel to answer was believed.
#[tokio::test]
async fn a_sentinel_that_names_a_replica_is_not_believed() {
    let group = RedisSentinel::start(&RedisServer::builder()).await.unwrap();
    let [first, _] = group.servers() else { panic!("not two servers") };
    let misled = group.misled().await.unwrap();
    let named = misled.command(["sentinel", "get-master-addr-by-name", "leases"]).await.unwrap();
    assert!(named.contains(&group.servers()[1].address().port().to_string()), "{named}");
    // The two Sentinels disagree.
    let url = format!("redis+sentinel://{},{}/leases", misled.address(), group.sentinels()[0].address());
    let world = World::start(unswept(url), &Redis::at([first.address()]), Table::new(1_000));
    world.table.grant_all(&keys(3));
    let status = world.state(State::Published).await;
    assert_eq!(status.masters[0].address, first.address().to_string());
    world.is_equal("the start").await;
    drop(world);
    // Without another Sentinel, this is the reported error.
    let url = format!("redis+sentinel://{}/leases", misled.address());
    let world = World::start(unswept(url), &Redis::at([first.address()]), Table::new(1_000));
    let status = world.state(State::Failing).await;
    assert!(status.last_error.as_ref().is_some_and(|error| error.contains("is a replica")), "{status:?}");
}

#[tokio::test]
async fn sentinels_have_a_login_of_their_own() {
    let group = RedisSentinel::start(&RedisServer::builder()).await.unwrap();
    for sentinel in group.sentinels() {
        let user = ["acl", "setuser", "asker", "on", ">p&ss", "&*", "+@all"];
        sentinel.command(user).await.unwrap();
        let others = ["acl", "setuser", "default", "-sentinel|get-master-addr-by-name"];
        sentinel.command(others).await.unwrap();
    }
    let redis = Redis::at([group.servers()[0].address()]);
    let refused = World::start(unswept(group.url()), &redis, Table::new(1_000));
    let status = refused.state(State::Failing).await;
    assert!(status.last_error.as_ref().is_some_and(|error| error.contains("no permissions")), "{status:?}");
    drop(refused);
    let url = format!("{}?sentinel-user=asker&sentinel-password=p%26ss", group.url());
    let world = World::start(unswept(url), &redis, Table::new(1_000));
    world.table.grant_all(&keys(3));
    world.is_equal("the start").await;
}

#[tokio::test]
async fn an_emptied_master_of_a_redis_cluster_gets_its_keys_again() {
    let (cluster, redis) = redis_cluster().await;
    let world = World::start(unswept(cluster.url()), &redis, Table::new(1_000));
    let keys = keys(60);
    let churn = churn(&world.table, &keys);
    let sampler = Sampler::start(&redis, &world.table, &keys);
    let status = world.state(State::Published).await;
    assert_eq!(status.masters.len(), 3);
    churn.more(60).await;
    let [first, second, third] = cluster.masters() else { panic!("not three masters") };
    sampler.data_is_lost();
    second.command(["flushall"]).await.unwrap();
    churn.more(50).await;
    third.kill().unwrap();
    let status = world.status("one master is missed", |status| status.state == State::Failing).await;
    let missed = status.masters.iter().filter(|master| master.state == State::Failing);
    assert!(missed.into_iter().any(|master| master.address == third.address().to_string()), "{status:?}");
    sampler.data_is_lost();
    third.restart_empty().await.unwrap();
    cluster.ready().await.unwrap();
    churn.more(50).await;
    churn.end().await;
    world.is_equal("one master came back empty").await;
    for master in [first, second, third] {
        let names = master.command(["keys", "*"]).await.unwrap();
        assert!(names.contains("ringfence:{k/") && names.contains("ringfence:marker:{"), "{names}");
    }
    sampler.finish();
}

#[tokio::test]
#[ignore = "slow"]
async fn a_write_to_a_lost_master_is_not_reported_for_the_next() {
    let group = RedisSentinel::start(&RedisServer::builder()).await.unwrap();
    let [first, second] = group.servers() else { panic!("not two servers") };
    let redis = Redis::at([second.address()]);
    let timeout = Duration::from_millis(500);
    let settings = Settings { mode: MirrorMode::BeforeAnswer, timeout, ..unswept(group.url()) };
    let world = World::start(settings, &redis, Table::new(1_000));
    world.state(State::Published).await;
    let key = keys(1);
    let (_, token) = world.table.grant(&key[0]).unwrap();
    let published = async || world.mirror.wait_published(&key, Revision(token.0)).await.then_some(());
    until(WITHIN, "it is published", &published).await.unwrap();
    let hash = name(&key[0]);
    // Sentinel closes the connections of a server that it promotes.
    let reads = async || until(WITHIN, "it is read", async || redis.fence(&hash).await.ok()).await.unwrap();
    until(WITHIN, "it is replicated", async || reads().await).await.unwrap();
    // The next master has lost it.
    second.command(["config", "set", "replica-read-only", "no"]).await.unwrap();
    second.command(["del", &hash]).await.unwrap();
    first.stop().await.unwrap();
    let next = second.address().to_string();
    world
        .status("the first master is given up", |status| {
            let is_next = status.masters.first().is_some_and(|master| master.address == next);
            is_next || status.state == State::Failing
        })
        .await;
    for _ in 0..20 {
        // Whenever it is reported, it is there.
        let says = published().await.is_some();
        assert!(!says || reads().await >= Some(token.0), "it is not there");
    }
    group.fails_over(first.address()).await.unwrap();
    until(WITHIN, "it is published again", &published).await.unwrap();
    assert!(reads().await >= Some(token.0));
}

#[tokio::test]
async fn slots_that_move_between_masters_are_followed() {
    let (cluster, redis) = redis_cluster().await;
    let world = World::start(unswept(cluster.url()), &redis, Table::new(1_000));
    let keys = keys(60);
    let churn = churn(&world.table, &keys);
    world.state(State::Published).await;
    churn.more(60).await;
    let [first, second, third] = cluster.masters() else { panic!("not three masters") };
    let moved = first.command(["keys", "ringfence:{k/*"]).await.unwrap();
    let moved: Vec<&str> = moved.lines().take(5).collect();
    assert_eq!(moved.len(), 5);
    let to = id(second).await;
    world.state(State::Published).await;
    let comparisons = async |server: &RedisServer| {
        let stats = server.command(["info", "commandstats"]).await.unwrap();
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_scan:calls="));
        calls.and_then(|calls| calls.split(',').next()?.parse::<u64>().ok()).unwrap()
    };
    let [of_first, of_second, of_third] =
        [comparisons(first).await, comparisons(second).await, comparisons(third).await];
    for hash in &moved {
        let slot = begin_move(first, second, hash).await;
        // Now neither clearly owns the slot.
        churn.more(20).await;
        for master in [second, first] {
            master.command(["cluster", "setslot", &slot, "node", &to]).await.unwrap();
        }
        churn.more(20).await;
    }
    churn.more(60).await;
    churn.end().await;
    world.is_equal("slots have moved").await;
    world.state(State::Published).await;
    // Once each moved slot compared every master with the whole table.
    assert_eq!((comparisons(first).await, comparisons(third).await), (of_first, of_third));
    assert!(comparisons(second).await > of_second);
    let there = second.command(["keys", "ringfence:{k/*"]).await.unwrap();
    assert!(moved.iter().all(|hash| there.lines().any(|line| line == *hash)), "{moved:?} in {there}");
}

/// Once such a key broke the connection to the importing master, again and again.
#[tokio::test]
async fn a_freed_key_in_a_moving_slot_delays_nothing() {
    let (cluster, redis) = redis_cluster().await;
    let mut world = World::start(unswept(cluster.url()), &redis, Table::new(1_000));
    let keys = keys(60);
    let leases = world.table.grant_all(&keys);
    world.is_equal("the grants").await;
    leases[..30].iter().for_each(|lease| world.table.release(*lease));
    world.is_equal("the releases").await;
    world.state(State::Published).await;
    let [first, second, _] = cluster.masters() else { panic!("not three masters") };
    let there = first.command(["keys", "ringfence:{k/*"]).await.unwrap();
    let (freed, held): (Vec<_>, Vec<_>) = keys
        .iter()
        .enumerate()
        .filter(|(_, key)| there.lines().any(|line| line == name(key)))
        .partition(|(number, _)| *number < 30);
    let (freed, held) = (name(freed[0].1), name(held[0].1));
    world.step_down().await;
    let marker = first.command(["keys", "ringfence:marker:*"]).await.unwrap();
    let mut slots = Vec::new();
    for name in [&freed, &held, &marker] {
        slots.push(begin_move(first, second, name).await);
    }

    // The new leader compares everything.
    world.lead_again();
    world.state(State::Published).await;
    let status = world.status("the held key waits", |status| status.lag_keys == 1).await;
    assert_eq!(status.state, State::Published);
    let others: Vec<_> = keys[..30].iter().filter(|key| name(key) != freed).cloned().collect();
    world.table.grant_all(&others);
    world.status("the others do not", |status| status.lag_keys == 1).await;

    // The move is abandoned: the migrated keys are lost here, and nobody reads those left over there.
    for slot in slots {
        for master in [first, second] {
            master.command(["cluster", "setslot", &slot, "stable"]).await.unwrap();
        }
    }
    world.status("it waits no longer", |status| status.lag_keys == 0).await;
    let restored =
        async || first.command(["hget", &held, "state"]).await.ok().filter(|state| state == "held");
    until(WITHIN, "it is published where its slot is", restored).await.unwrap();
    world.step_down().await;
    world.lead_again();
    world.state(State::Published).await;
}

/// Once a new master went to the first cluster that checked it.
#[tokio::test]
async fn a_new_master_does_not_go_to_a_cluster_that_is_occupied_on_the_others() {
    let builder = RedisServer::builder();
    let cluster = RedisCluster::start(&builder).await.unwrap();
    let new = builder.line("cluster-enabled yes").line("appendonly no").start().await.unwrap();
    let servers = || cluster.masters().iter().chain([&new]);
    let redis = Redis::at(servers().map(RedisServer::address));
    let mut first = World::start(unswept(cluster.url()), &redis, Table::new(1_000));
    first.table.grant_all(&keys(30));
    first.state(State::Published).await;
    let second = World::start(unswept(cluster.url()), &redis, Table::new(9_000));
    second.state(State::Occupied).await;

    let (owner, at) = (id(&new).await, new.address());
    let (host, port) = (at.ip().to_string(), at.port().to_string());
    cluster.masters()[0].command(["cluster", "meet", &host, &port]).await.unwrap();
    let knows = async || {
        for server in servers() {
            let nodes = server.command(["cluster", "nodes"]).await.ok()?;
            let count = nodes.lines().filter(|line| line.contains(" connected")).count();
            (count == 4 && !nodes.contains("handshake")).then_some(())?;
        }
        Some(())
    };
    until(3 * WITHIN, "the four know each other", knows).await.unwrap();
    let mut slot = 0;
    let keys_in = async |slot: u16| {
        let words = ["cluster", "countkeysinslot", &slot.to_string()];
        cluster.masters()[0].command(words).await.unwrap()
    };
    while keys_in(slot).await != "0" {
        slot += 1;
    }
    // The first is silent for a moment: the others check first.
    first.step_down().await;
    let (slot, from) = (slot.to_string(), id(&cluster.masters()[0]).await);
    // Importing raises the new owner's epoch, so that old gossip does not undo the move.
    new.command(["cluster", "setslot", &slot, "importing", &from]).await.unwrap();
    for server in [&new].into_iter().chain(cluster.masters()) {
        server.command(["cluster", "setslot", &slot, "node", &owner]).await.unwrap();
    }
    // A third cluster that knows nothing yet.
    let third = World::start(unswept(cluster.url()), &redis, Table::new(20_000));
    let left_to = Some(first.table.identity());
    for waits in [&second, &third] {
        let has_looked = |status: &Status| {
            status.masters.len() == 4
                && status.masters.iter().all(|at| at.left_to.is_some() || at.state < State::Connecting)
        };
        let status = waits.status("it has looked at all four", has_looked).await;
        for master in status.masters {
            assert_eq!((master.state, master.left_to), (State::Occupied, left_to), "{}", master.address);
        }
    }
    first.lead_again();
    let all_are_its = |status: &Status| status.masters.len() == 4 && status.state == State::Published;
    first.status("it has all four", all_are_its).await;
    first.is_equal("there is a fourth master").await;
}

/// The name of a marker depends on the slots. Once a purge left markers that had moved.
#[tokio::test]
async fn a_purge_removes_the_markers_that_resharding_has_left() {
    let (cluster, redis) = redis_cluster().await;
    let mut world = World::start(unswept(cluster.url()), &redis, Table::new(1_000));
    world.table.grant_all(&keys(30));
    world.is_equal("the grants").await;
    let markers = async || {
        let mut markers = Vec::new();
        for master in cluster.masters() {
            markers.push(master.command(["keys", "ringfence:marker:*"]).await.unwrap());
        }
        markers
    };
    // The first name is on the third master, and moves to the first.
    let first_name = "ringfence:marker:{0}";
    let before = markers().await;
    assert_eq!(before[2], first_name);
    let [first, _, third] = cluster.masters() else { panic!("not three masters") };
    let slot = begin_move(third, first, first_name).await;
    let owner = id(first).await;
    for master in cluster.masters() {
        master.command(["cluster", "setslot", &slot, "node", &owner]).await.unwrap();
    }
    let has_moved = async || {
        let now = markers().await;
        (now[0].lines().count() == 2 && now[2] != before[2] && !now[2].is_empty()).then_some(())
    };
    until(WITHIN, "a master has two markers", has_moved).await.unwrap();
    world.state(State::Published).await;

    world.step_down().await;
    let purged = purge(unswept(cluster.url()), world.table.identity().cluster_id).await;
    assert_eq!(purged.unwrap(), 30);
    for master in cluster.masters() {
        assert_eq!(master.command(["keys", "*"]).await.unwrap(), "");
    }
}

/// Migrates a key, and leaves its slot in the middle of the move.
async fn begin_move(first: &RedisServer, second: &RedisServer, hash: &str) -> String {
    let (from, to) = (id(first).await, id(second).await);
    let slot = first.command(["cluster", "keyslot", hash]).await.unwrap();
    second.command(["cluster", "setslot", &slot, "importing", &from]).await.unwrap();
    first.command(["cluster", "setslot", &slot, "migrating", &to]).await.unwrap();
    let at = second.address();
    let (host, port) = (at.ip().to_string(), at.port().to_string());
    first.command(["migrate", &host, &port, "", "0", "5000", "keys", hash]).await.unwrap();
    slot
}

async fn id(server: &RedisServer) -> String {
    server.command(["cluster", "myid"]).await.unwrap()
}

/// Once it was asked in a busy loop.
#[tokio::test]
async fn a_redis_cluster_without_slots_is_reported_and_waited_for() {
    let server = RedisServer::builder().line("cluster-enabled yes").start().await.unwrap();
    let url = format!("redis+cluster://{}", server.address());
    let world = World::start(unswept(url), &Redis::at([server.address()]), Table::new(1_000));
    let status = world.state(State::Failing).await;
    assert!(status.last_error.as_ref().is_some_and(|error| error.contains("no slots")), "{status:?}");
    // Keys that wait for a master count as lag.
    world.table.grant_all(&keys(7));
    world.status("7 keys wait", |status| status.lag_keys == 7).await;
    world.status("they wait on", |status| status.lag_keys == 7 && status.lag_ms >= 500).await;
    server.command(["cluster", "addslotsrange", "0", "16383"]).await.unwrap();
    world.state(State::Published).await;
    world.is_equal("there were slots").await;
    world.status("nothing waits", |status| (status.lag_keys, status.lag_ms) == (0, 0)).await;
}
