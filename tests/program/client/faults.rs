//! Lost responses, nodes that hang, and clusters that are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringfence_client::{Client, Consistency, Error, State, Token};
use ringfence_harness::{Cluster, Injection, may_inject, until};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::lossy_proxy::{LossyProxy, When};
use super::{LONG, SOON, client_of, cluster, is_free, measured, seen};
use crate::support::PROGRAM;

#[tokio::test]
async fn a_grant_whose_answer_was_lost_is_found_by_the_repeat() {
    let (cluster, _) = cluster().await;
    let proxy = LossyProxy::start(cluster.node(1).http(), 1, When::Answered).await;
    let client = Client::connect([proxy.url()]).unwrap();
    let lease = client.lock("a").ttl(LONG).try_acquire().await.unwrap();
    assert_eq!(proxy.left(), 0);
    assert_eq!(measured(&cluster, "ringfence_acquire_total", &["granted"]).await, 1);
    assert!(measured(&cluster, "ringfence_acquire_total", &["standing"]).await >= 1);
    let view = seen(&client, "a", "it is held", |view| view.holders.len() == 1).await;
    assert_eq!(view.holders[0].token, lease.token());
}

/// An abandoned PUT once took the lease over from the PUT that was answered. As its own connection was closed, the lease
/// ended.
#[tokio::test]
async fn a_put_that_arrives_late_does_not_end_the_lease() {
    /// Long enough to notice that a connection closed before its request is done.
    const SLOW: &str = "delay_enter=1000000";
    /// Longer than a node remembers that a connection closed.
    const LATER_MS: u64 = 4_000;
    if !may_inject() {
        return;
    }
    let cluster = Cluster::builder(PROGRAM).nodes(1).start().await.unwrap();
    let client = client_of(&cluster);
    let proxy = LossyProxy::start(cluster.node(1).http(), 1, When::Kept).await;
    let through = Client::connect([proxy.url()]).unwrap();
    let lease = through.lock("a").ttl(LONG).no_renew().acquire().await.unwrap();
    assert_eq!(proxy.left(), 0);
    let slow = Injection::start(cluster.node(1), "fdatasync", SLOW).await.unwrap();
    let log = async || client.cluster().await.unwrap().last_log_index;
    let before = log().await;
    let connections = proxy.deliver().await;
    until(SOON, "the late PUT is in the log", async || (log().await > before).then_some(())).await.unwrap();
    drop(connections);
    until(SOON, "it is applied", async || (slow.count() > 0).then_some(())).await.unwrap();
    drop(slow);
    let left_ms = |view: &ringfence_client::KeyView| view.holders.first().and_then(|h| h.expires_in_ms);
    let now_ms = left_ms(&client.key("a", Consistency::Linearizable).await.unwrap()).unwrap();
    let later = |view: &ringfence_client::KeyView| left_ms(view).is_none_or(|ms| ms + LATER_MS < now_ms);
    let view = seen(&client, "a", "time passes", later).await;
    assert_eq!(view.holders.first().map(|holder| holder.token), Some(lease.token()));
}

#[tokio::test]
async fn a_waiter_whose_connection_broke_keeps_its_place() {
    let (cluster, client) = cluster().await;
    // On a slow machine the client may connect again too late: then try again.
    for round in 0..10 {
        if keeps_its_place(&cluster, &client, &format!("broken/{round}")).await {
            return;
        }
    }
    panic!("the client never connected again in time");
}

/// Breaks the connection of a waiter, which must keep its place. Returns `false` if the client took too long to repeat its
/// request.
async fn keeps_its_place(cluster: &Cluster, client: &Client, key: &str) -> bool {
    let first = client.lock(key).ttl(LONG).acquire().await.unwrap();
    let proxy = LossyProxy::start(cluster.node(1).http(), 1, When::Sent).await;
    let through = Client::connect([proxy.url()]).unwrap();
    let second = tokio::spawn(through.lock(key).holder("second").acquire());
    let is_second = |view: &ringfence_client::KeyView| {
        view.waiters
            .first()
            .is_some_and(|waiter| waiter.holder.as_ref().is_some_and(|h| h.as_str() == "second"))
    };
    seen(client, key, "the second waits", is_second).await;
    let third = tokio::spawn(client.lock(key).holder("third").acquire());
    seen(client, key, "the third waits", |view| view.waiters.len() == 2).await;
    // A waiter whose connection closed is removed after 2 s, unless it returns.
    let long = |view: &ringfence_client::KeyView| {
        view.waiters.len() == 2 && view.waiters.iter().all(|waiter| waiter.waited_ms > 4_000)
    };
    let view = seen(client, key, "both have waited for long", long).await;
    assert_eq!(proxy.left(), 0);
    if proxy.longest_away() > Duration::from_secs(1) {
        second.abort();
        third.abort();
        first.release().await.unwrap();
        return false;
    }
    assert!(is_second(&view), "the second is still first: {view:?}");
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    let token = second.token();
    second.release().await.unwrap();
    assert!(third.await.unwrap().unwrap().token() > token);
    true
}

