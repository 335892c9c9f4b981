//! Wall clocks that jump by hours, differently on each node, affect no decision.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ringfence_harness::{
    Answered, Client, Clocks, Cluster, Consistency, Load, Node, Reply, available, clock_is_off, definite,
    try_once, until,
};
use ringfence_wire::{AcquireRequest, LeaseId, Problem, ProblemKind, Ttl};
use tokio::task::JoinHandle;

use crate::support::{PROGRAM, SOON};

const HOUR_S: i64 = 3_600;
/// The TTL of leases that are not renewed.
const TTL: Duration = Duration::from_secs(4);
/// How often clocks jump back and forth.
const STROBE: Duration = Duration::from_millis(100);

/// A cluster with a separate wall clock per node.
struct Clocked {
    cluster: Cluster,
    clocks: Clocks,
}

impl Clocked {
    /// `None`, after printing why, if the clock library is missing.
    async fn start() -> Option<Self> {
        let clocks = available(Clocks::new(3, false))?;
        let cluster = Cluster::builder(PROGRAM).lay_out().await.unwrap();
        let clocked = Self { cluster, clocks };
        clocked.cluster.nodes().iter().for_each(|node| clocked.start_node(node));
        clocked.cluster.ready().await.unwrap();
        Some(clocked)
    }

    fn start_node(&self, node: &Node) {
        node.start_with(|command| self.clocks.wind(node.id(), command)).unwrap();
        self.clocks.started(node.pid());
    }

    /// Sets how far each clock is off.
    fn throw(&self, offsets_s: [i64; 3]) {
        (1..).zip(offsets_s).for_each(|(id, offset_s)| self.clocks.throw(id, offset_s).unwrap());
    }

    /// Kills the leader, waits until the others grant again, and restarts it.
    async fn fail_over(&self, load: &Load) {
        let leader = self.cluster.leader().await.unwrap();
        leader.kill().unwrap();
        load.more(50).await.unwrap();
        self.start_node(leader);
        self.cluster.ready().await.unwrap();
    }
}

async fn sees(node: &Node, by_s: i64) {
    clock_is_off(node, by_s, SOON).await.unwrap();
}

/// Acquires a lease through each node and does not renew it. The tasks fail if one ends early or late.
async fn take_leases(cluster: &Cluster) -> Vec<JoinHandle<()>> {
    let clients: Vec<Client> = cluster.nodes().iter().map(Node::client).collect();
    let ttl_ms = Ttl::from_ms(TTL.as_millis() as u32).unwrap();
    let taken = join_all(clients.iter().map(|client| async move {
        let (lease, asked) = (LeaseId::random(), Instant::now());
        let request = AcquireRequest { ttl_ms, ..try_once(&format!("left/{lease}")) };
        let reply = definite(SOON, || client.acquire(lease, &request)).await.unwrap();
        assert!(Ok(reply).done().grant().is_some());
        (lease, asked)
    }));
    let ends = |(lease, asked)| tokio::spawn(ends_in_time(clients.clone(), lease, asked));
    taken.await.into_iter().map(ends).collect()
}

/// Waits until a lease ends. Fails if it ends before its ttl, or long after.
async fn ends_in_time(clients: Vec<Client>, lease: LeaseId, asked: Instant) {
    let mut clients = clients.iter().cycle();
    let gone = || {
        let client = clients.next().unwrap();
        async move {
            let seen = client.lease(lease, Consistency::Linearizable).await;
            let ended = |problem: &Problem| problem.kind == ProblemKind::LeaseGone;
            matches!(seen, Ok(Reply::Refused(problem)) if ended(&problem)).then_some(())
        }
    };
    until(SOON, "the lease expires", gone).await.unwrap();
    assert!(asked.elapsed() >= TTL, "it ended after {:?}, not {TTL:?}", asked.elapsed());
}

#[tokio::test]
#[ignore = "slow"]
async fn no_lease_ends_early_or_late_when_wall_clocks_jump_by_hours() {
    let Some(clocks) = Clocked::start().await else { return };
    let cluster = &clocks.cluster;
    let load = Load::start(cluster, "load");
    // In three turns, every node's clock jumps both ways, the leader's included.
    for turn in 0..3 {
        load.more(50).await.unwrap();
        let before = take_leases(cluster).await;
        let mut offsets_s = [2 * HOUR_S, -2 * HOUR_S, 26 * HOUR_S];
        offsets_s.rotate_left(turn);
        clocks.throw(offsets_s);
        let after = take_leases(cluster).await;
        for (node, offset_s) in cluster.nodes().iter().zip(offsets_s) {
            sees(node, offset_s).await;
        }
        for watched in before.into_iter().chain(after) {
            watched.await.unwrap();
        }
        clocks.fail_over(&load).await;
    }
    load.end().await.check(cluster).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn no_lease_ends_early_or_late_when_wall_clocks_jump_back_and_forth() {
    let Some(clocks) = Clocked::start().await else { return };
    let cluster = &clocks.cluster;
    let load = Load::start(cluster, "load");
    let strobes = async {
        let mut ticks = tokio::time::interval(STROBE);
        for hours in [2, -2].into_iter().cycle() {
            ticks.tick().await;
            clocks.throw([hours * HOUR_S, -hours * HOUR_S, (hours - 24) * HOUR_S]);
        }
    };
    let meanwhile = async {
        load.more(50).await.unwrap();
        let before = take_leases(cluster).await;
        for (node, hours) in cluster.nodes().iter().zip([[2, -2], [2, -2], [-22, -26]]) {
            sees(node, hours[0] * HOUR_S).await;
            sees(node, hours[1] * HOUR_S).await;
        }
        clocks.fail_over(&load).await;
        let after = take_leases(cluster).await;
        for watched in before.into_iter().chain(after) {
            watched.await.unwrap();
        }
    };
    tokio::select! {
        () = strobes => {}
        () = meanwhile => {}
    }
    load.end().await.check(cluster).await;
}
