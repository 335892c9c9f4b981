//! Nodes whose disks and links are slow, but work: that stops no election and no clock.

use std::array;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_disk::MemoryDisk;
use ringfence_lease::{Command, Outcome};
use ringfence_raft::{Handle, Node, NodeId, Random, Settings};
use ringfence_wire::Ttl;
use tokio::time::{Instant, sleep};

use crate::support::network::{Network, Way};
use crate::support::{Cluster, SOON, Stored, acquire, address, grant, lead, one, settings, simulate_with};

/// The pause between two looks: as far as the clock advances at once.
const STEP: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);

/// The disks of three nodes. Each flush takes as long as the cell says when it begins.
struct Disks {
    disks: [MemoryDisk; 3],
    flush: Cell<Duration>,
}

impl Disks {
    fn new() -> Self {
        let disk = |_| MemoryDisk::default().clock(|| Instant::now().into_std());
        Self { disks: array::from_fn(disk), flush: Cell::default() }
    }

    fn of(&self, id: NodeId) -> MemoryDisk {
        self.disks[id as usize - 1].clone()
    }

    /// Advances the paused clock until `test` is done.
    async fn simulate<T>(&self, test: impl Future<Output = T>) -> T {
        let mut finish: [Option<Instant>; 3] = Default::default();
        let flush = || {
            for (disk, finish) in self.disks.iter().zip(&mut finish) {
                if finish.is_none() && disk.begin_flush() {
                    *finish = Some(Instant::now() + self.flush.get());
                }
                if finish.is_some_and(|at| at <= Instant::now()) {
                    disk.finish_flush();
                    *finish = None;
                }
            }
        };
        simulate_with(flush, test).await
    }

    async fn found(&self, network: Network, seed: u64) -> Cluster {
        let provide = |id| (Arc::new(Stored(self.of(id))) as _, Random::seeded(3 * seed + id));
        Cluster::found(3, network, provide).await
    }

    async fn start(&self, cluster: &Cluster, id: NodeId, seed: u64) -> (NodeId, Node) {
        let data = cluster.dir.path().join(id.to_string());
        let given = settings(id, data, cluster.network.port(&address(id)), 3);
        let (storage, random) = (Arc::new(Stored(self.of(id))), Random::seeded(seed));
        (id, Node::start(Settings { storage, random, ..given }).await.unwrap())
    }
}

/// Acquires `key` for so long.
async fn hold(handle: &Handle, lease: u128, key: &str, ttl: Duration) {
    let Command::Acquire(mut acquire) = acquire(lease, key, 0) else { unreachable!() };
    acquire.ttl = Ttl::from_ms(ttl.as_millis().try_into().unwrap()).unwrap();
    assert!(matches!(one(handle, Command::Acquire(acquire)).await, Outcome::Granted(_)));
}

/// Repeats a request until it is done.
async fn done(handle: &Handle, lease: u128, key: &str) {
    let begun = Instant::now();
    while handle.propose(vec![acquire(lease, key, 0)]).await.is_err() {
        assert!(begun.elapsed() < SOON, "nothing is granted");
        sleep(STEP).await;
    }
}

/// No message from or to this node arrives from now on.
fn isolate(cluster: &Cluster, id: NodeId) {
    for other in (1..=3).filter(|other| *other != id) {
        cluster.network.cut(&address(id), &address(other));
        cluster.network.cut(&address(other), &address(id));
    }
}

/// How much time the log says that has passed, of how much has while `test` ran.
async fn passed(handles: &[Handle; 3], test: impl Future<Output = ()>) -> f64 {
    let newest = || handles.iter().map(|handle| handle.status().at_ms).max().unwrap();
    let (begun, before) = (Instant::now(), newest());
    test.await;
    (newest() - before) as f64 / begun.elapsed().as_millis() as f64
}

/// With flushes of 0.4 s, none was ever elected: the answers to votes were not waited for.
#[tokio::test(start_paused = true)]
#[ignore = "slow"]
async fn a_leader_is_elected_and_stays_though_a_flush_takes_a_second_and_a_round_trip_half_a_second() {
    for seed in 0..3 {
        let disks = Disks::new();
        disks.simulate(elected_and_stays(&disks, seed)).await;
    }
}

async fn elected_and_stays(disks: &Disks, seed: u64) {
    let mut cluster = disks.found(Network::new(SECOND / 4), 0).await;
    for node in std::mem::take(&mut cluster.nodes).into_values() {
        node.stop().await;
    }
    disks.flush.set(SECOND * 19 / 20);
    let begun = Instant::now();
    let starts = (1..=3).map(|id| disks.start(&cluster, id, 3 * seed + id));
    cluster.nodes = join_all(starts).await.into_iter().collect();
    let handle = cluster.handle(1);
    done(&handle, 1, "a").await;
    assert!(begun.elapsed() < SOON, "after {:?}", begun.elapsed());

    let term = handle.status().term;
    for lease in 2..12 {
        done(&handle, lease, &lease.to_string()).await;
        sleep(SECOND).await;
    }
    sleep(20 * SECOND).await;
    assert_eq!(handle.status().term, term, "another leader, though none failed");

    let leader = handle.status().leader.unwrap();
    let other = cluster.handle(leader % 3 + 1);
    isolate(&cluster, leader);
    let cut = Instant::now();
    done(&other, 20, "b").await;
    assert!(cut.elapsed() < SOON, "after {:?}", cut.elapsed());
}

