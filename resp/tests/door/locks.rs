//! Locks over the Redis protocol, and leases over others.

use ringfence_service::Acquired;
use ringfence_wire::{AcquireRequest, Key, LeaseId, Metadata, Mode, Ttl, Wait, WantedKey};
use tokio::time::Instant;

use crate::client::{PATIENCE, line};
use crate::node::Node;

/// An acquire of `key` over another protocol.
pub(crate) fn request(key: &str) -> AcquireRequest {
    AcquireRequest {
        keys: vec![WantedKey { key: Key::new(key).unwrap(), mode: Mode::Exclusive }],
        ttl_ms: Ttl::default(),
        wait_ms: Wait::default(),
        keep_place: false,
        holder: None,
        metadata: Metadata::default(),
    }
}

#[tokio::test]
async fn a_lock_is_held_extended_and_released() {
    let node = Node::start().await;
    let (mut holder, mut other) = (node.client().await, node.client().await);
    assert_eq!(holder.call("SET lock v NX PX 60000").await, "+OK");
    assert_eq!(other.call("SET lock w NX PX 60000").await, "nil");
    assert_eq!(other.call("SET lock v NX PX 60000").await, "nil", "the same value twice");
    assert_eq!(other.call("GET lock").await, "v");
    assert_eq!(other.call("EXISTS lock nothing").await, ":1");
    let left: i64 = holder.call("PTTL lock").await[1..].parse().unwrap();
    assert!((1..=60_000).contains(&left), "{left}");
    assert_eq!(holder.call("PEXPIRE lock 120000").await, ":1");
    let left: i64 = holder.call("PTTL lock").await[1..].parse().unwrap();
    assert!((60_001..=120_000).contains(&left), "{left}");
    assert_eq!(holder.call("DELIFEQ lock w").await, ":0");
    assert_eq!(holder.call("DELIFEQ lock v").await, ":1");
    assert_eq!(holder.call("DEL lock").await, ":0");
    assert_eq!(other.call("SET lock v NX PX 60000").await, "+OK", "the value of a lock that has ended");
}

#[tokio::test]
async fn a_lock_ends_with_its_time_also_if_that_became_shorter() {
    let node = Node::start().await;
    let mut client = node.client().await;
    assert_eq!(client.call("SET lock v NX EX 86400").await, "+OK");
    assert_eq!(client.call("PEXPIRE lock 1").await, ":1");
    let begun = Instant::now();
    while client.call("SET lock w NX PX 60000").await == "nil" {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(client.call("GET lock").await, "w");
}

#[tokio::test]
async fn what_is_held_over_http_cannot_be_taken_or_ended_here() {
    let node = Node::start().await;
    let caller = node.anonymous();
    let acquire = |key| node.service.acquire(&caller, LeaseId::random(), request(key), Instant::now(), || ());
    assert!(matches!(acquire("lock").await.answered().0, Ok(Acquired::Granted { .. })));
    let mut client = node.client().await;
    assert_eq!(client.call("SET lock v NX PX 60000").await, "nil");
    assert_eq!(client.call("GET lock").await, "ringfence:held-by-another");
    assert_eq!(client.call("TYPE lock").await, "+string");
    let left: i64 = client.call("PTTL lock").await[1..].parse().unwrap();
    assert!(left > 0, "{left}");
    for line in ["DEL lock", "PEXPIRE lock 100", "SET lock v XX PX 100", "DEL free lock"] {
        let reply = client.call(line).await;
        assert!(reply.starts_with("-ERR ringfence: the key is held over HTTP"), "{line}: {reply}");
    }
    assert_eq!(client.call("DELIFEQ lock ringfence:held-by-another").await, ":0");
    assert_eq!(client.call("SET other v NX PX 60000").await, "+OK");
    assert!(acquire("other").await.answered().0.is_err(), "a lock holds its key over HTTP, too");
}

/// Whether a program waits for the answer to its last release or not.
#[tokio::test]
async fn a_release_is_done_for_a_client_that_has_hung_up_and_an_acquire_is_not() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for _ in 0..20 {
        let locks = ["a", "b", "c"];
        for lock in locks {
            client.call(&format!("SET {lock} v NX PX 86400000")).await;
        }
        let mut gone = node.client().await;
        // It does not read this answer.
        gone.send(&line("PING")).await;
        let set =
            ["SET other w NX PX 86400000", "RINGFENCE.TOKEN other w", "PEXPIRE other 86400000"].map(line);
        gone.send(&[set.concat(), locks.map(|lock| line(&format!("DEL {lock}"))).concat()].concat()).await;
        drop(gone);
        let begun = Instant::now();
        while client.call("EXISTS a b c other").await != ":0" {
            assert!(begun.elapsed() < PATIENCE);
        }
    }
}
