//! Interrupts, such as Ctrl-C. The interrupted code learns of it, and leaves no key held and no place in a queue.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::adapter::{Call, interrupted};
use crate::front::act::{Act, Gate};
use crate::front::log::Asked;
use crate::stage::{SOON, STEADY_MS, Stage, with};

/// An interrupted waiter leaves the queue. Its thread can still work.
pub(crate) async fn in_the_queue(stage: &mut Stage) -> anyhow::Result<()> {
    let rival = stage.rival().await?;
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({"wait_ms": null, "interruptible": true})).await?;
    stage.waiters(1).await?;
    is_told(stage, acquiring).await?;
    stage.waiters(0).await?;
    stage.rival_leaves(rival).await?;
    // Only that one request was interrupted.
    stage.acquired(json!({"lease": "next", "interruptible": true})).await?;
    stage.must("release", json!({"lease": "next", "interruptible": true})).await?;
    stage.is_free().await
}

/// A grant that nobody wants any more is given back.
pub(crate) async fn before_the_grant(stage: &mut Stage) -> anyhow::Result<()> {
    let never = Gate::default();
    stage.play(move |asked| match asked.acquires().is_empty() {
        false => Act::pass().after(&never),
        true => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({"interruptible": true})).await?;
    stage.holder().await?;
    let id = stage.only_put_id()?;
    is_told(stage, acquiring).await?;
    stage.sees_release(&id).await?;
    stage.is_free().await
}

/// A block ends with its interrupted body.
pub(crate) async fn in_a_body(stage: &mut Stage) -> anyhow::Result<()> {
    let using = works(stage).await?;
    is_told(stage, using).await?;
    is_released(stage).await
}

/// A second interrupt, while an interrupted body ends, only stops the wait.
pub(crate) async fn twice(stage: &mut Stage) -> anyhow::Result<()> {
    let using = works(stage).await?;
    let seen = releases_hang(stage);
    stage.adapter.interrupt(using.id).await?;
    stage.seen("a release", |asked| asked.index >= seen && !asked.releases().is_empty()).await?;
    is_told(stage, using).await?;
    stage.play(|_| Act::pass());
    is_released(stage).await
}

/// A release is done even if nobody waits for it any more.
pub(crate) async fn in_a_release(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    stage.acquired(json!({"ttl_ms": 600_000})).await?;
    ends(stage, "release", json!({"lease": "L"})).await
}

/// The same is true of the releases of `close`.
pub(crate) async fn in_close(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    stage.acquired(json!({"ttl_ms": 600_000})).await?;
    stage.open.remove("c");
    ends(stage, "close", json!({"client": "c"})).await
}

/// An interrupted leader ends, and another one can lead.
pub(crate) async fn in_lead(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let election = json!({"client": "c", "lease": "L", "key": stage.key, "ttl_ms": STEADY_MS, "body": "raise_after_loss", "interruptible": true});
    let leading = stage.adapter.begin("lead", &election).await?;
    stage.adapter.leads("L", 1, SOON).await?;
    is_told(stage, leading).await?;
    stage.is_free().await
}

/// A block whose body has begun: its client renews the lease.
async fn works(stage: &mut Stage) -> anyhow::Result<Call> {
    stage.open(&[0, 1]).await?;
    let block = json!({"client": "c", "lease": "L", "keys": [stage.key], "ttl_ms": 6_000, "wait_ms": 30_000, "body": "until_lost", "interruptible": true});
    let using = stage.adapter.begin("using", &block).await?;
    stage.seen("a renewal", Asked::is_renewal).await?;
    Ok(using)
}

/// Interrupts a call that waits for a release, which nobody answers.
async fn ends(stage: &mut Stage, op: &str, fields: Value) -> anyhow::Result<()> {
    let seen = releases_hang(stage);
    let ending = stage.adapter.begin(op, &with(fields, json!({"interruptible": true}))).await?;
    stage.seen("a release", |asked| asked.index >= seen && !asked.releases().is_empty()).await?;
    is_told(stage, ending).await?;
    stage.play(|_| Act::pass());
    stage.is_free().await
}

/// The lease was released, and did not just end with its ttl.
async fn is_released(stage: &Stage) -> anyhow::Result<()> {
    stage.sees_release(&stage.only_put_id()?).await?;
    stage.is_free().await
}

/// From now on, no release is answered. Returns how many requests were seen before.
fn releases_hang(stage: &Stage) -> usize {
    stage.play(|asked| match asked.releases().is_empty() {
        false => Act::hang(),
        true => Act::pass(),
    });
    stage.shared.log.count()
}

/// Interrupts the call. It must end, and no part of the library may swallow the interrupt.
async fn is_told(stage: &mut Stage, call: Call) -> anyhow::Result<()> {
    stage.adapter.interrupt(call.id).await?;
    let answer = call.answer_within(SOON).await?;
    ensure!(interrupted(&answer), "the interrupt was swallowed: {answer:?}");
    Ok(())
}
