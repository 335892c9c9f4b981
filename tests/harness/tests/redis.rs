//! The Redis servers that other tests start are what they are said to be.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use ringfence_harness::{RedisCluster, RedisSentinel, RedisServer};

#[tokio::test]
async fn a_server_comes_back_with_what_it_saved_or_with_nothing() {
    let server = RedisServer::builder().line("maxmemory 64mb").start().await.unwrap();
    assert!(server.command(["config", "get", "maxmemory"]).await.unwrap().contains("67108864"));
    server.command(["set", "saved", "1"]).await.unwrap();
    server.command(["save"]).await.unwrap();
    server.command(["set", "later", "1"]).await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(server.command(["exists", "saved", "later"]).await.unwrap(), "1");
    server.stop().await.unwrap();
    server.resume().unwrap();
    server.restart_empty().await.unwrap();
    assert_eq!(server.command(["dbsize"]).await.unwrap(), "0");
    assert!(server.command(["nonsense"]).await.is_err());
}

#[tokio::test]
async fn a_server_with_tls_takes_nothing_else() {
    let server = RedisServer::builder().tls().start().await.unwrap();
    assert!(server.url().starts_with("rediss://") && server.authority().unwrap().exists());
    assert!(server.command(["config", "get", "port"]).await.unwrap().ends_with('0'));
}

#[tokio::test]
async fn three_masters_share_the_slots() {
    let cluster = RedisCluster::start(&RedisServer::builder()).await.unwrap();
    let slots = cluster.masters()[0].command(["cluster", "slots"]).await.unwrap();
    for master in cluster.masters() {
        assert!(slots.contains(&master.address().port().to_string()), "{slots}");
    }
    cluster.masters()[1].restart_empty().await.unwrap();
    cluster.ready().await.unwrap();
}

#[tokio::test]
async fn sentinels_replace_a_master_that_was_killed() {
    let group = RedisSentinel::start(&RedisServer::builder()).await.unwrap();
    let [first, second] = group.servers() else { panic!("not two servers") };
    assert_eq!(group.master().await.unwrap(), first.address());
    first.kill().unwrap();
    assert_eq!(group.fails_over(first.address()).await.unwrap(), second.address());
}
