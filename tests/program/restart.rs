//! All nodes killed at once, or restarted one after the other: everything acknowledged survives.

use ringfence_harness::{Acquired, Answered, Client, Load, Record, try_once, until, wait_for};
use ringfence_wire::{EndReason, LeaseId, ProblemKind};

use crate::support::{SOON, cluster};

/// The grants of a load before nodes are killed.
const ENOUGH: u64 = 400;

#[tokio::test]
async fn all_nodes_killed_at_once_under_load_lose_no_acknowledged_lease() {
    let cluster = cluster().start().await.unwrap();
    let mut all = Record::default();
    for round in 0..3 {
        let load = Load::start(&cluster, &format!("load/{round}"));
        load.more(ENOUGH).await.unwrap();
        cluster.kill_all().unwrap();
        all.add(load.end().await);
        cluster.all_ready().await.unwrap();
        all.check(&cluster).await;
    }
}

#[tokio::test]
async fn nodes_stopped_in_turn_under_load_lose_no_acknowledged_lease() {
    let cluster = cluster().start().await.unwrap();
    let load = Load::start(&cluster, "load");
    load.more(ENOUGH).await.unwrap();
    for node in cluster.nodes() {
        assert!(node.terminate().await.unwrap().success());
        node.start().unwrap();
        cluster.ready().await.unwrap();
    }
    for node in cluster.nodes() {
        let log = node.log();
        let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
        assert!(errors.is_empty(), "a stop is no error: {errors:?}");
    }
    load.end().await.check(&cluster).await;
}

#[tokio::test]
async fn a_lone_node_that_is_killed_keeps_its_leases_its_queue_and_its_memory() {
    let cluster = cluster().nodes(1).start().await.unwrap();
    let client = cluster.node(1).client().patient();
    let (held, first, second, gone) =
        (LeaseId::random(), LeaseId::random(), LeaseId::random(), LeaseId::random());
    let Acquired::Granted(grant) = client.acquire(held, &try_once("kept")).await.done() else { panic!() };
    client.release(gone).await.done();
    for (count, lease) in [(1, first), (2, second)] {
        let (client, request) = (cluster.node(1).client(), wait_for("kept", 60_000));
        tokio::spawn(async move { client.acquire(lease, &request).await });
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
