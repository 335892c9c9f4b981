//! Renewing leases, and noticing that they are lost.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use ringfence_client::wire::EndReason;
use ringfence_client::{Consistency, Error, Lease, Loss, State};
use ringfence_harness::until;
use tokio::time::timeout;

use super::{LONG, SOON, client_of, cluster, is_free, measured};

/// The number of concurrent leases.
const MANY: usize = 500;

/// Waits until the remaining time has grown from one look to the next. Calls `look` each time.
async fn renewed(lease: &Lease, look: impl Fn()) {
    let last = Mutex::new(lease.remaining());
    let grown = async || {
        look();
        let now = lease.remaining();
        (now > std::mem::replace(&mut *last.lock().unwrap(), now)).then_some(())
    };
    until(SOON, "the lease is renewed", grown).await.unwrap();
}

#[tokio::test]
#[ignore = "slow"]
async fn many_leases_are_renewed_by_few_calls() {
    let (cluster, client) = cluster().await;
    let ttl = Duration::from_secs(9);
    let mut leases = Vec::new();
    for tens in 0..MANY / 50 {
        let some = (0..50).map(|one| client.lock(format!("many/{tens}/{one}")).ttl(ttl).acquire());
        leases.extend(try_join_all(some).await.unwrap());
    }
    let renewed = async || {
        let renewed = measured(&cluster, "ringfence_renew_total", &["renewed"]).await;
        (renewed >= 3 * MANY as u64).then_some(renewed)
    };
    let renewed = until(SOON, "every lease was renewed three times", renewed).await.unwrap();
    assert!(leases.iter().all(|lease| !matches!(lease.state(), State::Lost(_))));
    let calls = measured(&cluster, "ringfence_http_requests_total", &["route=\"/v1/renew\""]).await;
    let single = measured(&cluster, "ringfence_http_requests_total", &["/v1/leases/{lease_id}/renew"]).await;
    eprintln!("{renewed} renewals by {calls} calls");
    assert!(calls > 0 && calls * 20 <= renewed, "{renewed} renewals took {calls} calls");
    assert_eq!(single, 0);
}

