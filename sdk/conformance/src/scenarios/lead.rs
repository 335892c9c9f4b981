//! Elections: work that runs wherever the lease is.

use anyhow::ensure;
use ringfence_wire::{EndReason, Token};
use serde_json::{Value, json};

use crate::front::act::{Act, Reply};
use crate::stage::{SOON, STEADY_MS, Stage, gone, refused};

fn election(stage: &Stage, body: &str) -> Value {
    json!({"client": "c", "lease": body, "key": stage.key, "ttl_ms": STEADY_MS, "body": body})
}

/// The work's end is the end, whether it succeeds or fails while it leads.
pub(crate) async fn ends_with_its_work(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let done = stage.must("lead", election(stage, "return")).await?;
    ensure!(done["terms"] == 1 && done["reported"] == 0, "work that succeeded at once: {done}");
    stage.is_free().await?;
    refused(stage.ask("lead", election(stage, "raise")).await?, "Body")?;
    stage.is_free().await
}

/// When a lease is lost, much fails. That is no reason to leave the race.
pub(crate) async fn goes_on_after_a_loss(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let leading = stage.adapter.begin("lead", &election(stage, "raise_after_loss")).await?;
    let token = stage.adapter.leads("raise_after_loss", 1, SOON).await?;
    stage.revoke(Token(token)).await?;
    let done = leading
        .answer()
        .await?
        .map_err(|refusal| anyhow::anyhow!("the candidate left the race: {}", refusal.whole))?;
    ensure!(done["terms"] == 2 && done["reported"] == 1, "it led again, and reported the error: {done}");
    stage.is_free().await
}

/// A guard that refuses the token is often the first to know.
pub(crate) async fn goes_on_after_stale(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let done = stage.must("lead", election(stage, "raise_stale")).await?;
    ensure!(done["terms"] == 2 && done["reported"] == 1, "it led again, and reported the error: {done}");
    stage.is_free().await
}

/// The end of the block may be the first to hear that the lease is gone.
pub(crate) async fn goes_on_after_a_late_loss(stage: &mut Stage) -> anyhow::Result<()> {
    let mut is_first = true;
    stage.play(move |asked| match asked.is_delete() && std::mem::take(&mut is_first) {
        true => Act::instead(Reply::problem(410, "lease-gone", gone(EndReason::Revoked))),
        false => Act::pass(),
    });
    goes_on_after_stale(stage).await
}
