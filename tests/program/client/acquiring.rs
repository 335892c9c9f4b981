//! Acquiring and releasing: alone, in turn and shared.

use std::time::Duration;

use ringfence_client::wire::{EndReason, Mode, WantedKey};
use ringfence_client::{Consistency, Error, Key, LeaseView, Loss, State};
use ringfence_harness::key;

use super::{LONG, SOON, cluster, is_free, measured, seen};

#[tokio::test]
async fn a_key_is_held_by_one_and_handed_over_when_it_is_released() {
    let (_cluster, client) = cluster().await;
    let first = client.lock("accounts/42").holder("first").metadata("at", "home").acquire().await.unwrap();
    assert_eq!(first.state(), State::Held);
    assert_eq!(first.fence("accounts/42"), Some(first.token()));
    assert_eq!(first.fence("accounts/43"), None);
    let held = client.lock("accounts/42").try_acquire().await.unwrap_err();
    let Error::Held { holders, .. } = held else { panic!("{held:?}") };
    assert_eq!(holders[0].token, first.token());
    let waited = Duration::from_millis(200);
    let timed_out = client.lock("accounts/42").wait(waited).acquire().await.unwrap_err();
    assert_eq!(timed_out, Error::TimedOut { waited });

    let second = tokio::spawn(client.lock("accounts/42").acquire());
    let view = seen(&client, "accounts/42", "the second waits", |view| view.waiters.len() == 1).await;
    assert_eq!(view.holders[0].metadata.entries()["at"], "home");
    first.renew().await.unwrap();
    let (token, lease_id) = (first.token(), first.lease_id());
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(second.token() > token);
    let gone = client.lease(lease_id, Consistency::Linearizable).await;
    assert_eq!(gone.unwrap_err(), Error::Lost(Loss::Ended(ringfence_client::wire::EndReason::Released)));
    let view = client.lease(second.lease_id(), Consistency::Linearizable).await.unwrap();
    assert!(matches!(view, LeaseView::Granted(grant) if grant.token == second.token()));
    second.release().await.unwrap();
}

#[tokio::test]
#[ignore = "slow"]
async fn a_lease_that_waited_longer_than_its_ttl_has_its_full_ttl_when_granted() {
    let (_cluster, client) = cluster().await;
    let first = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let ttl = Duration::from_secs(8);
    let second = tokio::spawn(client.lock("a").ttl(ttl).no_renew().acquire());
    let long = |view: &ringfence_client::KeyView| {
        view.waiters.first().is_some_and(|waiter| u128::from(waiter.waited_ms) > ttl.as_millis())
    };
    seen(&client, "a", "the second has waited for longer than its TTL", long).await;
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert_eq!(second.state(), State::Held);
}

#[tokio::test]
async fn several_keys_are_granted_in_one_step_each_in_its_mode() {
    let (_cluster, client) = cluster().await;
    let read = WantedKey { key: Key::new("config").unwrap(), mode: Mode::Shared { limit: None } };
    let one = client.lock("a").and("b").and_wanted(read.clone()).acquire().await.unwrap();
    let two = client.lock_all(["c", "d"]).and_wanted(read).try_acquire().await.unwrap();
    assert_eq!(two.fence("config"), Some(one.token()), "the older reader is not fenced");
    assert_eq!(two.fence("d"), Some(two.token()));
    let held = client.lock("z").and("b").try_acquire().await.unwrap_err();
    assert!(matches!(held, Error::Held { holders, .. } if holders[0].key.as_str() == "b"));
    is_free(&client, "z").await;
    assert_eq!(one.keys().iter().map(Key::as_str).collect::<Vec<_>>(), ["a", "b", "config"]);
}

#[tokio::test]
async fn a_semaphore_admits_as_many_as_its_limit() {
    let (_cluster, client) = cluster().await;
    let seat = || client.lock("seats").limit(2);
    let one = seat().acquire().await.unwrap();
    let _two = seat().try_acquire().await.unwrap();
    assert!(matches!(seat().try_acquire().await, Err(Error::Held { .. })));
    assert!(matches!(client.lock("seats").try_acquire().await, Err(Error::Held { .. })));
    one.release().await.unwrap();
    let _three = seat().try_acquire().await.unwrap();
}

#[tokio::test]
async fn a_dropped_acquire_leaves_the_queue() {
    let (cluster, client) = cluster().await;
    let _held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").acquire());
    seen(&client, "a", "somebody waits", |view| view.waiters.len() == 1).await;
    assert_eq!(measured(&cluster, "ringfence_release_total", &[]).await, 0);
    waiting.abort();
    seen(&client, "a", "nobody waits", |view| view.waiters.is_empty()).await;
    let released = async || (measured(&cluster, "ringfence_release_total", &[]).await == 1).then_some(());
    ringfence_harness::until(SOON, "the abandoned wait was released", released).await.unwrap();
}

#[tokio::test]
async fn a_dropped_lease_is_released_but_not_one_turned_into_its_id() {
    let (_cluster, client) = cluster().await;
    let dropped = client.lock("dropped").ttl(LONG).acquire().await.unwrap();
    let left = client.lock("left").ttl(LONG).acquire().await.unwrap();
    let token = left.token();
    drop(dropped);
    let left = left.into_id();
    is_free(&client, "dropped").await;
    let view = client.key("left", Consistency::Linearizable).await.unwrap();
    assert_eq!(view.holders[0].token, token);
    assert_eq!(client.renew(left, Some(Duration::from_secs(60))).await.unwrap().ttl_ms, 60_000);
    // As another process would.
    let adopted = client.adopt(left).await.unwrap();
    assert_eq!((adopted.token(), adopted.keys(), adopted.grant().ttl_ms), (token, vec![key("left")], 60_000));
    assert!(adopted.remaining() > Duration::from_secs(50));
    drop(adopted);
    is_free(&client, "left").await;
    assert!(matches!(client.adopt(left).await, Err(Error::Lost(Loss::Ended(EndReason::Released)))));
}

#[tokio::test]
async fn invalid_requests_are_not_sent() {
    let client = ringfence_client::Client::connect(["http://127.0.0.1:1"]).unwrap();
    let field = |error: Error| match error {
        Error::Invalid(error) => error.field.unwrap(),
        other => panic!("{other:?}"),
    };
    let lock = || client.lock("a");
    for (lock, wrong) in [
        (lock().and("b//c"), "keys[1]"),
        (lock().and("a"), "keys[1]"),
        (lock().ttl(Duration::from_millis(99)), "ttl"),
        (lock().ttl(Duration::from_secs(86_401)), "ttl"),
        (lock().hold_at_least(Duration::from_secs(86_401)), "hold_at_least"),
        (lock().max_hold(LONG / 2).hold_at_least(LONG), "hold_at_least"),
        (lock().limit(0), "limit"),
        (lock().holder("x".repeat(257)), "holder"),
        (lock().metadata("a", "x".repeat(4_096)), "metadata"),
        (client.lock_all::<&str>([]), "keys"),
    ] {
        assert_eq!(field(lock.acquire().await.unwrap_err()), wrong);
    }
    assert_eq!(field(client.key("", Consistency::Local).await.unwrap_err()), "key");
    assert_eq!(field(client.add_member(0, "h:1").await.unwrap_err()), "id");
}
