use std::time::Duration;

use ringfence_service::{Acquired, Consistency, Failure, LeaseState};
use ringfence_wire::{AcquireRequest, EndReason, LeaseId};
use tokio::time::Instant;

use crate::node::{Node, granted, request, waiting, waits};

/// Whether the lease has a place in a queue, and how many are ahead.
async fn ahead(node: &Node, id: LeaseId) -> Option<u64> {
    match node.service.lease(&node.caller, id, Consistency::Linearizable).await {
        Ok(LeaseState::Waiting(place)) => Some(place.ahead),
        _ => None,
    }
}

#[tokio::test]
async fn a_kept_place_is_found_again_by_the_next_acquire() {
    let node = Node::start().await;
    let holder = node.hold("a").await;
    let id = LeaseId::random();
    let request = AcquireRequest { keep_place: true, ..waiting("a", 100) };
    let began = Instant::now();
    let place = waits(node.acquire(id, request.clone()).await);
    assert!(began.elapsed() >= Duration::from_millis(100), "it waited");
    assert_eq!((place.lease_id, place.ahead), (id, 0));
    let later = node.queue("a").await;

    node.release(holder.lease_id).await;
    assert_eq!(granted(node.acquire(id, request).await).lease_id, id);
    assert_eq!(ahead(&node, later.lease_id).await, Some(0), "who came later comes later");
}

#[tokio::test]
async fn a_place_can_be_taken_without_waiting_at_all() {
    let node = Node::start().await;
    node.hold("a").await;
    assert_eq!((node.queue("a").await.ahead, node.queue("a").await.ahead), (0, 1));
}

#[tokio::test]
async fn a_waiter_that_is_released_learns_that_it_is_gone() {
    let node = Node::start().await;
    node.hold("a").await;
    let id = LeaseId::random();
    let waits = node.acquire_later(id, waiting("a", 60_000));
    node.until_waiters(1).await;
    node.release(id).await;
    assert_eq!(waits.await.unwrap().unwrap_err(), Failure::Gone(EndReason::Released));
}

#[tokio::test]
async fn a_lease_granted_to_a_client_that_has_gone_is_abandoned() {
    let node = Node::start().await;
    let holder = node.hold("a").await;
    let gone = LeaseId::random();
    let waits = node.acquire_later(gone, waiting("a", 60_000));
    node.until_waiters(1).await;
    waits.abort();
    node.release(holder.lease_id).await;
    let next = granted(node.acquire(LeaseId::random(), waiting("a", 60_000)).await);
    let ended = node.service.lease(&node.caller, gone, Consistency::Linearizable).await;
    assert_eq!(ended.unwrap_err(), Failure::Gone(EndReason::Abandoned));
    assert!(next.token.0 > holder.token.0 + 1, "the lost grant had a token too");
}

#[tokio::test]
async fn a_client_that_goes_ends_nothing_once_a_newer_acquire_came() {
    let node = Node::start().await;
    node.hold("a").await;
    let id = LeaseId::random();
    let older = node.acquire_later(id, waiting("a", 3_000));
    node.until_waiters(1).await;
    let newer = node.acquire_later(id, waiting("a", 3_000));
    older.abort();
    // The wait is longer than the 2 s after which the first would have been abandoned.
    assert_eq!(newer.await.unwrap().unwrap_err(), Failure::WaitTimeout);
}

#[tokio::test]
async fn a_place_that_was_answered_outlives_its_request() {
    let node = Node::start().await;
    node.hold("a").await;
    let kept = node.queue("a").await;
    // Longer than the 2 s after which an acquire is abandoned.
    let other = node.acquire(LeaseId::random(), waiting("a", 3_000)).await;
    assert_eq!(other.unwrap_err(), Failure::WaitTimeout);
    assert_eq!(ahead(&node, kept.lease_id).await, Some(0));
}

/// The repeat may be an older request that arrives late. Regression: it removed the lease from the queue.
#[tokio::test]
async fn a_repeat_with_a_shorter_wait_or_none_leaves_the_place() {
    let node = Node::start().await;
    node.hold("a").await;
    let kept = node.queue("a").await.lease_id;
    for wait_ms in [0, 50] {
        assert!(matches!(node.acquire(kept, waiting("a", wait_ms)).await, Ok(Acquired::Waiting(_))));
    }
    assert_eq!(ahead(&node, kept).await, Some(0));
}

/// It would learn late of a grant, or never.
#[tokio::test]
async fn who_keeps_a_place_does_not_wait_at_a_node_that_decides_nothing_and_nobody_begins_to() {
    let node = Node::start().await;
    let holder = node.hold("a").await;
    let id = LeaseId::random();
    let patient = AcquireRequest { keep_place: true, ..waiting("a", 30_000) };
    let waiter = node.acquire_later(id, patient.clone());
    let stays = node.acquire_later(LeaseId::random(), waiting("a", 30_000));
    node.until_waiters(2).await;
    node.blocked.send_replace(true);
    assert_eq!(waits(waiter.await.unwrap()).lease_id, id);
    let before = node.handle.view(|table| table.revision());
    for (request, what) in [(patient.clone(), "a wait"), (request("b"), "a try")] {
        let refused = node.acquire(LeaseId::random(), request).await.unwrap_err();
        assert_eq!((refused.is_certain(), refused), (true, Failure::Blocked), "{what}");
    }
    let (caller, held) = (&node.caller, holder.lease_id);
    assert_eq!(node.service.renew(caller, held, None).await.unwrap_err(), Failure::Blocked);
    assert_eq!(node.service.release(caller, held).await.unwrap_err(), Failure::Blocked);
    let read = node.service.lease(caller, held, Consistency::Linearizable).await;
    assert_eq!(read.unwrap_err(), Failure::Blocked);
    assert!(node.service.lease(caller, held, Consistency::Local).await.is_ok());
    assert_eq!(node.handle.view(|table| table.revision()), before);
    assert!(!stays.is_finished(), "its place is not kept");

    node.blocked.send_replace(false);
    node.release(held).await;
    assert_eq!(granted(node.acquire(id, patient).await).lease_id, id, "it is the first");
}
