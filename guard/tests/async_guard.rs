//! The in-memory guard for async writes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::convert::Infallible;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;

use futures_util::poll;
use ringfence_guard::{Admission, AsyncGuard, AsyncGuardedKey, Claim, ClaimError, FenceError};
use ringfence_wire::Token;
use tokio::sync::Semaphore;

async fn known(guard: &AsyncGuard, fence: u64) -> Result<AsyncGuardedKey, FenceError<Infallible>> {
    guard.key_or_ask(&"a".parse().unwrap(), |_| ready(Ok(Token(fence)))).await
}

fn exclusive(token: u64) -> Claim {
    Claim::exclusive(Token(token)).unwrap()
}

#[tokio::test]
async fn the_next_holder_waits_for_a_write_whose_caller_gave_up() {
    let guard = AsyncGuard::new(10);
    let key = known(&guard, 1).await.unwrap();
    let (begun, go_on, done) = (Semaphore::new(0), Semaphore::new(0), Semaphore::new(0));
    let steps = Arc::new((begun, go_on, done));
    let of_write = steps.clone();
    let write = async move {
        of_write.0.add_permits(1);
        of_write.1.acquire().await.unwrap().forget();
        of_write.2.add_permits(1);
    };
    tokio::select! {
        written = key.write(exclusive(5), || write) => unreachable!("nothing lets it go on: {written:?}"),
        begun = steps.0.acquire() => begun.unwrap().forget(),
    }
    // The caller is gone.
    let mut touch = pin!(key.touch(exclusive(7)));
    for _ in 0..100 {
        assert!(poll!(&mut touch).is_pending(), "the write may still land");
        tokio::task::yield_now().await;
    }
    steps.1.add_permits(1);
    assert_eq!(touch.await, Admission::Accepted(()));
    assert_eq!(steps.2.available_permits(), 1, "the write ran to its end before that");
    let late = key.write(exclusive(5), || async { panic!("a dead holder writes") }).await;
    assert_eq!(late, Ok(Admission::<()>::Stale { high: Token(7) }));
}

#[tokio::test]
async fn a_write_dropped_before_its_turn_never_begins() {
    let guard = AsyncGuard::new(10);
    let key = Arc::new(known(&guard, 1).await.unwrap());
    let go_on = Arc::new(Semaphore::new(0));
    let (of_write, first) = (go_on.clone(), key.clone());
    let write = async move { of_write.acquire().await.unwrap().forget() };
    let running = tokio::spawn(async move { first.write(exclusive(5), || write).await });
    while tokio::time::timeout(std::time::Duration::from_millis(1), key.high()).await.is_ok() {}
    {
        let mut second = pin!(key.write(exclusive(6), || async { panic!("nobody waits for it") }));
        assert!(poll!(&mut second).is_pending());
    }
    go_on.add_permits(1);
    assert_eq!(running.await.unwrap(), Ok(Admission::Accepted(())));
    assert_eq!(key.high().await, Token(5));
    let panics = tokio::spawn(async move { key.write(exclusive(7), || async { panic!("a test") }).await });
    let panics: Result<Result<Admission, _>, _> = panics.await;
    assert!(panics.unwrap_err().is_panic(), "as the caller's own");
    let key = known(&guard, 1).await.unwrap();
    assert_eq!(key.touch(exclusive(6)).await, Admission::Stale { high: Token(7) });
}

#[tokio::test]
async fn an_answer_that_is_no_fence_makes_no_key_known() {
    let guard = AsyncGuard::new(10);
    for no_fence in [0, 1 << 53, u64::MAX] {
        let out_of_range = ClaimError::OutOfRange { field: "fence", number: no_fence };
        assert_eq!(known(&guard, no_fence).await.unwrap_err(), FenceError::NoFence(out_of_range));
    }
    let unanswered = guard.key_or_ask(&"a".parse().unwrap(), |_| ready(Err("no leader"))).await;
    assert_eq!(unanswered.unwrap_err(), FenceError::Unanswered("no leader"));
    assert_eq!(known(&guard, 5).await.unwrap().high().await, Token(5));
}