#[tokio::test]
#[ignore = "slow"]
async fn a_lease_outlives_the_leader() {
    let (cluster, client) = cluster().await;
    let ttl = Duration::from_secs(30);
    let lease = client.lock("a").ttl(ttl).acquire().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    leader.kill().unwrap();
    let states = Mutex::new(Vec::new());
    renewed(&lease, || states.lock().unwrap().push(lease.state())).await;
    let view = client.key("a", Consistency::Linearizable).await.unwrap();
    assert_eq!(view.holders[0].token, lease.token());
    let states = states.into_inner().unwrap();
    assert!(states.iter().all(|state| *state == State::Held), "{states:?}");
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "slow"]
async fn work_ends_before_an_unconfirmed_lease_can_and_the_lease_stays_lost() {
    let (cluster, client) = cluster().await;
    let ttl = Duration::from_secs(15);
    let lease = client.lock("a").ttl(ttl).acquire().await.unwrap();
    cluster.nodes().iter().for_each(|node| node.stop().unwrap());
    for node in cluster.nodes() {
        node.stands_still().await.unwrap();
    }
    // From now on the cluster confirms nothing that was not sent before.
    let latest_end = Instant::now() + ttl;
    let last_step = Arc::new(Mutex::new(Instant::now()));
    let (steps, mut states) = (Arc::clone(&last_step), vec![lease.state()]);
    let told = tokio::spawn(lease.states().collect::<Vec<_>>());
    let work = async {
        loop {
            *steps.lock().unwrap() = Instant::now();
            let state = lease.state();
            if states.last() != Some(&state) {
                states.push(state);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ran: Result<(), Error> = timeout(SOON, lease.run(work)).await.unwrap();
    assert_eq!(ran, Err(Error::Lost(Loss::Unconfirmed)));
    assert!(*last_step.lock().unwrap() < latest_end, "no work after the lease may have ended");
    assert_eq!(states, [State::Held, State::Unknown], "as the work saw it");
    assert_eq!(lease.lost().await, Loss::Unconfirmed);
    let all = [State::Held, State::Unknown, State::Lost(Loss::Unconfirmed)];
    assert_eq!(timeout(SOON, told).await.unwrap().unwrap(), all);

    // The cluster's clock stood still, too: it still has the lease, but the holder has given it up.
    cluster.nodes().iter().for_each(|node| node.resume().unwrap());
    let renewed = client.renew(lease.lease_id(), None);
    let _ = renewed.await;
    assert_eq!(lease.state(), State::Lost(Loss::Unconfirmed));
    assert_eq!(lease.renew().await, Err(Error::Lost(Loss::Unconfirmed)));
    drop(lease);
    is_free(&client, "a").await;
}

#[tokio::test]
async fn work_that_blocked_until_its_lease_was_lost_has_not_succeeded() {
    let (_cluster, client) = cluster().await;
    let lease = client.lock("a").max_hold(Duration::from_millis(500)).acquire().await.unwrap();
    let block = async {
        while lease.state() == State::Held {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    assert_eq!(lease.run(block).await, Err(Error::Lost(Loss::MaxHold)));
}

#[tokio::test]
async fn a_lease_is_lost_when_an_operator_revokes_it() {
    let (_cluster, client) = cluster().await;
    let lease = client.lock("a").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    client.revoke("a", lease.token()).await.unwrap();
    let lost = timeout(SOON, lease.lost()).await.unwrap();
    assert_eq!(lost, Loss::Ended(EndReason::Revoked));
    assert_eq!(lease.run(async {}).await, Err(Error::Lost(lost)));
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert_eq!(lease.release().await, Err(Error::Lost(lost)));
}

#[tokio::test]
async fn a_lease_is_lost_at_its_max_hold() {
    let (_cluster, client) = cluster().await;
    let max_hold = Duration::from_secs(5);
    let lock = client.lock("a").ttl(LONG).max_hold(max_hold);
    let begun = Instant::now();
    let lease = lock.acquire().await.unwrap();
    assert_eq!(lease.state(), State::Held);
    let ran: Result<(), Error> = timeout(SOON, lease.run(std::future::pending())).await.unwrap();
    assert!(begun.elapsed() >= max_hold);
    assert_eq!(ran, Err(Error::Lost(Loss::MaxHold)));
    assert_eq!(lease.release().await, Err(Error::Lost(Loss::MaxHold)));
    is_free(&client, "a").await;
}

#[tokio::test]
#[ignore = "slow"]
async fn a_lease_ends_by_itself_unless_it_is_renewed() {
    let (_cluster, client) = cluster().await;
    let ttl = Duration::from_secs(5);
    let left = client.lock("left").ttl(ttl).no_renew().acquire().await.unwrap();
    let kept = client.lock("kept").ttl(Duration::from_secs(12)).acquire().await.unwrap();
    let (left_id, kept_id) = (left.lease_id(), kept.lease_id());
    assert_eq!(left.lost().await, Loss::Unconfirmed);
    // Not released.
    left.into_id();
    let ended = async || match client.lease(left_id, Consistency::Linearizable).await {
        Err(Error::Lost(loss)) => Some(loss),
        _ => None,
    };
    assert_eq!(until(SOON, "it has ended", ended).await.unwrap(), Loss::Ended(EndReason::Expired));
    renewed(&kept, || ()).await;
    client.lease(kept_id, Consistency::Linearizable).await.unwrap();
    assert_eq!(kept.run(async { 7 }).await, Ok(7));
    let lost = kept.lost();
    kept.release().await.unwrap();
    assert_eq!(
        lost.await,
        Loss::Ended(EndReason::Released),
        "those who wait for the loss learn of the release"
    );
}

#[test]
fn the_client_outlives_a_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outer = runtime();
    let (cluster, client) = outer.block_on(cluster());
    let first = runtime();
    let one = first.block_on(client.lock("one").ttl(Duration::from_secs(9)).acquire()).unwrap();
    drop(first);
    outer.block_on(async {
        // The renewal task ended with its runtime. The next lease starts another, for both.
        let two = client.lock("two").ttl(Duration::from_secs(9)).acquire().await.unwrap();
        tokio::join!(renewed(&one, || ()), renewed(&two, || ()));
        drop(cluster);
    });
}

/// As a job that ran on one machine must not run again on another whose clock is slow.
#[test]
#[ignore = "slow"]
fn a_lease_that_is_held_at_least_for_a_time_lasts_after_its_program_has_ended() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outer = runtime();
    let (cluster, other) = outer.block_on(cluster());
    let least = Duration::from_secs(4);
    for is_dropped in [false, true] {
        let begun = Instant::now();
        let key = format!("job/{is_dropped}");
        let inner = runtime();
        let token = inner.block_on(async {
            let client = client_of(&cluster);
            let lock = client.lock(&key).ttl(Duration::from_secs(1)).hold_at_least(least);
            let lease = lock.acquire().await.unwrap();
            let token = lease.token();
            if is_dropped {
                drop(lease);
                assert_eq!(client.close(SOON).await, 0);
            } else {
                lease.release().await.unwrap();
            }
            token
        });
        drop(inner);
        outer.block_on(async {
            let next = timeout(SOON, other.lock(&key).acquire()).await.unwrap().unwrap();
            assert!(begun.elapsed() >= least && next.token() > token, "{is_dropped}");
        });
    }
}
