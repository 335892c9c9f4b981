//! Handles that are used on threads of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use futures_util::future::join_all;
use ringfence_lease::{Command, Outcome};
use ringfence_raft::{Asker, Handle, Unanswered};
use tokio::runtime;
use tokio::sync::oneshot;

use crate::support::{Cluster, SOON, acquire, id, one};

/// A runtime on a thread of its own, and what ends it.
fn spawned() -> (runtime::Handle, oneshot::Sender<()>) {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel::<()>();
    thread::spawn(move || {
        let _ = runtime.block_on(ended);
    });
    (handle, end)
}

/// Acquires one lease more than an entry takes, and reads, all in one turn of the runtime that this is run in.
async fn acquire_many(handle: Handle, first: u128) {
    let leases: Vec<u128> = (first..first + 1_001).collect();
    let acquires = join_all(leases.iter().map(|lease| one(&handle, acquire(*lease, &format!("{lease}"), 0))));
    let reads = join_all((0..50).map(|_| handle.linearize()));
    let (outcomes, reads) = tokio::join!(acquires, reads);
    for (lease, outcome) in leases.iter().zip(outcomes) {
        assert!(matches!(outcome, Outcome::Granted(grant) if grant.lease_id == id(*lease)));
    }
    assert!(reads.iter().all(Result::is_ok));
}

#[tokio::test]
async fn each_request_gets_its_own_outcome_on_its_thread() {
    let cluster = Cluster::start(1).await;
    let (threads, _ends): (Vec<_>, Vec<_>) = (0..2).map(|_| spawned()).unzip();
    let handle = cluster.handle(1).on(&threads);
    let on_threads = (threads.iter().zip([1, 10_000]))
        .map(|(thread, first)| thread.spawn(acquire_many(handle.clone(), first)));
    for done in join_all(on_threads).await {
        done.unwrap();
    }
    // On another thread there is no batcher.
    let again = one(&handle, acquire(1, "1", 0)).await;
    assert!(matches!(again, Outcome::Standing(_)));
}

/// Once, all requests that others had sent before were done first.
#[tokio::test]
async fn one_who_asks_for_little_does_not_wait_for_all_that_others_asked_for_before() {
    const MANY: usize = 20_000;
    let cluster = Cluster::start(1).await;
    let (thread, _end) = spawned();
    let handle = cluster.handle(1).on(std::slice::from_ref(&thread));
    let (done, few) = (Arc::new(AtomicUsize::new(0)), handle.clone());
    let seen = Arc::clone(&done);
    let asked = thread.spawn(async move {
        let many = (0..MANY).map(|_| async {
            let outcome =
                handle.propose_of(Asker::of("many"), vec![acquire(1, "many", 0)].into(), &mut false).await;
            assert!(outcome.is_ok());
            done.fetch_add(1, Ordering::Relaxed);
        });
        let few = async {
            let outcome =
                few.propose_of(Asker::of("few"), vec![acquire(2, "few", 0)].into(), &mut false).await;
            assert!(matches!(&outcome.unwrap()[..], [Outcome::Granted(_)]));
            seen.load(Ordering::Relaxed)
        };
        tokio::join!(join_all(many), few).1
    });
    let before = tokio::time::timeout(SOON, asked).await.unwrap().unwrap();
    assert!(before < MANY / 2, "{before}");
}

#[tokio::test]
async fn what_a_stopped_node_is_asked_is_certainly_not_done() {
    let mut cluster = Cluster::start(1).await;
    let (thread, _end) = spawned();
    let handle = cluster.handle(1).on(std::slice::from_ref(&thread));
    thread.spawn(acquire_many(handle.clone(), 1)).await.unwrap();
    cluster.nodes.remove(&1).unwrap().stop().await;
    let asked = thread.spawn(async move {
        let release = Command::Release { lease_id: id(1) };
        tokio::join!(handle.propose(vec![release]), handle.linearize())
    });
    let (proposed, read) = tokio::time::timeout(SOON, asked).await.unwrap().unwrap();
    assert!(matches!(proposed, Err(Unanswered::Unavailable)), "{proposed:?}");
    assert!(matches!(read, Err(Unanswered::Unavailable)), "{read:?}");
}
