//! What requests leave behind that are dropped before they are answered.

use futures_util::FutureExt;
use ringfence_lease::Value;
use ringfence_service::{Keys, Transaction};
use ringfence_wire::{Key, LeaseId, Ttl};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::node::{Node, eventually, granted, request, waiting};

/// On the thread of the test, no other task begins or ends between two looks without a pause.
fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Drops an acquire of `key` that has no outcome yet. Returns how many tasks it leaves.
fn left_by(node: &Node, key: &str) -> usize {
    left_by_call(node.service.acquire(&node.caller, LeaseId::random(), request(key), Instant::now(), || ()))
}

/// The same of a transaction that sets `key`.
fn left_by_transaction(node: &Node, key: &str) -> usize {
    let key = Key::new(key).unwrap();
    let mut set = |keys: &mut Transaction| {
        keys.acquire(&key, Value::new(b"mine").unwrap(), Ttl::default()).unwrap();
        Ok(())
    };
    let (mut visit, keys) = (node.visit(), Keys::new(vec![key.clone()]).unwrap());
    left_by_call(node.service.transact(&mut visit, &keys, None, &mut set))
}

fn left_by_call<T>(call: impl Future<Output = T>) -> usize {
    let before = tasks();
    let mut call = Box::pin(call);
    assert!((&mut call).now_or_never().is_none(), "it has no outcome yet");
    drop(call);
    tasks() - before
}

#[tokio::test]
async fn a_request_that_is_dropped_while_it_is_proposed_or_forwarded_leaves_one_task() {
    let nodes = Node::start_two().await;
    let leads = |node: &&Node| {
        let status = node.handle.status();
        status.leader == Some(status.node_id)
    };
    for node in &nodes {
        // It connects to the leader.
        node.hold(if leads(&node) { "here" } else { "there" }).await;
        for (left_by, kind) in [(left_by as fn(&_, &_) -> _, "acquire"), (left_by_transaction, "set")] {
            // The copy of a follower may be old, so it is a key that nobody had.
            let key = format!("{kind}/{}", leads(&node));
            assert_eq!(left_by(node, &key), 1, "{key}");
            granted(node.acquire(LeaseId::random(), waiting(&key, 60_000)).await);
        }
    }
}

/// Regression: a node that had lost its leader tried for seconds to take back what it had never proposed, for each connection that closed.
#[tokio::test]
async fn an_acquire_that_is_dropped_without_a_leader_leaves_nothing() {
    let [node, other] = Node::start_two().await;
    other.stop().await;
    eventually("there is no leader", || node.handle.status().leader.is_none()).await;
    assert_eq!(left_by(&node, "a"), 0);
}

#[tokio::test]
async fn an_answered_acquire_leaves_nothing() {
    let node = Node::start().await;
    let before = tasks();
    node.hold("a").await;
    assert_eq!(tasks(), before);
}
