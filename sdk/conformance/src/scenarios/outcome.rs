//! What a response means, and what no response means.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;

use crate::front::act::{Act, Reply};
use crate::stage::{Stage, refused};

/// Nothing was sent: nothing was done.
pub(crate) async fn refused_connection(stage: &mut Stage) -> anyhow::Result<()> {
    stage.fronts[0].refuse().await;
    stage.fronts[1].refuse().await;
    stage.open(&[0, 1]).await?;
    refused(stage.acquire(json!({})).await?, "Unavailable")?;
    stage.fronts[0].accept()?;
    stage.fronts[1].accept()?;
    // The client is of use again, and what comes first is no release of what was never asked for.
    stage.acquired(json!({})).await?;
    let first = &stage.shared.log.all()[0];
    ensure!(
        first.is_put(),
        "{} {} was sent for an acquire that was certainly not done",
        first.method,
        first.path
    );
    stage.release("L").await
}

/// A node that finds no leader has done nothing, and another may.
pub(crate) async fn unavailable_then_grant(stage: &mut Stage) -> anyhow::Result<()> {
    let mut is_first = true;
    stage.play(move |asked| match asked.is_put() && std::mem::take(&mut is_first) {
        true => Act::reply(Reply::problem(503, "unavailable", json!({}))),
        false => Act::pass(),
    });
    let lease = stage.holding().await?;
    let puts = stage.shared.log.of(|asked| asked.is_put());
    ensure!(puts[0].front != puts[1].front, "the node that found no leader was asked again at once");
    stage.is_held_by(lease.token).await?;
    stage.release("L").await
}

/// That a repeat was not done says nothing of the first attempt.
pub(crate) async fn indeterminate_is_sticky(stage: &mut Stage) -> anyhow::Result<()> {
    let mut is_first = true;
    stage.play(move |asked| match (asked.is_put(), asked.is_put() && std::mem::take(&mut is_first)) {
        (true, true) => Act::instead(Reply::problem(504, "indeterminate", json!({}))),
        (true, false) => Act::reply(Reply::problem(503, "unavailable", json!({}))),
        _ => Act::pass(),
    });
    is_unknown_and_deleted(stage).await
}

/// A proxy's error may come after the node has done it.
pub(crate) async fn proxy_502(stage: &mut Stage) -> anyhow::Result<()> {
    stage.play(|asked| match asked.is_put() {
        true => Act::instead(Reply::html(502)),
        false => Act::pass(),
    });
    is_unknown_and_deleted(stage).await
}

/// A response that was cut is none.
pub(crate) async fn half_answer(stage: &mut Stage) -> anyhow::Result<()> {
    stage.play(|asked| match asked.is_put() {
        true => Act::half(),
        false => Act::pass(),
    });
    is_unknown_and_deleted(stage).await
}

/// So is a page that some portal serves.
pub(crate) async fn html_200(stage: &mut Stage) -> anyhow::Result<()> {
    stage.play(|asked| match asked.is_put() {
        true => Act::instead(Reply::html(200)),
        false => Act::pass(),
    });
    is_unknown_and_deleted(stage).await
}

/// The lease was granted each time, and must not stay.
async fn is_unknown_and_deleted(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let unknown = refused(stage.acquire(json!({})).await?, "Unknown")?;
    let id = stage.only_put_id()?;
    let told = unknown.whole["lease_id"].as_str();
    ensure!(told == Some(&*id), "the error names the lease {told:?}, and not {id}");
    stage.sees_release(&id).await?;
    stage.is_free().await
}

/// A response may not lead anywhere.
pub(crate) async fn redirect(stage: &mut Stage) -> anyhow::Result<()> {
    let elsewhere = stage.fronts[2].url();
    let mut is_first = true;
    stage.play(move |asked| match asked.is_put() && std::mem::take(&mut is_first) {
        true => Act::reply(Reply::html(307).with("location", format!("{elsewhere}{}", asked.path))),
        false => Act::pass(),
    });
    let lease = stage.holding().await?;
    ensure!(stage.only_put_id()? == lease.id, "after a redirect the same was not asked again");
    let strays = stage.shared.log.of(|asked| asked.front == 2).len() + stage.shared.log.probes(2);
    ensure!(strays == 0, "the redirect was followed");
    stage.release("L").await
}

/// The first attempt may arrive late, and find the key free.
pub(crate) async fn refusal_after_doubt(stage: &mut Stage) -> anyhow::Result<()> {
    let rival = stage.rival().await?;
    let mut is_first = true;
    stage.play(move |asked| match asked.is_put() && std::mem::take(&mut is_first) {
        true => Act::lose_answer(),
        false => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    refused(stage.acquire(json!({"wait_ms": 0})).await?, "Held")?;
    let id = stage.only_put_id()?;
    stage.sees_release(&id).await?;
    stage.rival_leaves(rival).await?;
    stage.is_free().await
}

/// A client that asks too often waits for as long as the node says.
pub(crate) async fn too_many(stage: &mut Stage) -> anyhow::Result<()> {
    const ASKED_FOR: Duration = Duration::from_secs(2);
    stage.open(&[0, 1]).await?;
    for name in ["rate-limited", "overloaded"] {
        let mut is_first = true;
        stage.play(move |asked| match asked.is_put() && std::mem::take(&mut is_first) {
            true => Act::reply(Reply::problem(429, name, json!({})).with("retry-after", "2")),
            false => Act::pass(),
        });
        let seen = stage.shared.log.count();
        let lease = stage.acquired(json!({"lease": name})).await.map_err(|error| error.context(name))?;
        let puts: Vec<_> = stage.shared.log.of(|asked| asked.is_put() && asked.index >= seen);
        let answered = puts[0].told.map(|(_, at)| at);
        let waited = puts.get(1).zip(answered).map(|(put, at)| put.at.saturating_duration_since(at));
        ensure!(waited >= Some(ASKED_FOR), "after {name} it waited {waited:?}, and not {ASKED_FOR:?}");
        stage.is_held_by(lease.token).await?;
        stage.release(name).await?;
    }
    // A try has no time to wait.
    stage.play(move |asked| match asked.is_put() {
        true => Act::reply(Reply::problem(429, "overloaded", json!({})).with("retry-after", "2")),
        false => Act::pass(),
    });
    refused(stage.acquire(json!({"wait_ms": 0})).await?, "Rejected").map(drop)
}
