//! One name is one lock, whichever protocol names it. In each database it is another lock.

use ringfence_service::{Acquired, Failure};
use ringfence_wire::{KeyView, LeaseId};
use tokio::time::Instant;

use crate::locks::request;
use crate::node::Node;

impl Node {
    async fn acquire(&self, name: &str) -> Result<Acquired, Failure> {
        let caller = self.anonymous();
        let acquired =
            self.service.acquire(&caller, LeaseId::random(), request(name), Instant::now(), || ()).await;
        acquired.answered().0
    }

    /// The keys that begin with `prefix`, as an operator sees them.
    fn keys(&self, prefix: &str) -> Vec<KeyView> {
        self.handle.view(|table| table.keys(prefix, None, 10, None).0)
    }
}

/// `50%off` was once the key `50%25off` here, so HTTP granted `50%off`, too.
#[tokio::test]
async fn a_name_that_is_a_key_over_http_is_that_key() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for name in ["orders/42", "50%off", "a%2Fb", "100%", "%25", "db1/k", "ä"] {
        assert_eq!(client.command(&["SET", name, "v", "NX", "PX", "60000"]).await, "+OK");
        assert!(matches!(node.acquire(name).await, Err(Failure::Held { .. })), "{name}");
        assert_eq!(client.command(&["DEL", name]).await, ":1");
        assert!(matches!(node.acquire(name).await, Ok(Acquired::Granted { .. })), "{name}");
        assert_eq!(client.command(&["SET", name, "v", "NX", "PX", "60000"]).await, "nil");
    }
}

/// `k` in database 1 was once the same key as `db1/k` in database 0, and a hash was of another key than SET's.
#[tokio::test]
async fn databases_have_locks_of_their_own_and_their_hashes_and_scripts_are_of_the_same_keys() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let names = ["k", "db1/k", "50%off", "a\nb", "/", "@db1"];
    let mut tokens = Vec::new();
    for database in ["0", "1", "3"] {
        client.command(&["SELECT", database]).await;
        for name in names {
            if (database, name) == ("0", "@db1") {
                continue;
            }
            let set = client.command(&["SET", name, "v", "NX", "PX", "60000"]).await;
            assert_eq!(set, "+OK", "{name:?} in database {database}");
            let token = client.command(&["RINGFENCE.TOKEN", name, "v"]).await;
            let hash = format!("ringfence:{{{name}}}");
            let shown = client.command(&["HMGET", &hash, "token", "fence", "state"]).await;
            let number = token.trim_start_matches(':');
            assert_eq!(shown, format!("[{number}, {number}, held]"), "{name:?} in database {database}");
            let script = "return redis.call('ringfence.token', KEYS[1], 'v')";
            assert_eq!(client.command(&["EVAL", script, "1", name]).await, token);
            tokens.push(token);
        }
    }
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 17, "each is a lock of its own");
    let shown = |prefix| node.keys(prefix).into_iter().map(|view| view.key.to_string()).collect::<Vec<_>>();
    assert_eq!(shown("@db0/"), ["@db0/%2F", "@db0/a%0Ab"]);
    assert_eq!(
        shown("@db1/"),
        ["@db1/%2F", "@db1/50%25off", "@db1/@db1", "@db1/a%0Ab", "@db1/db1/k", "@db1/k"]
    );
    // As a name, a key that stands for a database is a mistake, also for programs that check tokens.
    client.call("SELECT 0").await;
    for line in
        ["SET @db1/k v NX PX 60000", "GET @db0/a%0Ab", "HGET ringfence:{@db1/k} token", "WATCH @db1/k"]
    {
        assert!(client.call(line).await.starts_with("-ERR ringfence: `@db` and a number"), "{line}");
    }
}

/// For an older program in the same cluster, such names are other keys.
#[tokio::test]
async fn names_that_were_other_keys_wait_for_new_rules() {
    let node = Node::start_under(ringfence_lease::NAMES - 1).await;
    let mut client = node.client().await;
    assert_eq!(client.call("SET orders/42 v NX PX 60000").await, "+OK");
    for line in [
        "SET 50%off v NX PX 60000",
        "SET db1/k v NX PX 60000",
        "DEL a 50%off",
        "HGET ringfence:{50%off} token",
        "WATCH 50%off",
    ] {
        let reply = client.call(line).await;
        assert!(
            reply.starts_with("-ERR ringfence: this cluster uses rules 4") && reply.contains("not done"),
            "{reply}"
        );
    }
    client.call("SELECT 1").await;
    assert!(client.call("GET k").await.starts_with("-ERR ringfence: this cluster uses rules 4"));
    assert_eq!(client.call("PING").await, "+PONG");
}
