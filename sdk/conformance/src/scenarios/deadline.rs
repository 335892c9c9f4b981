//! Calls that are bounded as a whole.

use anyhow::ensure;
use serde_json::json;

use crate::front::act::{Act, Gate};
use crate::front::log::Asked;
use crate::stage::{Stage, reason, refused};

/// A call that is over gives back what it may have been granted.
pub(crate) async fn acquire(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    for (op, lease) in [("acquire", "L"), ("try", "M")] {
        let (never, seen) = (Gate::default(), stage.put_ids());
        stage.play(move |asked| match asked.acquires().is_empty() {
            false => Act::pass().after(&never),
            true => Act::pass(),
        });
        let fields = json!({"client": "c", "lease": lease, "keys": [stage.key], "ttl_ms": 600_000, "wait_ms": 30_000, "deadline_ms": 1_500});
        let calling = stage.adapter.begin(op, &fields).await?;
        stage.holder().await?;
        over(&refused(calling.answer().await?, "TimedOut")?, "timeout")?;
        stage.play(|_| Act::pass());
        for id in stage.put_ids().difference(&seen) {
            stage.sees_release(id).await?;
        }
        stage.is_free().await?;
    }
    Ok(())
}

/// `wait` bounds the queue, and `deadline` the call: each says so, and neither leaves a place.
pub(crate) async fn queue(stage: &mut Stage) -> anyhow::Result<()> {
    let rival = stage.rival().await?;
    stage.open(&[0, 1]).await?;
    over(&refused(stage.acquire(json!({"wait_ms": 300})).await?, "TimedOut")?, "wait")?;
    let bounded = json!({"lease": "M", "wait_ms": null, "deadline_ms": 1_500});
    over(&refused(stage.acquire(bounded).await?, "TimedOut")?, "timeout")?;
    stage.waiters(0).await?;
    stage.rival_leaves(rival).await
}

/// Nodes that do not answer hold up nobody for longer than asked. A release goes on in the background.
pub(crate) async fn renew_and_release(stage: &mut Stage) -> anyhow::Result<()> {
    let lease = stage.holding().await?;
    stage.play(|asked| match asked.is_renewal() || !asked.releases().is_empty() {
        true => Act::hang(),
        false => Act::pass(),
    });
    let renewed = stage.ask("renew", json!({"lease": "L", "deadline_ms": 1_000})).await?;
    over(&refused(renewed, "TimedOut")?, "timeout")?;
    let (state, _) = stage.state("L").await?;
    ensure!(state == "held", "a renewal that took too long made the lease {state}");
    let released = stage.ask("release", json!({"lease": "L", "deadline_ms": 1_000})).await?;
    over(&refused(released, "TimedOut")?, "timeout")?;
    let seen = stage.shared.log.count();
    stage.play(|_| Act::pass());
    let again = |asked: &Asked| asked.index >= seen && asked.releases().contains(&&*lease.id);
    stage.seen("the release goes on in the background", again).await?;
    stage.is_free().await
}

fn over(refusal: &crate::adapter::Refusal, wanted: &str) -> anyhow::Result<()> {
    let why = reason(refusal);
    ensure!(why == wanted, "the call was over for the reason {why:?}, not {wanted}");
    Ok(())
}
