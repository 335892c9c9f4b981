use ringfence_service::Failure;
use ringfence_wire::{EndReason, LeaseId};

use crate::node::{Node, granted, request};

#[tokio::test]
async fn later_grants_carry_larger_tokens() {
    let node = Node::start().await;
    let first = node.hold("a").await;
    node.release(first.lease_id).await;
    let second = node.hold("a").await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
}

#[tokio::test]
async fn the_same_id_with_other_keys_is_a_mismatch() {
    let node = Node::start().await;
    let grant = node.hold("a").await;
    assert_eq!(node.acquire(grant.lease_id, request("b")).await.unwrap_err(), Failure::Mismatch);
}

#[tokio::test]
async fn an_acquire_that_comes_after_its_release_grants_nothing() {
    let node = Node::start().await;
    let id = LeaseId::random();
    node.release(id).await;
    let refused = node.acquire(id, request("a")).await.unwrap_err();
    assert_eq!(refused, Failure::Gone(EndReason::Released));
    node.hold("a").await;
}

#[tokio::test]
async fn only_a_granted_lease_can_be_renewed() {
    let node = Node::start().await;
    node.hold("a").await;
    let waiter = node.queue("a").await.lease_id;
    for (id, expected) in [(waiter, Failure::NotGranted), (LeaseId::random(), Failure::Unknown)] {
        assert_eq!(node.service.renew(&node.caller, id, None).await.unwrap_err(), expected);
    }
}

/// A door answers after the acquire has come to its end, and its client may go away in between.
#[tokio::test]
async fn a_grant_that_nobody_is_told_of_is_abandoned() {
    let node = Node::start().await;
    let told = node.hold("told").await;
    let id = LeaseId::random();
    let attempt =
        node.service.acquire(&node.caller, id, request("untold"), tokio::time::Instant::now(), || ()).await;
    drop(attempt);
    let next = crate::node::waiting("untold", 60_000);
    granted(node.acquire(LeaseId::random(), next).await);
    let ended = node.acquire(id, request("untold")).await.unwrap_err();
    assert_eq!(ended, Failure::Gone(EndReason::Abandoned));
    assert_eq!(granted(node.acquire(told.lease_id, request("told")).await).token, told.token);
}
