use ringfence_service::{Consistency, Failure};
use ringfence_wire::{AcquireRequest, EndReason, Key, LeaseId, Token, Ttl};

use crate::node::{Node, eventually, granted, request, waiting};

/// An acquire, a renewal and a look at an ended lease say how it ended.
async fn is_gone(node: &Node, id: LeaseId, reason: EndReason) {
    let gone = Failure::Gone(reason);
    assert_eq!(node.acquire(id, request("a")).await.unwrap_err(), gone);
    assert_eq!(node.service.renew(&node.caller, id, None).await.unwrap_err(), gone);
    let seen = node.service.lease(&node.caller, id, Consistency::Linearizable).await;
    assert_eq!(seen.unwrap_err(), gone);
}

/// So does a release, also repeated.
async fn is_lost(node: &Node, id: LeaseId, reason: EndReason) {
    is_gone(node, id, reason).await;
    for _ in 0..2 {
        let released = node.service.release(&node.caller, id).await;
        assert_eq!(released.unwrap_err(), Failure::Gone(reason));
    }
}

#[tokio::test]
async fn a_released_lease_is_gone() {
    let node = Node::start().await;
    let grant = node.hold("a").await;
    node.release(grant.lease_id).await;
    node.release(grant.lease_id).await;
    is_gone(&node, grant.lease_id, EndReason::Released).await;
}

#[tokio::test]
async fn an_expired_lease_is_gone() {
    let node = Node::start().await;
    let request = AcquireRequest { ttl_ms: Ttl::from_ms(100).unwrap(), ..request("a") };
    let grant = granted(node.acquire(LeaseId::random(), request).await);
    eventually("it expires", || node.handle.view(|table| table.live()) == 0).await;
    is_lost(&node, grant.lease_id, EndReason::Expired).await;
}

#[tokio::test]
async fn a_token_is_revoked_only_on_a_key_that_it_holds() {
    let node = Node::start().await;
    let grant = node.hold("a").await;
    for (key, token) in [("b", grant.token), ("a", Token(grant.token.0 + 1))] {
        let revoked = node.service.revoke(&node.caller, Key::new(key).unwrap(), token).await;
        assert_eq!(revoked.unwrap_err(), Failure::NotLive);
    }
    node.service.renew(&node.caller, grant.lease_id, None).await.unwrap();
}

#[tokio::test]
async fn an_abandoned_lease_is_gone() {
    let node = Node::start().await;
    node.hold("a").await;
    let id = LeaseId::random();
    let waits = node.acquire_later(id, waiting("a", 60_000));
    node.until_waiters(1).await;
    waits.abort();
    node.until_waiters(0).await;
    is_lost(&node, id, EndReason::Abandoned).await;
}
