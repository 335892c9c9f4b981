//! Nodes in virtual time: tokio's clock is paused and advanced by the test, and the network is in memory.

// Helpers of tests may unwrap as tests do, and have real ids and time unless they simulate them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ringfence_raft::Unanswered;
use support::network::Network;
use support::{Cluster, grant, id, lead, until};
use tokio::task::yield_now;
use tokio::time::{Instant, advance};
use uuid::Uuid;

/// How far the clock advances at once.
const STEP: Duration = Duration::from_millis(5);
/// What a step takes in real time. Disks are real here, and their threads must keep up: one that stands still for a real second
/// does so for five seconds of the simulation.
const REAL_STEP: Duration = Duration::from_millis(1);
const LATENCY: Duration = Duration::from_millis(20);

/// Advances the paused clock until `test` is done.
async fn simulate<T>(test: impl Future<Output = T>) -> T {
    let mut test = pin!(test);
    loop {
        // Enough turns for all tasks to do what they can without waiting.
        for _ in 0..20 {
            tokio::select! {
                biased;
                done = &mut test => return done,
                () = yield_now() => {}
            }
        }
        thread::sleep(REAL_STEP);
        advance(STEP).await;
    }
}

/// 1, 2, 3 …
fn next_id() -> Uuid {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Uuid::from_u128(NEXT.fetch_add(1, Ordering::Relaxed).into())
}

#[tokio::test(start_paused = true)]
async fn a_cluster_replaces_a_leader_that_is_cut_off_and_takes_it_back() {
    let begun = (Instant::now(), std::time::Instant::now());
    simulate(async {
        let cluster = Cluster::found(3, Network::new(LATENCY), next_id).await;
        let (old, new) = (cluster.handle(1), cluster.handle(2));
        // Each data directory draws an id, and then the founder draws that of the cluster.
        assert_eq!(new.cluster_id(), Uuid::from_u128(4));
        lead(&old, 1).await;
        let first = grant(&old, 1, "a").await;

        for other in ["node-2", "node-3"] {
            cluster.network.cut("node-1", other);
            cluster.network.cut(other, "node-1");
        }
        let cut = Instant::now();
        until("another leads", || matches!(new.status().leader, Some(2 | 3))).await;
        assert!(grant(&new, 2, "b").await > first);
        assert_eq!(old.linearize().await, Err(Unanswered::Unavailable));
        assert!(old.view(|table| table.lease(id(2), None).is_err()));
        assert!(cut.elapsed() >= Duration::from_secs(5), "it gave up after {:?}", cut.elapsed());

        cluster.network.heal();
        until("the old leader has caught up", || old.view(|table| table.lease(id(2), None).is_ok())).await;
        assert!(grant(&old, 3, "c").await > first);
        old.linearize().await.unwrap();
    })
    .await;
    assert!(begun.0.elapsed() > begun.1.elapsed(), "the clock was not virtual");
}
