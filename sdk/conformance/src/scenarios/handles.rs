//! Handles of leases: left by others, dropped, and left behind by a program that ends.

use anyhow::ensure;
use ringfence_wire::Token;
use serde_json::{Value, json};

use crate::front::act::{Act, Gate};
use crate::front::log::Asked;
use crate::stage::{SOON, STEADY_MS, Stage, refused};

fn entered(stage: &Stage, lease: &str) -> Value {
    json!({"client": "c", "lease": lease, "keys": [stage.key], "ttl_ms": STEADY_MS, "wait_ms": 30_000})
}

/// A handle belongs to whoever has it: frameworks leave blocks on other threads and tasks than they entered them.
pub(crate) async fn left_elsewhere(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    stage.must("enter", entered(stage, "L")).await?;
    stage.must("leave", json!({"lease": "L"})).await?;
    stage.is_free().await?;
    // Also there the loss is told.
    stage.must("enter", entered(stage, "M")).await?;
    let token = stage.holder().await?;
    stage.revoke(token).await?;
    stage.adapter.lost("M", SOON).await?;
    refused(stage.ask("leave", json!({"lease": "M"})).await?, "Lost").map(drop)
}

/// Nobody has the handle any more, so nobody works under the lease.
pub(crate) async fn dropped(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let lease = stage.acquired(json!({"ttl_ms": STEADY_MS})).await?;
    stage.must("drop", json!({"lease": "L"})).await?;
    stage.sees_release(&lease.id).await?;
    stage.is_free().await
}

/// A handle that is dropped without a release is a fault of the program, which has to learn of it.
pub(crate) async fn dropped_is_reported(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    stage.acquired(json!({"lease": "kept", "ttl_ms": STEADY_MS})).await?;
    stage.release("kept").await?;
    stage.must("drop", json!({"lease": "kept"})).await?;
    stage.acquired(json!({"ttl_ms": STEADY_MS})).await?;
    stage.must("drop", json!({"lease": "L"})).await?;
    let report = stage.adapter.leaked(SOON).await?;
    ensure!(report.contains(&stage.key), "the report does not name the key: {report}");
    stage.is_free().await
}

/// A program that ends while it waits leaves no place behind.
pub(crate) async fn ends_in_the_queue(stage: &mut Stage) -> anyhow::Result<()> {
    let rival = stage.rival().await?;
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({"wait_ms": null})).await?;
    stage.waiters(1).await?;
    let id = stage.only_put_id()?;
    ends_with_a_release(stage, &id).await?;
    drop(acquiring);
    stage.rival_leaves(rival).await?;
    stage.is_free().await
}

/// A program that ends before it knows of a grant gives it back.
pub(crate) async fn ends_before_the_grant(stage: &mut Stage) -> anyhow::Result<()> {
    let never = Gate::default();
    let until_never = never.clone();
    stage.play(move |asked| match asked.acquires().is_empty() {
        false => Act::pass().after(&until_never),
        true => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({})).await?;
    stage.holder().await?;
    let id = stage.only_put_id()?;
    ends_with_a_release(stage, &id).await?;
    drop(acquiring);
    stage.is_free().await
}

/// A program that ends during a release has released.
pub(crate) async fn ends_during_a_release(stage: &mut Stage) -> anyhow::Result<()> {
    let lease = stage.holding().await?;
    let mut is_first = true;
    stage.play(move |asked| match !asked.releases().is_empty() && std::mem::take(&mut is_first) {
        true => Act::hang(),
        false => Act::pass(),
    });
    let releasing = stage.adapter.begin("release", &json!({"lease": "L"})).await?;
    let id = lease.id.clone();
    stage.seen("the release is sent", |asked| asked.releases().contains(&&*id)).await?;
    ends_with_a_release(stage, &lease.id).await?;
    drop(releasing);
    stage.is_free().await
}

/// A program whose last act drops a handle has released it.
pub(crate) async fn ends_after_a_drop(stage: &mut Stage) -> anyhow::Result<()> {
    let lease = stage.holding().await?;
    let dropping = stage.adapter.begin("drop", &json!({"lease": "L"})).await?;
    ends_with_a_release(stage, &lease.id).await?;
    drop(dropping);
    stage.is_free().await
}

/// Ends the adapter. What it has not told a node by then nobody will.
async fn ends_with_a_release(stage: &mut Stage, id: &str) -> anyhow::Result<()> {
    stage.ends().await?;
    let is_done = |asked: &Asked| {
        let is_told = asked.told.is_some_and(|(status, _)| status < 300 || status == 410);
        asked.releases().contains(&id) && is_told
    };
    ensure!(!stage.shared.log.of(is_done).is_empty(), "the program has ended, and the lease is not released");
    Ok(())
}

/// A callback that fails keeps nobody from being stopped.
pub(crate) async fn callback_raises(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let block = entered(stage, "L");
    let block = crate::stage::with(block, json!({"body": "until_lost", "on_lost": "raise"}));
    let using = stage.adapter.begin("using", &block).await?;
    let token = stage.holder().await?;
    stage.revoke(token).await?;
    refused(using.answer_within(SOON).await?, "Lost").map(drop)
}

/// A callback that never returns keeps no other lease from being renewed, and no program from ending.
pub(crate) async fn callback_blocks(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let lost = stage.acquired(json!({"ttl_ms": STEADY_MS, "on_lost": "block"})).await?;
    let other = json!({"lease": "M", "keys": [format!("{}/other", stage.key)], "ttl_ms": STEADY_MS});
    let other = stage.acquired(other).await?;
    stage.revoke(Token(lost.token)).await?;
    stage.adapter.lost("L", SOON).await?;
    // What the callback has it keeps.
    stage.resources = None;
    let seen = stage.shared.log.count();
    let after =
        |asked: &Asked| asked.index >= seen && asked.renews().contains(&&*other.id) && asked.was_told(200);
    stage.seen_many(2, "the other lease is renewed", after).await?;
    stage.release("M").await
}

/// Whoever swallows the news of the loss has not worked under a lease to the end.
pub(crate) async fn swallowed(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let block = crate::stage::with(entered(stage, "L"), json!({"body": "swallow"}));
    let using = stage.adapter.begin("using", &block).await?;
    let token = stage.holder().await?;
    stage.revoke(token).await?;
    refused(using.answer_within(SOON).await?, "Lost").map(drop)
}