/// Each of two once campaigned before it heard the other, in term after term.
#[tokio::test(start_paused = true)]
#[ignore = "slow"]
async fn of_two_that_campaign_at_the_same_time_over_long_links_one_is_elected() {
    for seed in 0..4 {
        let disks = Disks::new();
        let test = async {
            let cluster = disks.found(Network::far(SECOND / 4), seed).await;
            let handle = cluster.handle(1);
            done(&handle, 1, "a").await;
            let (leader, term) = (handle.status().leader.unwrap(), handle.status().term);
            let other = cluster.handle(leader % 3 + 1);
            isolate(&cluster, leader);
            let cut = Instant::now();
            done(&other, 2, "b").await;
            assert_eq!(other.status().term, term + 1, "seed {seed}");
            assert!(cut.elapsed() < 8 * SECOND, "seed {seed}: after {:?}", cut.elapsed());
        };
        disks.simulate(test).await;
    }
}

/// Time once stood still with flushes of 600 ms, while requests went through, and beyond round trips of 100 ms.
#[tokio::test(start_paused = true)]
#[ignore = "slow"]
async fn time_passes_while_disks_and_links_are_slow() {
    for (flush, latency) in [(600, 125), (600, 0), (0, 250)] {
        let disks = Disks::new();
        let test = async {
            let cluster = disks.found(Network::new(Duration::from_millis(latency)), 0).await;
            let handles = [1, 2, 3].map(|id| cluster.handle(id));
            hold(&handles[0], 1, "held", 3_600 * SECOND).await;
            disks.flush.set(Duration::from_millis(flush));
            // Idle at first, then with a write now and then.
            for lease in [0, 100] {
                let test = async {
                    for lease in lease..lease + 20 {
                        if lease > 100 {
                            grant(&handles[lease as usize % 3], lease, &lease.to_string()).await;
                        }
                        sleep(SECOND).await;
                    }
                };
                let passed = passed(&handles, test).await;
                assert!(
                    passed > 0.9,
                    "{passed:.2} of it, with flushes of {flush} ms and {latency} ms one way"
                );
            }
        };
        disks.simulate(test).await;
    }
}

/// A leader starts from the time of the last entry: in an idle cluster time once went back to that with each change.
#[tokio::test(start_paused = true)]
#[ignore = "slow"]
async fn time_passes_while_leaders_change() {
    let disks = Disks::new();
    let test = async {
        let cluster = disks.found(Network::new(Duration::from_millis(10)), 0).await;
        let handles = [1, 2, 3].map(|id| cluster.handle(id));
        hold(&handles[0], 1, "held", 3_600 * SECOND).await;
        let test = async {
            for change in 0..10 {
                lead(&handles[0], change % 3 + 1).await;
                sleep(4 * SECOND).await;
            }
        };
        let passed = passed(&handles, test).await;
        assert!(passed > 0.9, "{passed:.2} of it");
    };
    disks.simulate(test).await;
}

/// Else an outage would end the leases of those who could not renew meanwhile.
#[tokio::test(start_paused = true)]
#[ignore = "slow"]
async fn time_stands_still_while_nothing_is_committed() {
    let disks = Disks::new();
    let test = async {
        let cluster = disks.found(Network::new(Duration::from_millis(10)), 0).await;
        let handles = [1, 2, 3].map(|id| cluster.handle(id));
        lead(&handles[0], 1).await;
        hold(&handles[0], 1, "held", 10 * SECOND).await;
        for (from, to) in [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)] {
            cluster.network.hold(&address(from), &address(to), [3], Way::There);
        }
        sleep(60 * SECOND).await;
        cluster.network.heal();
        let Command::Acquire(waits) = acquire(2, "held", 60_000) else { unreachable!() };
        assert!(
            matches!(one(&handles[0], Command::Acquire(waits)).await, Outcome::Waiting(_)),
            "it has ended"
        );
    };
    disks.simulate(test).await;
}

/// An idle cluster without leases writes nothing.
#[tokio::test(start_paused = true)]
async fn time_is_logged_only_while_something_will_end() {
    let disks = Disks::new();
    let test = async {
        let cluster = disks.found(Network::new(Duration::ZERO), 0).await;
        let handle = cluster.handle(1);
        let written = async || {
            let before = handle.status().last_log_index.unwrap();
            sleep(10 * SECOND).await;
            handle.status().last_log_index.unwrap() - before
        };
        assert_eq!(written().await, 0);
        hold(&handle, 1, "held", 3_600 * SECOND).await;
        sleep(10 * SECOND).await;
        assert!((19..=21).contains(&written().await));
        one(&handle, Command::Release { lease_id: crate::support::id(1) }).await;
        assert_eq!(written().await, 0);
    };
    disks.simulate(test).await;
}
