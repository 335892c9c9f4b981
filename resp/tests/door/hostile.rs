//! Requests of strangers.

use crate::client::{array, line};
use crate::node::Node;

/// A web page can make a browser send such requests to any port, with a body of its choice.
#[tokio::test]
async fn a_browser_gets_no_answer_and_its_body_is_not_read() {
    let node = Node::start().await;
    let body = String::from_utf8(array(&["SET", "a", "v", "NX", "PX", "60000"])).unwrap();
    let inline = "SET a v NX PX 60000\r\n";
    for head in [
        "POST / HTTP/1.1\r\nHost: node\r\n\r\n",
        "PUT / HTTP/1.1\r\n\r\n",
        "GET /?SET HTTP/1.1\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\n\r\n",
        "Host: node\r\n\r\n",
    ] {
        for body in [&body[..], inline] {
            let mut client = node.client().await;
            client.send(format!("{head}{body}").as_bytes()).await;
            assert_eq!(client.receive().await, "closed", "{head}");
        }
    }
    for lines in [inline, "AUTH a\r\nPING\r\nAUTH a\r\n", "EVAL x 0\r\n", "x\r\n", "HELLO 3\r\n"] {
        let mut client = node.client().await;
        client.send(format!("{lines}{body}").as_bytes()).await;
        let mut replies = Vec::new();
        while replies.last().is_none_or(|reply| reply != "closed") {
            replies.push(client.receive().await);
        }
        assert!(
            replies[replies.len() - 2].starts_with("-ERR ringfence: lines of words"),
            "{lines}: {replies:?}"
        );
    }
    assert_eq!(node.client().await.call("EXISTS a").await, ":0");
}

#[tokio::test]
async fn what_is_no_request_closes_the_connection_with_a_reason() {
    let node = Node::start().await;
    for (sent, reply) in [
        ("*1025\r\n", "-ERR Protocol error: invalid multibulk length"),
        ("*1\r\n$65537\r\n", "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n*1\r\n", "-ERR Protocol error: expected '$'"),
        (&"x".repeat(2_000), "-ERR Protocol error: too big inline request"),
    ] {
        let mut client = node.client().await;
        client.send(&array(&["PING"])).await;
        client.send(sent.as_bytes()).await;
        assert_eq!(client.receive().await, "+PONG");
        assert_eq!(client.receive().await, reply);
        assert_eq!(client.receive().await, "closed");
    }
}

#[tokio::test]
async fn large_arguments_are_refused_or_answered_and_the_connection_goes_on() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let most = "x".repeat(64 << 10);
    assert!(client.command(&["ECHO", &most]).await.starts_with("-ERR ringfence: the reply would have more"));
    let fits = &most[..(64 << 10) - 10];
    assert_eq!(client.command(&["ECHO", fits]).await.len(), fits.len());
    assert!(client.command(&["SET", "a", &most, "NX", "PX", "1000"]).await.contains("at most 1,024 bytes"));
    assert!(client.command(&["GET", &most]).await.contains("at most 512 bytes"));
    assert!(client.command(&["SELECT", &most]).await.starts_with('-'));
    assert!(client.command(&["CLIENT", "SETNAME", &most]).await.starts_with('-'));
    assert!(client.command(&["HELLO", "3", "SETNAME", &most]).await.starts_with('-'));
    let unknown = client.command(&[&most]).await;
    assert!(unknown.len() < 100, "{unknown}");
    assert_eq!(client.call("PING").await, "+PONG");
}

#[tokio::test]
async fn a_thousand_requests_at_once_are_answered_in_order() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let sent: Vec<u8> = (0..1_000).flat_map(|number| array(&["ECHO", &number.to_string()])).collect();
    client.send(&sent).await;
    for number in 0..1_000 {
        assert_eq!(client.receive().await, number.to_string());
    }
}

#[tokio::test]
async fn a_stranger_can_say_who_it_is_and_nothing_else() {
    let node = Node::start_with(Some("[anonymous]\nallow = []")).await;
    let mut client = node.client().await;
    for line in [
        "GET a",
        "EVAL return(1) 0",
        "SCRIPT LOAD return(1)",
        "INFO",
        "CLIENT ID",
        "COMMAND",
        "ECHO a",
        "HGET ringfence:{a} token",
        "WAIT 0 0",
        "FOO",
    ] {
        let reply = client.call(line).await;
        assert!(reply.starts_with("-NOAUTH this requires the right `acquire`"), "{line}: {reply}");
    }
    // Commands behind these would mean something else than the client believes.
    for command in ["MULTI", "EXEC", "DISCARD", "UNWATCH", "WATCH a", "SELECT 1"] {
        let mut client = node.client().await;
        client.send(&[command, "PING"].map(line).concat()).await;
        let reply = client.receive().await;
        assert!(reply.starts_with("-NOAUTH"), "{command}: {reply}");
        assert_eq!(client.receive().await, "closed", "{command}");
    }
    assert_eq!(client.call("PING").await, "+PONG");
    assert!(client.call("HELLO 3").await.starts_with("{server"));
    let secret = client.call("AUTH secret").await;
    assert!(secret.starts_with("-WRONGPASS ringfence: a credential over a plain connection"), "{secret}");
    assert_eq!(client.call("RESET").await, "+RESET");
    assert_eq!(client.call("QUIT").await, "+OK");
}

#[tokio::test]
async fn rules_that_change_count_at_once() {
    let may = |keys: &str| format!("[anonymous]\nallow = [{{ keys = \"{keys}\", may = [\"acquire\"] }}]");
    let node = Node::start_with(Some(&may("a/"))).await;
    let mut client = node.client().await;
    assert_eq!(client.call("SET a/b v NX PX 60000").await, "+OK");
    assert!(
        client
            .call("SET b v NX PX 60000")
            .await
            .starts_with("-NOAUTH this requires the right `acquire` on the key b")
    );
    client.call("MULTI").await;
    assert_eq!(client.call("DEL a/b").await, "+QUEUED");
    node.replace_rules(&may("b/"));
    assert!(
        client.call("EXEC").await.starts_with("-NOAUTH this requires the right `acquire` on the key a/b")
    );
    // A name cannot get out of its subtree.
    assert!(client.call("SET b/../a/b v NX PX 60000").await.starts_with("-NOAUTH"));
    assert!(client.call("SET b v NX PX 60000").await.starts_with("-NOAUTH"));
    node.replace_rules(&may("a/"));
    assert_eq!(client.call("GET a/b").await, "v");
    node.replace_rules("[anonymous]\nallow = []");
    assert!(client.call("DEL a/b").await.starts_with("-NOAUTH this requires the right `acquire`, and"));
}
