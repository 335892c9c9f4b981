//! Sends the same commands to a node and to a real Redis, and compares the replies.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use ringfence_harness::RedisServer;

use crate::client::Client;
use crate::node::Node;

const SCRIPTS: &[&str] = &[
    "local all = redis.call('mget', KEYS[1], KEYS[1]) if all[1] == ARGV[1] then return redis.call('pexpire', KEYS[1], 450000) end return all",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], 500000) end return redis.status_reply('NO')",
    "if redis.call('exists', KEYS[1]) == 1 then return {redis.call('get', KEYS[1])} end return redis.call('set', KEYS[1], ARGV[1], 'PX', 400000)",
    "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', '500000')",
    "local old = redis.call('get', KEYS[1]) redis.call('set', KEYS[1], ARGV[1], 'px', 300000) return old",
    "if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then redis.call('pexpire', KEYS[1], 500000) return redis.call('pttl', KEYS[1]) > 0 end return 0",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('getdel', KEYS[1]) else return 0 end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('set', KEYS[1], ARGV[1], 'XX', 'KEEPTTL') else return 0 end",
    "if redis.call('set', KEYS[1], ARGV[1], 'NX') then redis.call('expire', KEYS[1], 500) return 'new' end return redis.call('getex', KEYS[1], 'PX', 400000)",
    "local few = redis.pcall('get') local no = redis.pcall('pexpire', KEYS[1], 'x') return {few.err, no.err, redis.call('exists', KEYS[1])}",
    "return {redis.call('type', KEYS[1]), redis.call('exists', KEYS[1], KEYS[1]), redis.call('ttl', KEYS[1]) > 0}",
];

/// A command that means the same here and in Redis, on one of three keys and with one of three values.
fn command() -> impl Strategy<Value = Vec<String>> {
    let key = || prop::sample::select(vec!["k1", "k2", "k3"]);
    let value = || prop::sample::select(vec!["v1", "v2", "v3"]);
    let line = prop_oneof![
        6 => (key(), value()).prop_map(|(key, value)| format!("SET {key} {value} NX PX 500000")),
        2 => (key(), value()).prop_map(|(key, value)| format!("set {key} {value} ex 500 xx")),
        4 => key().prop_map(|key| format!("GET {key}")),
        2 => (key(), key()).prop_map(|(one, other)| format!("EXISTS {one} {other}")),
        2 => (key(), key()).prop_map(|(one, other)| format!("MGET {one} {other}")),
        3 => (key(), key()).prop_map(|(one, other)| format!("DEL {one} {other}")),
        1 => key().prop_map(|key| format!("UNLINK {key}")),
        1 => key().prop_map(|key| format!("TYPE {key}")),
        2 => key().prop_map(|key| format!("PTTL {key}")),
        1 => key().prop_map(|key| format!("TTL {key}")),
        2 => (key(), prop::sample::select(vec!["600000", "0", "-1"]))
            .prop_map(|(key, ms)| format!("PEXPIRE {key} {ms}")),
        3 => (key(), prop::sample::select(vec!["600000 NX", "600000 XX", "900000 GT", "1000 GT", "100000 LT", "900000 LT", "450000 XX LT", "0 LT", "-5 GT"]))
            .prop_map(|(key, rest)| format!("PEXPIRE {key} {rest}")),
        1 => key().prop_map(|key| format!("GETDEL {key}")),
        1 => (key(), prop::sample::select(vec!["", " PX 500000", " EX 500"]))
            .prop_map(|(key, rest)| format!("GETEX {key}{rest}")),
        2 => (key(), value()).prop_map(|(key, value)| format!("SET {key} {value} XX KEEPTTL")),
        1 => (key(), prop::sample::select(vec!["600", "0"]))
            .prop_map(|(key, seconds)| format!("EXPIRE {key} {seconds}")),
    ];
    let words = line.prop_map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let script = (prop::sample::select(SCRIPTS), key(), value())
        .prop_map(|(text, key, value)| ["EVAL", text, "1", key, value].map(str::to_owned).to_vec());
    prop_oneof![5 => words, 2 => script]
}

