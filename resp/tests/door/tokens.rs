//! Tokens go to holders of locks, and to programs that check tokens.

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
