//! All nodes killed at once, or stopped one after the other: what was acknowledged is there afterwards.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_harness::{
    Acquired, Answered, Builder, Client, Cluster, Consistency, Reply, definite, try_once, until, wait_for,
};
use ringfence_wire::{EndReason, LeaseId, ProblemKind, Token};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(30);
/// Clients that work at once.
const WORKERS: u64 = 24;
/// Acknowledged grants that each load makes at least before nodes are killed.
const ENOUGH: u64 = 400;

fn cluster() -> Builder {
    Cluster::builder(env!("CARGO_BIN_EXE_ringfence"))
}

/// What the clients of a load know.
#[derive(Default)]
struct Known {
    /// Acknowledged, and never asked to be released.
    held: BTreeMap<LeaseId, (String, Token)>,
    /// Acknowledged as released.
    released: Vec<(LeaseId, String)>,
    /// The largest token that was ever acknowledged.
    largest: Option<Token>,
    grants: u64,
}

#[tokio::test]
async fn all_nodes_killed_at_once_under_load_lose_no_acknowledged_lease() {
    let cluster = cluster().start().await.unwrap();
    let mut all = Known::default();
    for round in 0..3 {
        let known = load(&cluster, round, async { cluster.kill_all().unwrap() }).await;
        all.add(known);
        cluster.start_all().unwrap();
        cluster.ready().await.unwrap();
        all.check(&cluster, round).await;
    }
}

#[tokio::test]
async fn nodes_stopped_in_turn_under_load_lose_no_acknowledged_lease() {
    let cluster = cluster().start().await.unwrap();
    let mut all = Known::default();
    let known = load(&cluster, 0, async {
        for node in cluster.nodes() {
            assert!(node.terminate().await.unwrap().success());
            node.start().unwrap();
            cluster.ready().await.unwrap();
        }
    });
    all.add(known.await);
    all.check(&cluster, 0).await;
}

#[tokio::test]
async fn a_lone_node_that_is_killed_keeps_its_leases_its_queue_and_its_memory() {
    let cluster = cluster().nodes(1).start().await.unwrap();
    let client = cluster.node(1).client();
    let (held, first, second, gone) =
        (LeaseId::random(), LeaseId::random(), LeaseId::random(), LeaseId::random());
    let Acquired::Granted(grant) = client.acquire(held, &try_once("kept")).await.done() else { panic!() };
    client.release(gone).await.done();
    for (count, lease) in [(1, first), (2, second)] {
        let (client, wish) = (client.clone(), wait_for("kept", 60_000));
        tokio::spawn(async move { client.acquire(lease, &wish).await });
        queued(&cluster.node(1).client(), count).await;
    }
    cluster.node(1).restart().unwrap();
    cluster.ready().await.unwrap();
    let repeat = client.acquire(held, &try_once("kept")).await.done();
    assert!(matches!(repeat, Acquired::Standing(repeat) if repeat.token == grant.token));
    let problem = client.acquire(gone, &try_once("other")).await.refused(ProblemKind::LeaseGone);
    assert_eq!(problem.reason, Some(EndReason::Released));
    queued(&client, 2).await;
    client.release(held).await.done();
    let next = client.acquire(first, &wait_for("kept", 60_000)).await.done();
    assert!(matches!(next, Acquired::Standing(next) if next.token > grant.token));
    client.acquire(LeaseId::random(), &try_once("kept")).await.refused(ProblemKind::Held);
}

async fn queued(client: &Client, count: u64) {
    let look = || async { (client.cluster().await.done().waiters == count).then_some(()) };
    until(SOON, format!("{count} wait"), look).await.unwrap();
}

/// Clients acquire and release while `happens`, which begins after some of that. Gives what they know.
async fn load(cluster: &Cluster, round: u64, happens: impl Future<Output = ()>) -> Known {
    let enough = Arc::new(AtomicBool::new(false));
    let (told, mut grants) = tokio::sync::mpsc::unbounded_channel::<()>();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let client = cluster.node(worker % 3 + 1).client();
            let (enough, told) = (Arc::clone(&enough), told.clone());
            tokio::spawn(async move {
                let mut known = Known::default();
                let mut number = 0;
                while !enough.load(Ordering::Relaxed) {
                    let name = format!("load/{round}/{worker}/{number}");
                    known.work(&client, name, number % 2 == 0).await;
                    let _ = told.send(());
                    number += 1;
                }
                known
            })
        })
        .collect();
    for _ in 0..ENOUGH {
        grants.recv().await.unwrap();
    }
    happens.await;
    enough.store(true, Ordering::Relaxed);
    let mut all = Known::default();
    for worker in workers {
        all.add(worker.await.unwrap());
    }
    assert!(all.grants >= ENOUGH / 2, "only {} grants: nothing was tested", all.grants);
    all
}

impl Known {
    /// Acquires, and releases if told so. What is not known is not counted, whichever way it went.
    async fn work(&mut self, client: &Client, name: String, releases: bool) {
        let lease = LeaseId::random();
        let client = client.within(Duration::from_secs(8));
        match client.acquire(lease, &try_once(&name)).await {
            Ok(Reply::Done { body: Acquired::Granted(grant), .. }) => {
                self.largest = self.largest.max(Some(grant.token));
                self.grants += 1;
                if !releases {
                    self.held.insert(lease, (name, grant.token));
                } else if let Ok(Reply::Done { .. }) = client.release(lease).await {
                    self.released.push((lease, name));
                }
            }
            Ok(other) => panic!("{other:?}"),
            // A node that is down refuses at once: there is no use in asking it a thousand times.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }

    fn add(&mut self, other: Self) {
        self.held.extend(other.held);
        self.released.extend(other.released);
        self.largest = self.largest.max(other.largest);
        self.grants += other.grants;
    }

    async fn check(&mut self, cluster: &Cluster, round: u64) {
        let mut found = BTreeMap::new();
        let (client, mut after) = (cluster.node(round % 3 + 1).client(), None);
        loop {
            let page = client.keys("load/", after.as_deref(), Consistency::Linearizable).await.done();
            found.extend(page.keys.into_iter().flat_map(|view| {
                view.holders.into_iter().map(move |holder| (view.key.as_str().to_owned(), holder.token))
            }));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        for (name, token) in self.held.values() {
            assert_eq!(found.get(name), Some(token), "{name} was acknowledged with {token}");
        }
        for (_, name) in &self.released {
            assert_eq!(found.get(name), None, "{name} was released");
        }
        // Its holder sees the same, through any node.
        let some = self.held.iter().step_by(self.held.len() / 100 + 1).enumerate();
        join_all(some.map(|(index, (&lease, (name, token)))| async move {
            let client = cluster.nodes()[index % 3].client();
            let repeat =
                definite(SOON, || async { client.acquire(lease, &try_once(name)).await }).await.unwrap();
            let Reply::Done { status: 200, body: Acquired::Standing(repeat) } = repeat else {
                panic!("{name} was acknowledged with {token}: {repeat:?}");
            };
            assert_eq!(repeat.token, *token);
        }))
        .await;
        for node in cluster.nodes() {
            let (lease, name) = (LeaseId::random(), format!("new/{round}/{}", node.id()));
            let Acquired::Granted(grant) = node.client().acquire(lease, &try_once(&name)).await.done() else {
                panic!("{name} is not granted anew");
            };
            assert!(Some(grant.token) > self.largest, "{} after {:?}", grant.token, self.largest);
            self.largest = Some(grant.token);
        }
    }
}
