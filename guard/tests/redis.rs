//! The guard in a real Redis.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, RedisError};
use ringfence_guard::redis::{RedisGuard, SCRIPT};
use ringfence_guard::{Admission, Claim, High};
use ringfence_harness::{RedisCluster, RedisServer, Shown};
use ringfence_wire::{Key, Token};

const STALE_BELOW_7: Admission = Admission::Stale { high: Token(7) };

async fn redis() -> (RedisServer, MultiplexedConnection) {
    let server = RedisServer::builder().start().await.unwrap();
    let connection = connect(&server).await;
    (server, connection)
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

fn guard(key: &str) -> RedisGuard {
    RedisGuard::new(&Key::new(key).unwrap()).unwrap()
}

fn exclusive(token: u64) -> Claim {
    Claim::exclusive(Token(token)).unwrap()
}

fn shared(token: u64, fence: u64) -> Claim {
    Claim::new(Token(token), Token(fence)).unwrap()
}

/// The code of an error, and its detail.
fn said(error: &RedisError) -> String {
    format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default())
}

#[tokio::test]
async fn a_newer_holder_shuts_out_older_ones_and_no_live_peer() {
    let (_server, mut redis) = redis().await;
    let (a, b) = (guard("orders/42"), guard("orders/43"));
    assert_eq!(a.high(&mut redis).await.unwrap(), High::NEW);
    assert_eq!(a.touch(&mut redis, exclusive(5)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(a.touch(&mut redis, shared(9, 7)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(a.touch(&mut redis, exclusive(5)).await.unwrap(), STALE_BELOW_7);
    assert_eq!(a.touch(&mut redis, shared(7, 6)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(
        a.high(&mut redis).await.unwrap(),
        High::new(Token(7)).unwrap(),
        "an older fence does not lower it"
    );
    assert_eq!(b.touch(&mut redis, exclusive(5)).await.unwrap(), Admission::Accepted(()), "keys are apart");
}

#[tokio::test]
async fn commands_of_stale_holders_are_not_done() {
    let (_server, mut redis) = redis().await;
    let k = guard("k");
    for (claim, expected) in [(exclusive(7), Admission::Accepted(())), (exclusive(5), STALE_BELOW_7)] {
        let by = claim.token().0;
        assert_eq!(k.set(&mut redis, claim, "k", by).await.unwrap(), expected);
        assert_eq!(k.hset(&mut redis, claim, "{k}:h", &[("by", by), ("n", 1)]).await.unwrap(), expected);
        redis.set::<_, _, ()>("{k}:gone", 1).await.unwrap();
        assert_eq!(k.del(&mut redis, claim, "{k}:gone").await.unwrap(), expected);
        assert_eq!(redis.exists::<_, bool>("{k}:gone").await.unwrap(), !expected.is_accepted());
        assert_eq!(redis.get::<_, u64>("k").await.unwrap(), 7);
        assert_eq!(redis.hgetall::<_, Vec<(String, u64)>>("{k}:h").await.unwrap().len(), 2);
        assert_eq!(redis.hget::<_, _, u64>("{k}:h", "by").await.unwrap(), 7);
    }
    assert_eq!(k.high(&mut redis).await.unwrap(), High::new(Token(7)).unwrap());
}

#[tokio::test]
async fn any_command_runs_with_its_options_and_its_answer() {
    let (_server, mut redis) = redis().await;
    let k = guard("k");
    let once = redis::cmd("SET").arg("k").arg(b"\r\n\0\xff").arg("EX").arg(60).arg("NX").take();
    let first: Admission<Option<String>> = k.run(&mut redis, exclusive(7), &["k"], &once).await.unwrap();
    assert_eq!(first, Admission::Accepted(Some("OK".to_owned())));
    let again: Admission<Option<String>> = k.run(&mut redis, exclusive(7), &["k"], &once).await.unwrap();
    assert_eq!(again, Admission::Accepted(None), "let in, and not set, for it was there");
    assert_eq!(redis.get::<_, Vec<u8>>("k").await.unwrap(), b"\r\n\0\xff");
    assert!(redis.ttl::<_, i64>("k").await.unwrap() > 0);
    assert_eq!(redis.ttl::<_, i64>(k.number()).await.unwrap(), -1, "the number does not expire");
    let push = redis::cmd("RPUSH").arg("{k}:l").arg(&["a", "b"]).take();
    assert_eq!(k.run(&mut redis, exclusive(8), &["{k}:l"], &push).await.unwrap(), Admission::Accepted(2));
    let stale: Admission<u64> = k.run(&mut redis, exclusive(7), &["{k}:l"], &push).await.unwrap();
    assert_eq!(stale, Admission::Stale { high: Token(8) });
    let read = redis::cmd("LRANGE").arg("{k}:l").arg(0).arg(-1).take();
    let all = Admission::Accepted(vec!["a".to_owned(), "b".to_owned()]);
    assert_eq!(k.run(&mut redis, exclusive(8), &["{k}:l"], &read).await.unwrap(), all);
    let wrong: RedisError = k.set(&mut redis, exclusive(9), "k", [1, 2].as_slice()).await.unwrap_err();
    assert!(said(&wrong).contains("syntax error"), "{wrong:?}");
    assert_eq!(redis.get::<_, Vec<u8>>("k").await.unwrap(), b"\r\n\0\xff");
}

/// An earlier version of these commands accepted NaN and infinity as tokens, and could not touch.
#[tokio::test]
async fn the_commands_of_the_readme_are_as_it_shows_them() {
    let (server, _redis) = redis().await;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    Shown::new(include_str!("../README.md"), "**Redis as the resource.**", "**HTTP.**")
        .play(repository, &[("REDIS", &server.url())], Duration::from_secs(60))
        .await
        .unwrap();
}

/// Once the number of such a key was in another slot than its data.
#[test]
fn a_key_with_a_brace_has_no_number_of_its_own() {
    for key in ["a{b}c", "{a}", "a}b", "a{b", "{}a"] {
        let refused = RedisGuard::new(&Key::new(key).unwrap()).unwrap_err();
        assert!(refused.to_string().starts_with(&format!("key: `{key}`")), "{refused}");
    }
    assert_eq!(guard("orders/42").number(), "guard:{orders/42}");
}

#[tokio::test]
async fn an_invalid_token_is_an_error_and_changes_nothing() {
    let (server, mut redis) = redis().await;
    for (token, fence, why) in [
        ("0", "0", "token"),
        ("-4", "-4", "token"),
        ("", "", "token"),
        ("07", "7", "token"),
        ("0x7", "7", "token"),
        ("7e3", "7", "token"),
        ("7.5", "7", "token"),
        ("nan", "7", "token"),
        ("9007199254740992", "7", "token"),
        ("9007199254740993", "7", "token"),
        ("1790000000000000000", "7", "token"),
        ("7", "0", "fence"),
        ("7", "8", "fence"),
        ("7", "inf", "fence"),
    ] {
        let called = server.command(["EVAL", SCRIPT, "2", "n", "k", token, fence, "SET", "k", "v"]).await;
        let error = called.expect_err(token).to_string();
        assert!(error.contains(&format!("ringfence: the {why} is no number")), "{token} {fence}: {error}");
    }
    assert_eq!(redis.keys::<_, Vec<String>>("*").await.unwrap().len(), 0);
    let largest = (1 << 53) - 1;
    let k = guard("k");
    assert_eq!(k.touch(&mut redis, exclusive(largest)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(redis.get::<_, String>(k.number()).await.unwrap(), "9007199254740991");
    let stale = Admission::Stale { high: Token(largest) };
    assert_eq!(k.touch(&mut redis, exclusive(largest - 1)).await.unwrap(), stale);
}

#[tokio::test]
async fn a_corrupt_number_accepts_nobody_until_an_operator_resets_it() {
    let (_server, mut redis) = redis().await;
    let k = guard("k");
    for garbage in ["", "-1", "0", "seven", "7.0", " 7", "9007199254740992"] {
        redis.set::<_, _, ()>(k.number(), garbage).await.unwrap();
        let error = k.set(&mut redis, exclusive(7), "k", "v").await.unwrap_err();
        assert!(said(&error).contains("guard:{k} holds no token"), "{garbage:?}: {error:?}");
    }
    redis.del::<_, ()>(k.number()).await.unwrap();
    redis.lpush::<_, _, ()>(k.number(), 7).await.unwrap();
    let error = k.set(&mut redis, exclusive(7), "k", "v").await.unwrap_err();
    assert!(said(&error).contains("WRONGTYPE"), "{error:?}");
    assert!(!redis.exists::<_, bool>("k").await.unwrap());
    k.reset(&mut redis, High::reset(Token(8)).unwrap()).await.unwrap();
    assert_eq!(k.set(&mut redis, exclusive(8), "k", "v").await.unwrap(), Admission::Accepted(()));
    assert_eq!(k.set(&mut redis, exclusive(7), "k", "v").await.unwrap(), Admission::Stale { high: Token(8) });
}

/// Once the command could be one that destroys the number.
#[tokio::test]
async fn a_command_that_could_destroy_a_number_is_refused_and_raises_nothing() {
    let (_server, mut redis) = redis().await;
    let k = guard("k");
    assert_eq!(k.set(&mut redis, exclusive(7), "k", "old").await.unwrap(), Admission::Accepted(()));
    for (command, why) in [
        ("SET guard:{k} 3", "uses the number itself"),
        ("DEL k guard:{k}", "uses the number itself"),
        ("RENAME k guard:{k}", "uses the number itself"),
        ("FLUSHDB", "uses none of the names"),
        ("FLUSHALL SYNC", "uses none of the names"),
        ("SWAPDB 0 1", "uses none of the names"),
        ("SET another 1", "uses none of the names"),
    ] {
        let (name, words) = command.split_once(' ').unwrap_or((command, ""));
        let words = redis::cmd(name).arg(words.split_terminator(' ').collect::<Vec<_>>()).take();
        let error = k.run::<()>(&mut redis, exclusive(9), &["k"], &words).await.expect_err(command);
        assert!(said(&error).contains(why), "{command}: {error:?}");
        assert_eq!(k.high(&mut redis).await.unwrap(), High::new(Token(7)).unwrap(), "{command}");
    }
    assert_eq!(redis.keys::<_, Vec<String>>("*").await.unwrap().len(), 2);
}

/// Once a command of 8,000 words failed after it had raised the number.
#[tokio::test]
async fn a_command_of_too_many_words_raises_nothing() {
    let (_server, mut redis) = redis().await;
    let k = guard("k");
    for (token, values, high) in [(7, 6_998, 7), (9, 6_999, 7), (9, 100_000, 7)] {
        let push = redis::cmd("RPUSH").arg("k").arg(vec![0; values]).take();
        let pushed = k.run::<u64>(&mut redis, exclusive(token), &["k"], &push).await;
        assert_eq!(pushed.is_ok(), token == high, "{values}");
        let why = pushed.map_or_else(|error| said(&error), |_| String::new());
        assert!(token == high || why.contains("more than 7000 words"), "{why}");
        assert_eq!(k.high(&mut redis).await.unwrap(), High::new(Token(high)).unwrap(), "{values}");
    }
    let fields: Vec<_> = (0..3_499).map(|field| (field, 0)).collect();
    assert_eq!(k.hset(&mut redis, exclusive(9), "{k}:h", &fields).await.unwrap(), Admission::Accepted(()));
}

/// Once a time to live that somebody had set stayed while the number was used.
#[tokio::test]
async fn a_number_in_use_does_not_expire() {
    let (_server, mut redis) = redis().await;
    let k = guard("k");
    assert_eq!(k.touch(&mut redis, exclusive(7)).await.unwrap(), Admission::Accepted(()));
    for token in [7, 8] {
        for is_touch in [true, false] {
            redis.expire::<_, ()>(k.number(), 1_000).await.unwrap();
            let admission = match is_touch {
                true => k.touch(&mut redis, exclusive(token)).await,
                false => k.set(&mut redis, exclusive(token), "k", 1).await,
            };
            assert_eq!(admission.unwrap(), Admission::Accepted(()));
            assert_eq!(redis.ttl::<_, i64>(k.number()).await.unwrap(), -1, "{token} {is_touch}");
            assert_eq!(k.high(&mut redis).await.unwrap(), High::new(Token(token)).unwrap());
        }
    }
}

/// Once a replica accepted a touch that had nothing to raise, while its master knew of a newer holder.
#[tokio::test]
async fn a_replica_admits_nobody() {
    let (master, mut redis) = redis().await;
    let address = master.address();
    let line = format!("replicaof {} {}", address.ip(), address.port());
    let replica = RedisServer::builder().line(line).start().await.unwrap();
    let k = guard("k");
    assert_eq!(k.touch(&mut redis, exclusive(7)).await.unwrap(), Admission::Accepted(()));
    let mut at_replica = connect(&replica).await;
    while k.high(&mut at_replica).await.ok() != High::new(Token(7)).ok() {
        tokio::task::yield_now().await;
    }
    for token in [7, 9] {
        for error in [
            k.touch(&mut at_replica, exclusive(token)).await.unwrap_err(),
            k.set(&mut at_replica, exclusive(token), "k", 1).await.unwrap_err(),
        ] {
            assert_eq!(error.code(), Some("READONLY"), "{error:?}");
        }
    }
    assert_eq!(k.touch(&mut at_replica, exclusive(5)).await.unwrap(), STALE_BELOW_7);
}

/// As README.md shows it for Python.
#[tokio::test]
async fn a_watched_number_guards_a_transaction_of_several_commands() {
    let (server, mut redis) = redis().await;
    let k = guard("k");
    // The transaction's own.
    let mut old = connect(&server).await;
    for (newer, landed) in [(None, true), (Some(7), true), (Some(9), false)] {
        assert_eq!(k.touch(&mut old, exclusive(7)).await.unwrap(), Admission::Accepted(()));
        redis::cmd("WATCH").arg(k.number()).exec_async(&mut old).await.unwrap();
        assert!(k.high(&mut old).await.unwrap().token() <= Token(7));
        if let Some(token) = newer {
            assert_eq!(k.touch(&mut redis, exclusive(token)).await.unwrap(), Admission::Accepted(()));
        }
        redis.del::<_, ()>("k").await.unwrap();
        let mut transaction = redis::pipe();
        transaction.atomic().set("k", 130).rpush("{k}:log", "+30");
        let done: Option<(String, u64)> = transaction.query_async(&mut old).await.unwrap();
        assert_eq!(done.is_some(), landed, "{newer:?}");
        assert_eq!(redis.exists::<_, bool>("k").await.unwrap(), landed, "{newer:?}");
    }
    assert_eq!(redis.llen::<_, u64>("{k}:log").await.unwrap(), 2);
}

#[tokio::test]
async fn the_script_is_sent_again_to_a_server_that_forgot_it() {
    let (_server, mut redis) = redis().await;
    let k = guard("k");
    for token in 1..20 {
        if token % 2 == 0 {
            redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut redis).await.unwrap();
        }
        assert_eq!(k.set(&mut redis, exclusive(token), "k", token).await.unwrap(), Admission::Accepted(()));
        assert_eq!(redis.get::<_, u64>("k").await.unwrap(), token);
    }
}

#[tokio::test]
async fn a_full_server_does_no_command_if_it_cannot_raise_the_number() {
    let (_server, mut redis) = redis().await;
    let k = guard("k");
    assert_eq!(k.set(&mut redis, exclusive(7), "k", "old").await.unwrap(), Admission::Accepted(()));
    let config = |value: &str| redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(value).take();
    config("1").exec_async(&mut redis).await.unwrap();
    // DEL alone would be allowed.
    for error in [
        k.del(&mut redis, exclusive(9), "k").await.unwrap_err(),
        k.set(&mut redis, exclusive(9), "k", "new").await.unwrap_err(),
        // The number stands, and is no way past the limit.
        k.set(&mut redis, exclusive(7), "k", "new").await.unwrap_err(),
    ] {
        assert!(said(&error).contains("OOM"), "{error:?}");
    }
    assert_eq!(k.touch(&mut redis, exclusive(5)).await.unwrap(), STALE_BELOW_7);
    assert_eq!(k.touch(&mut redis, exclusive(7)).await.unwrap(), Admission::Accepted(()));
    config("0").exec_async(&mut redis).await.unwrap();
    assert_eq!(redis.get::<_, String>("k").await.unwrap(), "old");
    assert_eq!(k.high(&mut redis).await.unwrap(), High::new(Token(7)).unwrap());
}

#[tokio::test]
async fn a_killed_server_with_an_append_only_file_keeps_number_and_data() {
    let server =
        RedisServer::builder().line("appendonly yes").line("appendfsync always").start().await.unwrap();
    let k = guard("k");
    for token in [7, 9] {
        let mut redis = connect(&server).await;
        assert_eq!(k.set(&mut redis, exclusive(token), "k", token).await.unwrap(), Admission::Accepted(()));
        server.restart().await.unwrap();
        let mut redis = connect(&server).await;
        assert_eq!(redis.get::<_, u64>("k").await.unwrap(), token);
        let stale = Admission::Stale { high: Token(token) };
        assert_eq!(k.set(&mut redis, exclusive(token - 1), "k", 0).await.unwrap(), stale);
    }
}

#[tokio::test]
async fn in_a_cluster_number_and_data_must_share_a_slot() {
    let cluster = RedisCluster::start(&RedisServer::builder()).await.unwrap();
    let client = redis::cluster::ClusterClient::new(vec![cluster.masters()[0].url()]).unwrap();
    let mut redis = client.get_async_connection().await.unwrap();
    for n in 0..50 {
        let key = format!("orders/{n}");
        let (g, tagged) = (guard(&key), format!("{{{key}}}:h"));
        assert_eq!(g.touch(&mut redis, exclusive(7)).await.unwrap(), Admission::Accepted(()));
        assert_eq!(g.set(&mut redis, exclusive(7), &key, n).await.unwrap(), Admission::Accepted(()));
        assert_eq!(
            g.hset(&mut redis, exclusive(7), &tagged, &[("n", n)]).await.unwrap(),
            Admission::Accepted(())
        );
        assert_eq!(g.del(&mut redis, exclusive(5), &key).await.unwrap(), STALE_BELOW_7);
        assert_eq!(redis.get::<_, u64>(&key).await.unwrap(), n);
        assert_eq!(g.high(&mut redis).await.unwrap(), High::new(Token(7)).unwrap());
    }
    let elsewhere = guard("orders/1").set(&mut redis, exclusive(9), "orders/2", "x").await.unwrap_err();
    assert!(said(&elsewhere).contains("CROSSSLOT"), "{elsewhere:?}");
    assert_eq!(redis.get::<_, u64>("orders/2").await.unwrap(), 2);
}
