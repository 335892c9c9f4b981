//! MULTI, EXEC and WATCH.

use tokio::time::Instant;

use crate::client::{PATIENCE, line};
use crate::node::Node;

/// Rules that let strangers send this many requests per second.
fn slow_down(requests: u32) -> String {
    format!(
        "[anonymous]\nallow = [{{ keys = \"*\", may = [\"acquire\"] }}]\nlimits = {{ requests-per-s = {requests} }}"
    )
}

#[tokio::test]
async fn what_is_queued_is_done_together() {
    let node = Node::start().await;
    let (mut client, mut other) = (node.client().await, node.client().await);
    assert_eq!(client.call("MULTI").await, "+OK");
    for line in ["SET a v NX PX 60000", "SET b w NX PX 60000", "GET a", "PING", "SET a x NX PX 60000"] {
        assert_eq!(client.call(line).await, "+QUEUED");
    }
    assert_eq!(other.call("EXISTS a b").await, ":0");
    assert_eq!(client.call("EXEC").await, "[+OK, +OK, v, +PONG, nil]");
    assert_eq!(other.call("EXISTS a b").await, ":2");
    client.call("MULTI").await;
    client.call("DEL a").await;
    assert_eq!(client.call("DISCARD").await, "+OK");
    assert_eq!(client.call("GET a").await, "v");
    client.call("MULTI").await;
    assert_eq!(client.call("EXEC").await, "[]");
}

/// Redis would do the other commands.
#[tokio::test]
async fn if_one_command_fails_nothing_is_done() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.call("SET own v NX PX 60000").await;
    for (wrong, reply) in [
        ("SET b w", "-ERR ringfence: SET without NX"),
        ("FOO", "-ERR unknown command"),
        ("GET", "-ERR wrong number of arguments"),
        ("EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0", "-NOSCRIPT"),
        ("PUBLISH a b", "-ERR ringfence: nobody can wait"),
        ("SELECT 1", "-ERR ringfence: 'select' cannot be queued"),
        ("AUTH a", "-ERR ringfence: 'auth' cannot be queued"),
        ("CLIENT ID", "-ERR ringfence: 'client' cannot be queued"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        ("WATCH own", "-ERR WATCH inside MULTI is not allowed"),
    ] {
        client.call("MULTI").await;
        assert_eq!(client.call("DEL own").await, "+QUEUED");
        let got = client.call(wrong).await;
        assert!(got.starts_with(reply), "{wrong}: {got}");
        assert_eq!(client.call("SET a w NX PX 60000").await, "+QUEUED", "{wrong}");
        let exec = client.call("EXEC").await;
        assert_eq!(exec, "-EXECABORT Transaction discarded because of previous errors.", "{wrong}");
    }
    for wrong in ["RINGFENCE.TOKEN a w", "EVAL return(nothing()) 0"] {
        client.call("MULTI").await;
        client.call("DEL own").await;
        client.call("SET a w NX PX 60000").await;
        assert_eq!(client.call(wrong).await, "+QUEUED");
        let exec = client.call("EXEC").await;
        assert!(exec.starts_with("-EXECABORT ringfence: nothing was done"), "{wrong}: {exec}");
    }
    assert_eq!(client.call("EXISTS own a").await, ":1");
    assert_eq!(client.call("EXEC").await, "-ERR EXEC without MULTI");
    assert_eq!(client.call("DISCARD").await, "-ERR DISCARD without MULTI");
}

#[tokio::test]
async fn a_watched_key_that_has_changed_stops_exec() {
    let node = Node::start().await;
    let (mut client, mut other) = (node.client().await, node.client().await);
    for (before, change, reply) in [
        ("SET a v NX PX 60000", "PING", "[:1]"),
        ("SET a v NX PX 60000", "DEL a", "nil"),
        ("SET a v NX PX 60000", "SET a w XX PX 60000", "nil"),
        ("PING", "SET a v NX PX 60000", "nil"),
        ("PING", "SET b v NX PX 60000", "[:0]"),
        // An extension is no other lock.
        ("SET a v NX PX 60000", "PEXPIRE a 90000", "[:1]"),
    ] {
        other.call("DEL a b").await;
        other.call(before).await;
        assert_eq!(client.call("WATCH a").await, "+OK");
        other.call(change).await;
        client.call("MULTI").await;
        client.call("DEL a").await;
        assert_eq!(client.call("EXEC").await, reply, "{before}; {change}");
    }
    // The same value, but another lease.
    other.call("SET a v NX PX 60000").await;
    client.call("WATCH a").await;
    other.call("DEL a").await;
    other.call("SET a v NX PX 60000").await;
    client.call("WATCH a").await;
    client.call("MULTI").await;
    client.call("DEL a").await;
    assert_eq!(client.call("EXEC").await, "nil", "what was seen first counts");
    client.call("WATCH a").await;
    other.call("DEL a").await;
    assert_eq!(client.call("UNWATCH").await, "+OK");
    client.call("MULTI").await;
    client.call("DEL a").await;
    assert_eq!(client.call("EXEC").await, "[:0]");
}

