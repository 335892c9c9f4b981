//! Tokens go to holders of locks, and to programs that check tokens.

use crate::client::line;
use crate::node::Node;

fn number(reply: &str) -> u64 {
    reply.trim_start_matches(':').parse().unwrap_or_else(|_| panic!("{reply} is no token"))
}

#[tokio::test]
async fn a_holder_gets_the_token_of_its_lease_and_another_lease_has_another() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.call("SET a v NX PX 60000").await;
    let first = number(&client.call("RINGFENCE.TOKEN a v").await);
    client.call("SET a v XX PX 70000").await;
    client.call("PEXPIRE a 80000").await;
    assert_eq!(number(&client.call("RINGFENCE.TOKEN a v").await), first, "it is the same lease");
    let mut last = first;
    for line in [
        "SET a w XX PX 60000",
        "SET a v IFEQ w PX 60000",
        "EVAL redis.call('set',KEYS[1],'w','px',60000) 1 a",
    ] {
        client.call(line).await;
        let value = client.call("GET a").await;
        let token = number(&client.call(&format!("RINGFENCE.TOKEN a {value}")).await);
        assert!(token > last, "{line}");
        last = token;
    }
    // The same value, but a new lease: the old token is stale.
    client.call("MULTI").await;
    client.call("DEL a").await;
    client.call("SET a w NX PX 60000").await;
    assert_eq!(client.call("EXEC").await, "[:1, +OK]");
    assert!(number(&client.call("RINGFENCE.TOKEN a w").await) > last);
    assert_eq!(client.call("RINGFENCE.TOKEN a v").await, "nil");
    client.call("DEL a").await;
    assert_eq!(client.call("RINGFENCE.TOKEN a w").await, "nil");
}

#[tokio::test]
async fn the_hash_of_a_key_is_that_of_the_mirror_and_new() {
    let node = Node::start().await;
    let mut client = node.client().await;
    assert_eq!(client.call("HMGET ringfence:{a/b} state token").await, "[free, 0]");
    client.call("SET a/b v NX PX 60000").await;
    let token = number(&client.call("RINGFENCE.TOKEN a/b v").await);
    assert_eq!(
        client.call("HMGET ringfence:{a/b} state token fence rev").await,
        format!("[held, {token}, {token}, {token}]")
    );
    assert_eq!(client.call("HGET ringfence:{a/b} token").await, token.to_string());
    client.call("DEL a/b").await;
    assert!(number(&client.call("HGET ringfence:{a/b} fence").await) > token);
    for line in
        ["HGET a token", "HGET ringfence:{} token", "HGET ringfence:{a token", "HGET ringfence:{a} value"]
    {
        assert!(client.call(line).await.starts_with("-ERR ringfence: "), "{line}");
    }
}

#[tokio::test]
async fn the_hash_is_for_those_who_may_read_the_key_and_scripts_have_none() {
    let may = |right: &str| format!("[anonymous]\nallow = [{{ keys = \"a/\", may = [\"{right}\"] }}]");
    let node = Node::start_with(Some(&may("acquire"))).await;
    let mut client = node.client().await;
    assert_eq!(client.call("SET a/b v NX PX 60000").await, "+OK");
    assert!(
        client.call("HGET ringfence:{a/b} token").await.starts_with("-NOAUTH this requires the right `read`")
    );
    assert!(
        client.call("EVAL return(redis.call('hget','ringfence:{a/b}','token')) 0").await.starts_with('-')
    );
    node.replace_rules(&may("read"));
    assert!(client.call("HGET ringfence:{a/b} token").await.parse::<u64>().is_ok());
    assert!(client.call("HGET ringfence:{b} token").await.starts_with("-NOAUTH"));
    assert!(
        client.call("RINGFENCE.TOKEN a/b v").await.starts_with("-NOAUTH this requires the right `acquire`")
    );
}

/// How many entries the log gets while `calls` are made.
async fn entries(node: &Node, calls: impl Future<Output = ()>) -> u64 {
    let last = || node.handle.status().last_log_index.unwrap();
    let before = last();
    calls.await;
    last() - before
}

/// Fencing once cost one more entry for each lock.
#[tokio::test]
async fn a_token_costs_no_entry_where_the_client_knows_of_the_lock() {
    let node = Node::start().await;
    let (mut client, mut other) = (node.client().await, node.client().await);
    client.call("SET a v NX PX 86400000").await;
    let token = client.call("RINGFENCE.TOKEN a v").await;
    let asked = entries(&node, async {
        for _ in 0..100 {
            assert_eq!(client.call("RINGFENCE.TOKEN a v").await, token);
            assert_eq!(other.call("RINGFENCE.TOKEN a v").await, token);
        }
    });
    // Some entries only carry the time.
    assert!(asked.await < 100);
    let in_one_packet = entries(&node, async {
        for lock in 0..100 {
            let lines = [format!("SET b{lock} v NX PX 86400000"), format!("RINGFENCE.TOKEN b{lock} v")];
            client.send(&lines.map(|text| line(&text)).concat()).await;
            assert_eq!(client.receive().await, "+OK");
            number(&client.receive().await);
        }
    });
    assert!(in_one_packet.await < 150);
}
