//! Acquires that wait in the queue.

use std::time::Duration;

use anyhow::{Context, ensure};
use ringfence_wire::Mode;
use serde_json::{Value, json};

use crate::front::act::{Act, Gate, Reply};
use crate::front::log::Asked;
use crate::rival::{LONG_MS, take};
use crate::stage::{Stage, refused};

/// A grant counts from when its request was sent: after a wait that is too long ago to begin.
pub(crate) async fn waited_grant(stage: &mut Stage) -> anyhow::Result<()> {
    const TTL: Duration = Duration::from_secs(8);
    let rival = stage.rival().await?;
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({"ttl_ms": TTL.as_millis() as u64})).await?;
    stage.seen("a PUT waits", |put| put.is_put() && put.body["wait_ms"].as_u64() >= Some(1_000)).await?;
    // It is the age of the request that matters, and ages take time.
    tokio::time::sleep(TTL * 5 / 8).await;
    stage.rival_leaves(rival).await?;
    let lease = crate::stage::lease(acquiring.answer().await?)?;
    let all = stage.shared.log.all();
    let grant = all.iter().find(|put| {
        put.is_put() && put.lease_id() == lease.id && put.told.is_some_and(|(status, _)| status < 202)
    });
    let grant = grant.context("no PUT was granted")?;
    let waited = grant.told.map(|(_, at)| at - grant.at);
    let is_renewed = all.iter().any(|asked| asked.renews().contains(&&*lease.id) && asked.was_told(200));
    ensure!(
        is_renewed || waited < Some(TTL / 2),
        "a lease was handed out after a wait of {waited:?} without a renewal"
    );
    stage.release("L").await
}

/// A wait is cut into requests that keep one place.
pub(crate) async fn wait_sliced(stage: &mut Stage) -> anyhow::Result<()> {
    let rival = stage.rival().await?;
    let mut longer = 0;
    stage.play(move |asked| match asked.is_put() && asked.body["wait_ms"].as_u64() > Some(1_000) {
        // A node that is cut off lets those go whose place is kept.
        true if longer < 2 => {
            longer += 1;
            Act::reply(waiting(asked))
        }
        _ => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({})).await?;
    stage.waiters(1).await?;
    let node = stage.node.own_connections();
    let key = stage.key.clone();
    let behind = tokio::spawn(async move { take(&node, &key, Mode::Exclusive, LONG_MS, 60_000).await });
    stage.waiters(2).await?;
    stage
        .seen_many(3, "the wait goes on", |put| put.is_put() && put.body["wait_ms"].as_u64() > Some(1_000))
        .await?;
    stage.rival_leaves(rival).await?;
    let lease = crate::stage::lease(acquiring.answer().await?)?;
    ensure!(stage.only_put_id()? == lease.id, "another id was asked for than was granted");
    for put in stage.shared.log.of(Asked::is_put) {
        let wait = put.body["wait_ms"].as_u64();
        ensure!(put.body["keep_place"] == true, "a PUT that waits {wait:?} ms does not keep its place");
        ensure!(wait <= Some(30_000), "one PUT waits for {wait:?} ms");
    }
    stage.release("L").await?;
    let next = behind.await.context("the next waiter is gone")??;
    ensure!(next.token.0 > lease.token, "who came later was granted first");
    stage.rival_leaves(next).await?;
    stage.is_free().await
}

/// The place may still stand when nobody answers any more.
pub(crate) async fn place_then_no_leader(stage: &mut Stage) -> anyhow::Result<()> {
    let rival = stage.rival().await?;
    let mut has_place = false;
    stage.play(move |asked| match asked.is_put() && std::mem::replace(&mut has_place, true) {
        true => Act::reply(Reply::problem(503, "unavailable", json!({}))),
        false => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    // Long enough to learn of the place, and short enough for the wait to be over when nobody has answered for 5 s.
    refused(stage.acquire(json!({"wait_ms": 6_000})).await?, "Unknown")?;
    let id = stage.only_put_id()?;
    stage.sees_release(&id).await?;
    stage.waiters(0).await?;
    stage.rival_leaves(rival).await
}

/// A client that gives up leaves the queue.
pub(crate) async fn cancel_while_waiting(stage: &mut Stage) -> anyhow::Result<()> {
    let rival = stage.rival_waits(Mode::Exclusive, 0).await?;
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({"wait_ms": Value::Null})).await?;
    stage.waiters(1).await?;
    stage.must("cancel", json!({"target": acquiring.id})).await?;
    refused(acquiring.answer().await?, "Cancelled")?;
    let id = stage.only_put_id()?;
    stage.sees_release(&id).await?;
    stage.waiters(0).await?;
    stage.rival_leaves(rival).await
}

/// The grant may be on its way.
pub(crate) async fn cancel_racing_grant(stage: &mut Stage) -> anyhow::Result<()> {
    let gate = Gate::default();
    let until_cancelled = gate.clone();
    stage.play(move |asked| match asked.is_put() {
        true => Act::pass().after(&until_cancelled),
        false => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({})).await?;
    stage.holder().await?;
    stage.must("cancel", json!({"target": acquiring.id})).await?;
    gate.open();
    refused(acquiring.answer().await?, "Cancelled")?;
    let id = stage.only_put_id()?;
    stage.sees_release(&id).await?;
    stage.is_free().await
}

fn waiting(asked: &Asked) -> Reply {
    Reply::json(202, &json!({"lease_id": asked.lease_id(), "state": "waiting", "ahead": 0}))
}