/// A command that is refused, or has no keys.
fn other_command() -> impl Strategy<Value = Vec<String>> {
    let line = prop::sample::select(vec![
        "SET k1",
        "SET k1 v1 NX XX PX 5",
        "SET k1 v1 NX PX",
        "SET k1 v1 NX PX 0",
        "SET k1 v1 NX EX -1",
        "SET k1 v1 NX PX x",
        "SET k1 v1 PX 5 EX 5 NX",
        "PEXPIRE k1 x",
        "PEXPIRE k1 1.5",
        "PEXPIRE k1 01",
        "PEXPIRE k1",
        "EXPIRE k1 9223372036854775807",
        "PEXPIRE k1 1000 NX GT",
        "PEXPIRE k1 1000 GT LT",
        "PEXPIRE k1 1000 SOON",
        "PEXPIRE k1 x NX",
        "SET k1 v1 XX KEEPTTL PX 5",
        "GETEX k1 PX",
        "GETEX k1 EX 5 PX 5",
        "GETDEL",
        "CLIENT NO-EVICT ON",
        "GET",
        "GET a b",
        "DEL",
        "ECHO hello",
        "PING",
        "PING hello",
        "EXEC",
        "DISCARD",
        "NOTHING",
        "WATCH k1",
        "UNWATCH",
        "SELECT x",
        "EVALSHA 0000000000000000000000000000000000000000 0",
        "EVAL return(1) x",
        "EVAL return(1) 5",
        "EVAL return(1) -1",
        "EVAL x",
        "SCRIPT EXISTS 0000000000000000000000000000000000000000",
        "CLIENT GETNAME",
        "WAIT 0 0",
    ]);
    line.prop_map(|line| line.split(' ').map(str::to_owned).collect())
}

/// The part of the reply to this command that must be equal.
fn compared(command: &[String], reply: String) -> String {
    let name = command[0].to_lowercase();
    if let Some(error) = reply.strip_prefix('-') {
        return match error.split_once(' ') {
            // Redis adds the arguments or the place of the error.
            Some(("ERR", text)) if text.starts_with("unknown command") => "unknown command".to_owned(),
            _ => error.to_owned(),
        };
    }
    match reply.strip_prefix(':').map(str::parse::<i64>) {
        // Times differ by some milliseconds.
        Some(Ok(left)) if left > 0 && name.ends_with("ttl") => "some time".to_owned(),
        _ => reply,
    }
}

async fn both(here: &mut Client, there: &mut Client, command: &[String]) -> String {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let found = compared(command, here.command(&words).await);
    let expected = compared(command, there.command(&words).await);
    assert_eq!(found, expected, "{command:?}");
    found
}

#[tokio::test]
async fn the_replies_are_those_of_redis() {
    let server = match RedisServer::builder().start().await {
        Ok(server) => server,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let node = Node::start().await;
    let (mut here, mut there) = (node.client().await, Client::connect(server.address()).await);
    let mut runner = TestRunner::deterministic();
    let mut draw = |strategy: BoxedStrategy<Vec<String>>| {
        prop::collection::vec(strategy, 1..12).new_tree(&mut runner).unwrap().current()
    };
    for round in 0..200 {
        if round % 3 > 0 {
            for command in draw(prop_oneof![4 => command(), 1 => other_command()].boxed()) {
                both(&mut here, &mut there, &command).await;
                // A watch sees no extension here.
                if ["PEXPIRE", "EXPIRE", "GETEX", "EVAL", "SET", "set"].contains(&command[0].as_str()) {
                    both(&mut here, &mut there, &["UNWATCH".to_owned()]).await;
                }
            }
            continue;
        }
        both(&mut here, &mut there, &["MULTI".to_owned()]).await;
        // `compared` knows no times in arrays.
        for command in draw(command().boxed()).iter().filter(|command| !command[0].ends_with("TTL")) {
            both(&mut here, &mut there, command).await;
        }
        let end = if round % 2 == 0 { "EXEC" } else { "DISCARD" };
        both(&mut here, &mut there, &[end.to_owned()]).await;
    }
}