#[tokio::test]
async fn what_waits_for_exec_is_bounded() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.call("MULTI").await;
    for _ in 0..64 {
        assert_eq!(client.call("PING").await, "+QUEUED");
    }
    assert!(client.call("PING").await.starts_with("-ERR ringfence: at most 64 commands"));
    client.call("DISCARD").await;
    client.call("MULTI").await;
    let long = "x".repeat(40_000);
    assert_eq!(client.command(&["ECHO", &long]).await, "+QUEUED");
    assert!(client.command(&["ECHO", &long]).await.starts_with("-ERR ringfence: at most 64 commands"));
    client.call("DISCARD").await;
    // The reply to each of them fits, but the reply to both does not.
    client.call("MULTI").await;
    let text = format!("return string.rep('x', {})", 40_000);
    for _ in 0..2 {
        assert_eq!(client.command(&["EVAL", &text, "0"]).await, "+QUEUED");
    }
    client.call("SET a v NX PX 60000").await;
    let exec = client.call("EXEC").await;
    assert_eq!(exec, "-ERR ringfence: the reply would have more than 64 KiB");
    assert_eq!(client.call("EXISTS a").await, ":0");
    let keys: Vec<String> = (0..33).map(|number| format!("key/{number}")).collect();
    let mut watch: Vec<&str> = keys.iter().map(String::as_str).collect();
    watch.insert(0, "WATCH");
    assert!(client.command(&watch).await.starts_with("-ERR ringfence: a request has at most 32 keys"));
    assert_eq!(client.command(&watch[..33]).await, "+OK");
    let more = client.call("WATCH another").await;
    assert!(more.starts_with("-ERR ringfence: a request has at most 32 keys"), "{more}");
}

/// Otherwise EXEC would do the transaction without the refused command.
#[tokio::test]
async fn a_command_that_comes_too_fast_spoils_the_transaction() {
    let node = Node::start_with(Some(&slow_down(2))).await;
    let mut client = node.client().await;
    let commands = ["MULTI", "DEL a", "DEL b", "DEL c", "DEL d", "DEL e", "EXEC"];
    client.send(&commands.map(line).concat()).await;
    let mut replies = Vec::new();
    for _ in commands {
        replies.push(client.receive().await);
    }
    assert!(replies.iter().any(|reply| reply.contains("may send 2 requests per second")), "{replies:?}");
    assert!(!replies.last().unwrap().starts_with('['), "{replies:?}");
}

/// What is sent behind it would be done, or queued, or have other keys.
#[tokio::test]
async fn a_command_of_the_connection_that_comes_too_fast_closes_it() {
    let node = Node::start_with(Some(&slow_down(1))).await;
    for command in ["MULTI", "WATCH b", "SELECT 3", "RESET", "HELLO 3"] {
        let begun = Instant::now();
        loop {
            let mut client = node.client().await;
            client.send(&["ECHO a", command, "SET a v NX PX 60000"].map(line).concat()).await;
            client.receive().await;
            if client.receive().await.contains("may send 1 requests per second") {
                assert_eq!(client.receive().await, "closed", "{command}");
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{command}");
        }
    }
}

#[tokio::test]
async fn scripts_count_as_what_they_cost() {
    let node = Node::start_with(Some(&slow_down(100))).await;
    for then in ["", "return redis.call('get', KEYS[1])"] {
        let script = format!("for i = 1, 25000 do local x = i end {then}");
        let (mut client, mut calls) = (node.client().await, 0);
        while !client.command(&["EVAL", &script, "1", "a"]).await.contains("requests per second") {
            calls += 1;
            assert!(calls < 50, "{script}");
        }
    }
}

/// Otherwise each script could cost as much as one may alone.
#[tokio::test]
async fn all_scripts_of_a_request_have_one_budget_and_each_its_own_keys() {
    let node = Node::start().await;
    let mut client = node.client().await;
    // The script runs twice, as the first copy of the key may be old.
    let busy = "for i = 1, 9000 do local x = i end redis.call('get', KEYS[1])";
    for (count, is_done) in [(1, true), (12, false)] {
        client.call("MULTI").await;
        for _ in 0..count {
            assert_eq!(client.command(&["EVAL", busy, "1", "a"]).await, "+QUEUED");
        }
        let exec = client.call("EXEC").await;
        assert_eq!(exec == "[nil]", is_done, "{count}: {exec}");
        assert!(is_done || exec.contains("too many steps"), "{count}: {exec}");
    }
    client.call("MULTI").await;
    client.call("SET a v NX PX 60000").await;
    client.command(&["EVAL", "return redis.call('get', 'a')", "1", "b"]).await;
    let exec = client.call("EXEC").await;
    assert!(exec.contains("a is not one of them"), "{exec}");
    assert_eq!(client.call("EXISTS a").await, ":0");
}
