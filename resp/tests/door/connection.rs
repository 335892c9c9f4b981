//! Commands about the connection and the server.

use crate::client::{array, line};
use crate::node::Node;

#[tokio::test]
async fn clients_shake_hands_in_both_protocols() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let hello = client.call("HELLO").await;
    assert!(hello.starts_with("[server, redis, version, 8.4.0, proto, :2, id, :"), "{hello}");
    assert_eq!(client.call("GET a").await, "nil");
    let hello = client.call("hello 3 setname worker").await;
    assert!(hello.starts_with("{server: redis, version: 8.4.0, proto: :3, id: :"), "{hello}");
    assert_eq!(client.call("CLIENT GETNAME").await, "worker");
    client.call("SET a v NX PX 60000").await;
    assert_eq!(node.holder("a").as_deref(), Some("worker"));
    assert_eq!(client.call("CONFIG GET save").await, "{}");
    assert_eq!(client.call("HELLO 4").await, "-NOPROTO unsupported protocol version");
    assert_eq!(client.call("RESET").await, "+RESET");
    assert_eq!(client.call("CLIENT GETNAME").await, "nil");
    client.call("SET b v NX PX 60000").await;
    assert_eq!(node.holder("b"), None);
    assert_eq!(client.call("CONFIG GET save").await, "[]");
}

#[tokio::test]
async fn questions_of_clients_are_answered_and_nothing_is_promised() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let refused = "-ERR ringfence: ";
    for (line, reply) in [
        ("PING", "+PONG"),
        ("PING a", "a"),
        ("ECHO a", "a"),
        ("SELECT 0", "+OK"),
        ("SELECT 1023", "+OK"),
        ("SELECT 1024", "-ERR DB index is out of range"),
        ("SELECT a", "-ERR value is not an integer or out of range"),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK"),
        ("CLIENT SETNAME a", "+OK"),
        ("CLIENT SETNAME a\nb", "-ERR Client names cannot contain spaces, newlines or special characters."),
        ("CLIENT NO-TOUCH ON", "+OK"),
        ("CLIENT NO-EVICT OFF", "+OK"),
        ("CLIENT TRACKING ON", refused),
        ("CLIENT REPLY OFF", refused),
        ("CLIENT REPLY SKIP", refused),
        ("CLIENT KILL ID 1", refused),
        ("CLIENT PAUSE 100", refused),
        ("CLIENT MAINT_NOTIFICATIONS ON", refused),
        ("CLIENT FOO", "-ERR unknown subcommand"),
        ("ROLE", "[master, :0, []]"),
        ("COMMAND", "[]"),
        ("COMMAND COUNT", ":0"),
        ("CONFIG SET save 1", refused),
        ("CLUSTER INFO", "-ERR This instance has cluster support disabled"),
        // One node is a majority by itself.
        ("WAIT 1 0", ":0"),
        ("SUBSCRIBE a", refused),
        ("BLPOP a 0", refused),
        ("MONITOR", refused),
        ("FLUSHALL", refused),
        ("KEYS *", refused),
        ("SCRIPT KILL", "-NOTBUSY No scripts in execution right now."),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("AUTH secret", "-ERR AUTH <password> called without any password configured"),
        ("FOO", "-ERR unknown command 'FOO'"),
    ] {
        let got = client.call(line).await;
        assert!(got.starts_with(reply), "{line}: {got}");
    }
    let info = client.call("INFO replication").await;
    assert!(info.contains("role:master\r\n") && !info.contains("loading"), "{info}");
    assert!(client.call("INFO").await.contains("loading:0\r\n"));
    assert!(client.call("CLIENT INFO").await.contains(" name=a db=1023 resp=2"));
    assert_eq!(client.call("QUIT").await, "+OK");
    assert_eq!(client.receive().await, "closed");
}

#[tokio::test]
async fn there_are_as_many_replies_as_commands_in_their_order() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let sent = [
        array(&["SET", "a", "v", "NX", "PX", "60000"]),
        array(&["FOO"]),
        b"*0\r\n".to_vec(),
        array(&["GET", "a"]),
        array(&["SET", "a", "v"]),
        b"PING\r\n".to_vec(),
        array(&["DEL", "a"]),
        array(&["PING"]),
    ];
    client.send(&sent.concat()).await;
    let mut replies = Vec::new();
    for _ in 0..sent.len() - 1 {
        replies.push(client.receive().await);
    }
    assert_eq!(&replies[0], "+OK");
    assert!(replies[1].starts_with("-ERR unknown command"));
    assert_eq!(&replies[2], "v");
    assert!(replies[3].starts_with("-ERR ringfence: a lock needs a time"));
    assert_eq!(replies[4..], ["+PONG", ":1", "+PONG"]);
}

#[tokio::test]
async fn a_database_has_keys_of_its_own() {
    let node = Node::start().await;
    let mut client = node.client().await;
    assert_eq!(client.call("SET a v NX PX 60000").await, "+OK");
    client.call("SELECT 3").await;
    assert_eq!(client.call("SET a w NX PX 60000").await, "+OK");
    client.call("SELECT 0").await;
    assert_eq!(client.call("GET db3/a").await, "nil");
    assert_eq!(client.call("GET a").await, "v");
}

