//! The Rust client against a real cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use ringfence_client::{Client, Consistency, Error, LeaseView, State};
use ringfence_harness::Cluster;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(30);

async fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::builder(env!("CARGO_BIN_EXE_ringfence")).start().await.unwrap();
    let client = Client::connect(cluster.nodes().iter().map(|node| node.url())).unwrap();
    (cluster, client)
}

#[tokio::test]
async fn a_key_is_held_by_one_and_handed_over_when_it_is_released() {
    let (_cluster, client) = cluster().await;
    let first = client.lock("accounts/42").holder("first").acquire().await.unwrap();
    assert_eq!(first.state(), State::Held);
    assert_eq!(first.fence("accounts/42"), Some(first.token()));
    let held = client.lock("accounts/42").try_acquire().await.unwrap_err();
    let Error::Held { holders, .. } = held else { panic!("{held:?}") };
    assert_eq!(holders[0].token, first.token());
    let waited = Duration::from_millis(200);
    let timed_out = client.lock("accounts/42").wait(waited).acquire().await.unwrap_err();
    assert_eq!(timed_out, Error::TimedOut { waited });

    let second = tokio::spawn(client.lock("accounts/42").acquire());
    let waits = async || {
        let view = client.key("accounts/42", Consistency::Linearizable).await.unwrap();
        (view.waiters.len() == 1).then_some(())
    };
    ringfence_harness::until(SOON, "the second waits", waits).await.unwrap();
    first.renew().await.unwrap();
    let (token, lease_id) = (first.token(), first.lease_id());
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(second.token() > token);
    assert!(second.remaining() > Duration::from_secs(10));
    assert!(matches!(client.lease(lease_id, Consistency::Linearizable).await, Err(Error::Lost(_))));
    let view = client.lease(second.lease_id(), Consistency::Linearizable).await.unwrap();
    assert!(matches!(view, LeaseView::Granted(grant) if grant.token == second.token()));
    second.release().await.unwrap();
}