#[tokio::test]
#[ignore = "slow"]
async fn an_acquire_in_the_queue_waits_through_an_outage() {
    /// Longer than other calls are repeated.
    const AWAY: Duration = Duration::from_secs(9);
    /// The shorter wait: it ends while the cluster is away, long after both acquires were seen in the queue.
    const SHORTER: Duration = Duration::from_secs(15);
    let (cluster, client) = cluster().await;
    let first = client.lock("a").ttl(LONG).no_renew().acquire().await.unwrap();
    let mut second = tokio::spawn(client.lock("a").holder("second").acquire());
    let third = tokio::spawn(client.lock("a").wait(SHORTER).acquire());
    let wait = |view: &ringfence_client::KeyView| view.waiters.len() == 2;
    seen(&client, "a", "both wait", wait).await;
    // Only a PUT that takes this long proves that it was in the queue.
    let long = |view: &ringfence_client::KeyView| view.waiters.iter().all(|waiter| waiter.waited_ms > 5_500);
    seen(&client, "a", "both have waited for long", long).await;
    cluster.kill_all().unwrap();
    timeout(AWAY, &mut second).await.unwrap_err();
    // Only the acquire with the shorter wait has failed.
    let gone = third.await.unwrap().unwrap_err();
    assert!(matches!(gone, Error::Unknown { .. }), "{gone:?}");
    cluster.all_ready().await.unwrap();
    first.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_with_an_unknown_outcome_is_reported_and_released() {
    let (cluster, client) = cluster().await;
    let proxy = LossyProxy::start(cluster.node(1).http(), 1_000, When::Answered).await;
    let client_of_proxy = Client::connect([proxy.url()]).unwrap();
    let unknown = client_of_proxy.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
    assert!(matches!(unknown, Error::Unknown { lease_id: Some(_), .. }), "{unknown:?}");
    // The responses to its release are lost, too, but the node does it.
    is_free(&client, "a").await;
    assert_eq!(measured(&cluster, "ringfence_acquire_total", &["granted"]).await, 1);
}

#[tokio::test]
async fn calls_to_a_missing_cluster_are_certainly_not_done() {
    let client = Client::connect(["http://127.0.0.1:1", "http://127.0.0.1:2"]).unwrap();
    let (acquired, read, removed) =
        tokio::join!(client.lock("a").acquire(), client.cluster(), client.remove_member(1));
    for error in [acquired.unwrap_err(), read.unwrap_err(), removed.unwrap_err()] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_leader_that_hangs_is_avoided() {
    let (cluster, client) = cluster().await;
    let leader = cluster.leader().await.unwrap();
    // The client has learned the leader, and is connected to it.
    client.lock("a").acquire().await.unwrap().release().await.unwrap();
    let held = client.lock("held").ttl(LONG).acquire().await.unwrap();
    leader.stop().unwrap();
    let acquired = async || match client.lock("a").ttl(LONG).try_acquire().await {
        Ok(lease) => Some(lease),
        // The others may take longer than a client retries.
        Err(Error::Unknown { .. } | Error::Unavailable { .. }) => None,
        Err(Error::Held { .. }) => None,
        Err(error) => panic!("{error:?}"),
    };
    let lease = until(SOON, "another node grants", acquired).await.unwrap();
    held.renew().await.unwrap();
    assert_eq!(held.state(), State::Held);
    leader.resume().unwrap();
    lease.release().await.unwrap();
    is_free(&client_of(&cluster), "a").await;
}

#[tokio::test]
async fn concurrent_acquires_share_requests_and_take_turns_even_if_the_leader_is_killed() {
    const TASKS: usize = 100;
    const KEYS: usize = 20;
    const TURNS: usize = 10;
    let (cluster, client) = cluster().await;
    let keys: Arc<[Mutex<Option<Token>>; KEYS]> = Arc::new(std::array::from_fn(|_| Mutex::default()));
    let done = Arc::new(AtomicUsize::new(0));
    let mut tasks: JoinSet<_> = (0..TASKS)
        .map(|task| {
            let (client, keys, done) = (client.clone(), Arc::clone(&keys), Arc::clone(&done));
            async move {
                for _ in 0..TURNS {
                    let key = task % KEYS;
                    let lease = loop {
                        match client.lock(format!("many/{key}")).acquire().await {
                            Ok(lease) => break lease,
                            // On a slow machine an election may take longer than a client retries.
                            Err(Error::Unknown { .. } | Error::Unavailable { .. }) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                    };
                    {
                        let mut last = keys[key].try_lock().expect("it is held by one at a time");
                        assert!(last.replace(lease.token()) < Some(lease.token()), "tokens rise");
                        tokio::task::yield_now().await;
                    }
                    match lease.release().await {
                        // It is repeated in the background.
                        Ok(()) | Err(Error::Unknown { .. }) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
        .collect();
    let half = async || (done.load(Ordering::Relaxed) > TASKS * TURNS / 2).then_some(());
    until(SOON, "half of the turns are done", half).await.unwrap();
    let shared = measured(&cluster, "ringfence_http_requests_total", &["/v1/batch", "200"]).await;
    let alone = measured(&cluster, "ringfence_http_requests_total", &["/v1/leases", "201"]).await;
    assert!(shared > 0 && alone > 0, "{shared} requests for many, {alone} for one");
    cluster.leader().await.unwrap().kill().unwrap();
    while let Some(ended) = timeout(SOON * 2, tasks.join_next()).await.unwrap() {
        ended.unwrap();
    }
    for key in 0..KEYS {
        is_free(&client, &format!("many/{key}")).await;
    }
}