/// A request that waits for another is counted once all the same.
#[tokio::test]
async fn each_request_of_a_burst_counts_once() {
    let rules =
        "[anonymous]\nallow = [{ keys = \"*\", may = [\"acquire\"] }]\nlimits = { requests-per-s = 36 }";
    let node = Node::start_with(Some(rules)).await;
    let mut client = node.client().await;
    let lines =
        ["SET a v NX PX 60000", "GET a", "EVAL return(7) 0", "FOO", "EXISTS a b", "DEL a", "EVALSHA 1 1 a"];
    client.send(&lines.iter().cycle().take(35).flat_map(|sent| line(sent)).collect::<Vec<u8>>()).await;
    let expected = [
        "+OK",
        "v",
        ":7",
        "-ERR unknown command 'FOO'",
        ":1",
        ":1",
        "-NOSCRIPT No matching script. Please use EVAL.",
    ];
    for reply in expected.iter().cycle().take(35) {
        assert_eq!(client.receive().await, *reply);
    }
}

/// The threads of a program share a connection.
#[tokio::test]
async fn requests_of_one_connection_wait_for_the_cluster_together() {
    const REQUESTS: usize = 60;
    let node = Node::start().await;
    let mut client = node.client().await;
    client.call("SET before v NX PX 60000").await;
    let applied = || node.handle.status().applied_index.unwrap();
    let before = applied();
    let sent = (0..REQUESTS).flat_map(|number| line(&format!("SET {number} v NX PX 60000")));
    client.send(&sent.collect::<Vec<u8>>()).await;
    for _ in 0..REQUESTS {
        assert_eq!(client.receive().await, "+OK");
    }
    let entries = applied() - before;
    assert!(entries < REQUESTS as u64 / 2, "{entries}");
}

#[tokio::test]
async fn requests_that_arrive_together_are_done_in_order() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let lines = [
        ("SET a v NX PX 60000", "+OK"),
        ("SET b v NX PX 60000", "+OK"),
        ("GET a", "v"),
        ("SET a w NX PX 60000", "nil"),
        ("DEL a b", ":2"),
        ("GET a", "nil"),
        ("SELECT 3", "+OK"),
        ("SET b w NX PX 60000", "+OK"),
        ("MULTI", "+OK"),
        ("GET b", "+QUEUED"),
        ("DEL b", "+QUEUED"),
        ("EXEC", "[w, :1]"),
        ("SELECT 0", "+OK"),
        ("GET b", "nil"),
        ("SET b x NX PX 60000", "+OK"),
        ("QUIT", "+OK"),
        ("DEL b", "closed"),
    ];
    client.send(&lines.iter().flat_map(|(sent, _)| line(sent)).collect::<Vec<u8>>()).await;
    for (sent, reply) in lines {
        assert_eq!(client.receive().await, reply, "{sent}");
    }
    assert_eq!(node.client().await.call("GET b").await, "x");
}

/// A secret of 128 KiB, or thousands of them, were once hashed before anything was counted.
#[tokio::test]
async fn a_login_is_small_and_shows_one_credential() {
    let node = Node::start_with(Some("[anonymous]\n")).await;
    let mut client = node.client().await;
    let large = "x".repeat(4 << 10);
    for command in [&["AUTH", &large][..], &["HELLO", "3", "AUTH", "a", &large]] {
        let reply = client.command(command).await;
        assert_eq!(reply, "-ERR ringfence: AUTH and HELLO have less than 4 KiB");
    }
    let reply = client.call("HELLO 3 AUTH a b AUTH c d OTHER").await;
    assert_eq!(reply, "-ERR Syntax error in HELLO", "nothing was looked up");
}

/// AUTH and HELLO with wrong arguments, or behind MULTI, once counted nowhere.
#[tokio::test]
async fn every_request_counts_whatever_it_comes_to() {
    let rules =
        "[anonymous]\nallow = [{ keys = \"*\", may = [\"acquire\"] }]\nlimits = { requests-per-s = 2 }";
    for lines in [
        ["PING", "AUTH a b c"],
        ["PING", "AUTH"],
        ["PING", "HELLO three"],
        ["PING", "HELLO 3 SETNAME"],
        ["PING", "HELLO 3 AUTH a"],
        ["PING", "SELECT"],
        ["PING", "NOPE"],
        ["PING", "GET"],
        ["MULTI", "AUTH a"],
        ["MULTI", "HELLO 3"],
        ["MULTI", "MULTI"],
    ] {
        let node = Node::start_with(Some(rules)).await;
        let mut client = node.client().await;
        client.call(lines[0]).await;
        let mut replies = Vec::new();
        // On a busy machine, some of them may be further apart than the limit asks for.
        while replies.len() < 500
            && !replies.last().is_some_and(|reply: &String| reply.contains("requests per second"))
        {
            replies.push(client.call(lines[1]).await);
        }
        assert!(replies.len() < 500, "{lines:?}: {}", replies[0]);
    }
}

/// What is behind it begins once it was held back, and then another one is allowed.
#[tokio::test]
async fn a_client_that_comes_too_soon_is_refused_once_and_held_back() {
    let rules =
        "[anonymous]\nallow = [{ keys = \"*\", may = [\"acquire\"] }]\nlimits = { requests-per-s = 20 }";
    let node = Node::start_with(Some(rules)).await;
    let mut client = node.client().await;
    client.send(&line("GET a").repeat(60)).await;
    let mut replies = Vec::new();
    for _ in 0..60 {
        replies.push(client.receive().await);
    }
    let is_limited = |reply: &String| reply.contains("requests per second");
    assert!(replies.iter().any(is_limited));
    assert!(replies.windows(2).all(|two| !two.iter().all(is_limited)), "{replies:?}");
}
