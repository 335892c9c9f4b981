//! The reader of the mirror, in a real Redis.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use futures_util::future::join_all;
use redis::AsyncCommands;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use ringfence_guard::MirrorVerdict::{Stale, Unknown};
use ringfence_guard::{MirrorReader, MirrorVerdict};
use ringfence_harness::{RedisCluster, RedisServer};
use ringfence_wire::{Key, Token};

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

async fn connect(url: String) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// The hash that the mirror writes for a held key.
async fn publish(redis: &mut impl ConnectionLike, key: &str, fence: &str) {
    let fields =
        ["rev", "40", "fence", fence, "token", "40", "state", "held", "mode", "shared", "holder", "h"];
    redis::cmd("HSET").arg(format!("ringfence:{{{key}}}")).arg(&fields).exec_async(redis).await.unwrap();
}

#[tokio::test]
async fn a_token_below_the_fence_is_stale_and_others_are_unknown() {
    let server = RedisServer::builder().start().await.unwrap();
    let mut redis = connect(server.url()).await;
    let reader = MirrorReader::default();
    publish(&mut redis, "orders/42", "30").await;
    publish(&mut redis, "large", "9007199254740991").await;
    for (text, token, expected) in [
        ("orders/42", 29, Stale { fence: Token(30) }),
        ("orders/42", 30, Unknown),
        ("orders/42", 41, Unknown),
        ("orders/43", 1, Unknown),
        ("large", (1 << 53) - 2, Stale { fence: Token((1 << 53) - 1) }),
    ] {
        assert_eq!(
            reader.check(&mut redis, &key(text), Token(token)).await.unwrap(),
            expected,
            "{text} {token}"
        );
    }
    let other = MirrorReader::new("elsewhere");
    assert_eq!(other.check(&mut redis, &key("orders/42"), Token(1)).await.unwrap(), Unknown);
}

#[tokio::test]
async fn a_malformed_hash_is_unknown_and_the_rest_of_a_pipeline_is_answered() {
    let server = RedisServer::builder().start().await.unwrap();
    let mut redis = connect(server.url()).await;
    let reader = MirrorReader::default();
    let mut checks = vec![(key("good"), Token(5))];
    publish(&mut redis, "good", "30").await;
    publish(&mut redis, "other", "31").await;
    let strange =
        ["", "x", "-30", "30.5", "1e9", "0", "9007199254740992", "99999999999999999999", "\u{fffd}"];
    for (n, fence) in strange.iter().enumerate() {
        redis.hset::<_, _, _, ()>(format!("ringfence:{{strange/{n}}}"), "fence", fence).await.unwrap();
        checks.push((key(&format!("strange/{n}")), Token(5)));
    }
    redis.set::<_, _, ()>("ringfence:{text}", "30").await.unwrap();
    redis.lpush::<_, _, ()>("ringfence:{list}", "30").await.unwrap();
    redis.hset::<_, _, _, ()>("ringfence:{half}", "rev", "30").await.unwrap();
    redis.hset::<_, _, _, ()>("ringfence:{bytes}", "fence", b"\xff\x00").await.unwrap();
    checks.extend(["text", "list", "half", "bytes", "absent"].map(|text| (key(text), Token(5))));
    checks.push((key("other"), Token(30)));
    let verdicts = reader.check_many(&mut redis, &checks).await.unwrap();
    let (first, last) = (verdicts[0], verdicts[verdicts.len() - 1]);
    assert_eq!((first, last), (Stale { fence: Token(30) }, Stale { fence: Token(31) }));
    assert_eq!(verdicts.len(), checks.len());
    assert!(verdicts[1..verdicts.len() - 1].iter().all(|&verdict| verdict == Unknown), "{verdicts:?}");
    for ((key, token), expected) in checks.iter().zip(verdicts) {
        assert_eq!(reader.check(&mut redis, key, *token).await.unwrap(), expected, "{key:?}");
    }
    assert_eq!(reader.check_many(&mut redis, &[]).await.unwrap(), []);
}

#[tokio::test]
async fn no_answer_is_an_error_and_not_unknown() {
    let server = RedisServer::builder()
        .line("user reader on nopass ~ringfence:* -@all +hget")
        .line("user stranger on nopass ~* -@all +get")
        .start()
        .await
        .unwrap();
    publish(&mut connect(server.url()).await, "k", "30").await;
    let as_user = |user: &str| server.url().replace("redis://", &format!("redis://{user}:x@"));
    let check = [(key("k"), Token(5))];
    let reader = MirrorReader::default();
    let mut allowed = connect(as_user("reader")).await;
    assert_eq!(reader.check_many(&mut allowed, &check).await.unwrap(), [Stale { fence: Token(30) }]);
    let mut refused = connect(as_user("stranger")).await;
    for error in [
        reader.check(&mut refused, &check[0].0, check[0].1).await.unwrap_err(),
        reader.check_many(&mut refused, &check).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Some("NOPERM"), "{error:?}");
    }
    server.kill().unwrap();
    assert!(reader.check(&mut allowed, &check[0].0, check[0].1).await.is_err());
    assert!(reader.check_many(&mut allowed, &check).await.is_err());
}

#[tokio::test]
async fn in_a_cluster_many_tokens_are_checked_concurrently() {
    let cluster = RedisCluster::start(&RedisServer::builder()).await.unwrap();
    let mut redis = redis::cluster::ClusterClient::new(vec![cluster.masters()[0].url()])
        .unwrap()
        .get_async_connection()
        .await
        .unwrap();
    let reader = MirrorReader::default();
    for n in 0..60 {
        publish(&mut redis, &format!("k/{n}"), &(n + 30).to_string()).await;
    }
    let keys: Vec<Key> = (0..60).map(|n| key(&format!("k/{n}"))).collect();
    let verdicts = join_all(keys.iter().map(|key| {
        let (mut redis, reader) = (redis.clone(), &reader);
        async move { reader.check(&mut redis, key, Token(60)).await.unwrap() }
    }))
    .await;
    let expected: Vec<MirrorVerdict> =
        (30..90).map(|fence| if fence > 60 { Stale { fence: Token(fence) } } else { Unknown }).collect();
    assert_eq!(verdicts, expected);
}
