//! Three nodes that are hurt.

use anyhow::{Context, ensure};
use ringfence_harness::{Answered, Cluster, Consistency};
use ringfence_wire::{Key, Mode};
use serde_json::json;

use crate::front::Front;
use crate::rival::{LONG_MS, take};
use crate::stage::{SOON, Stage, lease, queued};

fn cluster(stage: &Stage) -> anyhow::Result<&Cluster> {
    Ok(&stage.live.as_ref().context("the scenario is not live")?.cluster)
}

/// The URLs of the nodes, that of the leader first.
async fn urls(stage: &Stage) -> anyhow::Result<(u64, Vec<String>)> {
    let cluster = cluster(stage)?;
    let leader = cluster.leader().await?;
    let others = cluster.others(leader.id()).map(ringfence_harness::Node::url);
    Ok((leader.id(), std::iter::once(leader.url()).chain(others).collect()))
}

/// The tokens of the holders of a key, as the nodes that run have it.
async fn holders(stage: &Stage, key: &str) -> anyhow::Result<Vec<u64>> {
    let leader = cluster(stage)?.leader().await?;
    let view = leader.client().patient().key(&Key::new(key)?, Consistency::Linearizable).await.success()?;
    Ok(view.holders.iter().map(|one| one.token.0).collect())
}

/// Neither a lease nor a place in the queue ends with the leader.
pub(crate) async fn leader_killed(stage: &mut Stage) -> anyhow::Result<()> {
    let (leader, urls) = urls(stage).await?;
    let waited_for = format!("{}/waited-for", stage.key);
    let client = cluster(stage)?.node(leader).client();
    let rival = take(&client, &waited_for, Mode::Exclusive, LONG_MS, 0).await?;
    let opened = stage.open_with(json!({"urls": urls})).await?;
    ensure!(opened.is_ok(), "`open` failed: {opened:?}");
    let held = stage.acquired(json!({"ttl_ms": 30_000})).await?;
    let waiting = stage
        .begin_acquire(json!({"lease": "W", "keys": [waited_for], "wait_ms": null, "ttl_ms": 60_000}))
        .await?;
    queued(&client, &waited_for, 1).await?;
    cluster(stage)?.node(leader).kill()?;
    let next = cluster(stage)?.leader().await?.client();
    next.patient().release(rival.id).await.success()?;
    let waited = lease(waiting.answer().await?)?;
    ensure!(
        holders(stage, &waited_for).await? == [waited.token],
        "the waiter's lease is not that of the cluster"
    );
    ensure!(
        holders(stage, &stage.key).await? == [held.token],
        "the cluster does not have the holder's lease"
    );
    let renewed = stage.ask("renew", json!({"lease": "L"})).await?;
    ensure!(renewed.is_ok() && stage.adapter.losses("L").is_empty(), "the lease was lost with the leader");
    stage.release("W").await?;
    stage.release("L").await
}

/// Nodes that were all killed at once know the leases that they had, and the client goes on.
pub(crate) async fn all_killed(stage: &mut Stage) -> anyhow::Result<()> {
    let (_, urls) = urls(stage).await?;
    let opened = stage.open_with(json!({"urls": urls})).await?;
    ensure!(opened.is_ok(), "`open` failed: {opened:?}");
    let held = stage.acquired(json!({"ttl_ms": 120_000})).await?;
    cluster(stage)?.kill_all()?;
    let refused =
        stage.acquire(json!({"lease": "M", "keys": [format!("{}/other", stage.key)], "wait_ms": 0})).await?;
    let kind = refused.err().map(|refusal| refusal.kind).unwrap_or_default();
    ensure!(kind == "Unavailable" || kind == "Unknown", "without a cluster an acquire ends with {kind:?}");
    let renewed = stage.ask("renew", json!({"lease": "L"})).await?;
    let kind = renewed.err().map(|refusal| refusal.kind).unwrap_or_default();
    ensure!(kind == "Unavailable" || kind == "Unknown", "without a cluster a renewal ends with {kind:?}");
    let (state, _) = stage.state("L").await?;
    ensure!(state == "held", "with most of its time left the lease is {state}");
    cluster(stage)?.start_all()?;
    cluster(stage)?.ready().await?;
    ensure!(holders(stage, &stage.key).await? == [held.token], "the cluster has forgotten the lease");
    let within = tokio::time::Instant::now() + SOON;
    while stage.ask("renew", json!({"lease": "L"})).await?.is_err() {
        ensure!(tokio::time::Instant::now() < within, "the client does not find the nodes again");
    }
    ensure!(stage.adapter.losses("L").is_empty(), "the lease was lost");
    stage.release("L").await?;
    ensure!(holders(stage, &stage.key).await?.is_empty(), "the lease is still there");
    Ok(())
}

/// A waiter keeps waiting through an outage, for as long as it was told to, under the same id.
pub(crate) async fn outage(stage: &mut Stage) -> anyhow::Result<()> {
    let client = cluster(stage)?.leader().await?.client();
    let rival = take(&client, &stage.key, Mode::Exclusive, LONG_MS, 0).await?;
    let nodes: Vec<_> = cluster(stage)?.nodes().iter().map(ringfence_harness::Node::http).collect();
    let mut urls = Vec::new();
    for node in nodes {
        let front = Front::start(stage.fronts.len(), node, &stage.shared, None)?;
        urls.push(front.url());
        stage.fronts.push(front);
    }
    let opened = stage.open_with(json!({"urls": urls})).await?;
    ensure!(opened.is_ok(), "`open` failed: {opened:?}");
    let waiting = stage.begin_acquire(json!({"wait_ms": null})).await?;
    // It knows of its place: its next PUT waits for longer.
    stage.seen("a PUT waits", |put| put.is_put() && put.body["wait_ms"].as_u64() > Some(1_000)).await?;
    cluster(stage)?.kill_all()?;
    // The outage lasts until a call that has not waited gives up, and then once more.
    for name in ["M", "N"] {
        let other = json!({"lease": name, "keys": [format!("{}/other", stage.key)], "wait_ms": 0});
        ensure!(stage.acquire(other).await?.is_err(), "a lease was granted without a cluster");
    }
    cluster(stage)?.start_all()?;
    cluster(stage)?.ready().await?;
    cluster(stage)?.leader().await?.client().patient().release(rival.id).await.success()?;
    let granted = lease(waiting.answer().await?)?;
    ensure!(
        holders(stage, &stage.key).await? == [granted.token],
        "the waiter's lease is not that of the cluster"
    );
    stage.release("L").await
}
