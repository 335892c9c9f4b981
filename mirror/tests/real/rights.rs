//! TLS, and the users with the least rights in README.md.

use redis::{Client, ErrorKind, ServerErrorKind};
use ringfence_harness::{RedisBuilder, RedisCluster, RedisSentinel, RedisServer};
use ringfence_mirror::{Settings, State, purge};

use crate::table::Table;
use crate::world::{Redis, World, keys, name};

/// The ACL lines of README.md.
fn documented_users() -> RedisBuilder {
    let lines = include_str!("../../README.md").lines().filter(|line| line.starts_with("user ringfence-"));
    let lines: Vec<String> = lines.map(|line| line.replace("PASSWORD", "secret")).collect();
    assert_eq!(lines.len(), 2);
    lines.into_iter().fold(RedisServer::builder(), RedisBuilder::line)
}

fn as_user(user: &str, url: &str) -> String {
    url.replace("://", &format!("://{user}:secret@"))
}

#[tokio::test]
async fn the_documented_rights_are_enough_to_publish_and_to_purge() {
    let server = documented_users().start().await.unwrap();
    let url = as_user("ringfence-publisher", &server.url());
    let mut world = World::start(Settings::new(&url), &Redis::at([server.address()]), Table::new(1_000));
    let keys = keys(3);
    let (lease, _) = world.table.grant(&keys[0]).unwrap();
    world.table.grant(&keys[1]).unwrap();
    world.is_equal("a grant").await;
    world.table.release(lease);
    for spoilt in [["set", &name(&keys[2])], ["set", &name(&keys[1])], ["hset", &name(&keys[0])]] {
        server.command(["del", spoilt[1]]).await.unwrap();
        let fields: &[&str] =
            if spoilt[0] == "set" { &["x"] } else { &["rev", "9000000000000", "fence", "9"] };
        server.command(spoilt.iter().chain(fields)).await.unwrap();
    }
    world.is_equal("all kinds of repairs").await;
    let status = world.state(State::Published).await;
    assert_eq!(status.last_error, None);
    world.step_down().await;
    let purged = purge(Settings::new(&url), world.table.identity().cluster_id).await;
    assert_eq!(purged.unwrap(), 3);
    assert_eq!(server.command(["dbsize"]).await.unwrap(), "0");
}

#[tokio::test]
async fn the_documented_rights_allow_nothing_else() {
    let server = documented_users().start().await.unwrap();
    let refused = async |user: &str, words: &[&str]| {
        let mut connection = Client::open(as_user(user, &server.url()))
            .unwrap()
            .get_multiplexed_async_connection()
            .await
            .unwrap();
        let mut command = redis::cmd(words[0]);
        let answer = command.arg(&words[1..]).query_async::<redis::Value>(&mut connection).await;
        answer.is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm))
    };
    let hash = "ringfence:{a}";
    assert!(!refused("ringfence-reader", &["hmget", hash, "fence"]).await);
    assert!(!refused("ringfence-publisher", &["hmget", hash, "fence"]).await);
    for words in
        [&["hset", hash, "fence", "1"] as &[_], &["del", hash], &["hmget", "other", "fence"], &["keys", "*"]]
    {
        assert!(refused("ringfence-reader", words).await, "{words:?}");
    }
    for words in
        [&["hset", "other", "fence", "1"] as &[_], &["del", "other"], &["flushall"], &["eval", "", "0"]]
    {
        assert!(refused("ringfence-publisher", words).await, "{words:?}");
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn the_documented_rights_are_enough_in_a_redis_cluster_and_behind_sentinel() {
    let cluster = RedisCluster::start(&documented_users()).await.unwrap();
    let redis = Redis::at(cluster.masters().iter().map(RedisServer::address));
    let settings = Settings::new(as_user("ringfence-publisher", &cluster.url()));
    let world = World::start(settings, &redis, Table::new(1_000));
    world.table.grant_all(&keys(30));
    world.is_equal("30 grants").await;
    drop((world, cluster));

    let group = RedisSentinel::start(&documented_users()).await.unwrap();
    let settings = Settings::new(as_user("ringfence-publisher", &group.url()));
    let world = World::start(settings, &Redis::at([group.servers()[0].address()]), Table::new(1_000));
    world.table.grant_all(&keys(30));
    world.is_equal("30 grants").await;
}

#[tokio::test]
async fn tls_trusts_only_the_given_authority() {
    let server = RedisServer::builder().tls().start().await.unwrap();
    let table = Table::new(1_000);
    table.grant(&keys(1)[0]).unwrap();
    // The test's own reader does not speak TLS: `redis-cli` does.
    let nobody = Redis::at([]);
    let settings = Settings::new(server.url());
    let distrusts = World::start(settings.clone(), &nobody, table.node(true));
    let status = distrusts.state(State::Failing).await;
    let error = status.last_error.unwrap();
    assert!(error.contains("certificate"), "{error}");
    assert_eq!(server.command(["dbsize"]).await.unwrap(), "0");

    let settings = Settings { tls_ca: server.authority().map(Into::into), ..settings };
    let trusts = World::start(settings, &nobody, table);
    trusts.state(State::Published).await;
    assert_eq!(server.command(["hget", &name(&keys(1)[0]), "state"]).await.unwrap(), "held");
}
