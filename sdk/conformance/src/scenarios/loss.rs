//! Leases that are lost.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use ringfence_wire::Token;
use rustix::process::Signal;
use serde_json::json;

use crate::front::act::{Act, Gate};
use crate::front::log::Asked;
use crate::rival::LONG_MS;
use crate::stage::{SOON, STEADY_MS, Stage, reason, refused};

/// A loss must have been told after this many answers of the adapter, which take 2 s or more.
const ANSWERS: usize = 40;

/// What was told as lost stays so, whatever arrives later.
pub(crate) async fn late_renewal(stage: &mut Stage) -> anyhow::Result<()> {
    let gate = Gate::default();
    let until_lost = gate.clone();
    stage.open(&[0, 1]).await?;
    stage.acquired(json!({"ttl_ms": 1_500})).await?;
    stage.play(move |asked| match asked.is_renewal() {
        true if asked.is_renewal_of_one() => Act::pass().after(&until_lost),
        true => Act::hang(),
        false => Act::pass(),
    });
    let renewing = stage.adapter.begin("renew", &json!({"lease": "L"})).await?;
    let why = stage.adapter.lost("L", SOON).await?;
    ensure!(why == "unconfirmed", "the reason is {why}, not unconfirmed");
    gate.open();
    refused(renewing.answer().await?, "Lost")?;
    let (state, _) = stage.state("L").await?;
    ensure!(state == "lost", "a late confirmation made the lease {state} again");
    refused(stage.ask("release", json!({"lease": "L"})).await?, "Lost").map(drop)
}

/// What the cluster says of one lease is not true of others.
pub(crate) async fn revoked_while_held(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let one = stage.acquired(json!({"ttl_ms": STEADY_MS})).await?;
    let other = stage
        .acquired(json!({"lease": "M", "keys": [format!("{}/other", stage.key)], "ttl_ms": STEADY_MS}))
        .await?;
    stage.revoke(Token(one.token)).await?;
    let why = stage.adapter.lost("L", SOON).await?;
    ensure!(why == "revoked", "the reason is {why}, not revoked");
    let seen = stage.shared.log.count();
    let after =
        |asked: &Asked| asked.index >= seen && asked.renews().contains(&&*other.id) && asked.was_told(200);
    let renewals = stage.seen_many(2, "the other lease is renewed", after).await?;
    ensure!(!renewals[1].renews().contains(&&*one.id), "a lease that is lost is still renewed");
    let (state, _) = stage.state("M").await?;
    ensure!(state == "held", "the other lease is {state}");
    stage.release("M").await?;
    refused(stage.ask("release", json!({"lease": "L"})).await?, "Lost").map(drop)
}

/// A machine that was asleep: no timer has fired yet, but the clock says that the time is over.
pub(crate) async fn suspended(stage: &mut Stage) -> anyhow::Result<()> {
    let urls = [stage.fronts[0].url(), stage.fronts[1].url()];
    let opened = stage.open_with(json!({"urls": urls, "clock": "played"})).await?;
    ensure!(opened.is_ok(), "`open` failed: {opened:?}");
    stage.acquired(json!({})).await?;
    let slept = stage.adapter.begin("clock", &json!({"advance_ms": LONG_MS + 1_000})).await?;
    let looked = stage.adapter.begin("state", &json!({"lease": "L"})).await?;
    slept.answer().await?.map_err(|refusal| anyhow::anyhow!("`clock` failed: {}", refusal.whole))?;
    let state =
        looked.answer().await?.map_err(|refusal| anyhow::anyhow!("`state` failed: {}", refusal.whole))?;
    ensure!(state["state"] == "lost", "after a sleep longer than its ttl the lease is {}", state["state"]);
    refused(stage.ask("headers", json!({"lease": "L", "key": stage.key})).await?, "Lost")?;
    stage.adapter.lost("L", SOON).await?;
    refused(stage.ask("release", json!({"lease": "L"})).await?, "Lost").map(drop)
}

/// A lease has ended once it has by either clock: one may be slow, and the other stand still.
pub(crate) async fn either_clock(stage: &mut Stage) -> anyhow::Result<()> {
    let urls = [stage.fronts[0].url(), stage.fronts[1].url()];
    let opened = stage.open_with(json!({"urls": urls, "clock": "played"})).await?;
    ensure!(opened.is_ok(), "`open` failed: {opened:?}");
    for clock in ["boot", "raw"] {
        stage.acquired(json!({"lease": clock})).await?;
        stage.must("clock", json!({"advance_ms": {clock: LONG_MS + 1_000}})).await?;
        let (state, _) = stage.state(clock).await?;
        ensure!(state == "lost", "its time has passed by the clock {clock}, and the lease is {state}");
        refused(stage.ask("release", json!({"lease": clock})).await?, "Lost")?;
        stage.is_free().await?;
    }
    Ok(())
}

/// A process that was stopped past its ttl does not believe that it holds.
pub(crate) async fn stopped(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let lease = stage.acquired(json!({"ttl_ms": 2_000})).await?;
    stage.adapter.signal(Signal::STOP)?;
    // The waiter gets the key: the lease has ended.
    let successor = stage.rival_waits(ringfence_wire::Mode::Exclusive, 30_000).await?;
    ensure!(successor.token.0 > lease.token, "tokens do not increase");
    let first_look = stage.adapter.begin("state", &json!({"lease": "L"})).await?;
    stage.adapter.signal(Signal::CONT)?;
    let state =
        first_look.answer().await?.map_err(|refusal| anyhow::anyhow!("`state` failed: {}", refusal.whole))?;
    ensure!(state["state"] == "lost", "another holds the key, and the lease is {}", state["state"]);
    stage.adapter.lost("L", SOON).await?;
    refused(stage.ask("release", json!({"lease": "L"})).await?, "Lost")?;
    stage.is_held_by(successor.token.0).await?;
    stage.rival_leaves(successor).await
}

/// A holder that hangs loses its lease, and is told.
pub(crate) async fn blocked(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let lease = stage.acquired(json!({"ttl_ms": 2_000})).await?;
    let blocking = stage.adapter.begin("block", &json!({"ms": 5_000})).await?;
    let successor = stage.rival_waits(ringfence_wire::Mode::Exclusive, 30_000).await?;
    ensure!(successor.token.0 > lease.token, "tokens do not increase");
    blocking.answer().await?.map_err(|refusal| anyhow::anyhow!("`block` failed: {}", refusal.whole))?;
    let (state, _) = stage.state("L").await?;
    ensure!(state == "lost", "another holds the key, and the lease is {state}");
    stage.adapter.lost("L", SOON).await?;
    refused(stage.ask("release", json!({"lease": "L"})).await?, "Lost")?;
    stage.is_held_by(successor.token.0).await?;
    stage.rival_leaves(successor).await
}

/// A copy of the holder holds nothing, and ends nothing.
pub(crate) async fn forked(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let lease = stage.acquired(json!({"ttl_ms": STEADY_MS})).await?;
    let child = stage.must("fork", json!({"lease": "L"})).await?;
    let child = &child["child"];
    ensure!(child["state"] == "lost" && child["reason"] == "forked", "in the child the lease is {child}");
    let releases = stage.shared.log.of(|asked| !asked.releases().is_empty());
    ensure!(releases.is_empty(), "the child has released the lease of its parent");
    let seen = stage.shared.log.count();
    stage
        .seen("the parent renews", |asked| asked.index >= seen && asked.renews().contains(&&*lease.id))
        .await?;
    stage.is_held_by(lease.token).await?;
    stage.release("L").await
}

/// Its holder has set a limit, and nothing renews past it.
pub(crate) async fn max_hold(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    stage.acquired(json!({"ttl_ms": 30_000, "max_hold_ms": 1_500})).await?;
    let why = stage.adapter.lost("L", SOON).await?;
    ensure!(why == "max-hold", "the reason is {why}, not max-hold");
    let (state, _) = stage.state("L").await?;
    ensure!(state == "lost", "the lease is {state}");
    refused(stage.ask("release", json!({"lease": "L"})).await?, "Lost")?;
    stage.is_free().await
}

/// A holder that is cut off stops before another begins; what it writes late is refused.
pub(crate) async fn cut_off(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let lease = stage.acquired(json!({"ttl_ms": 4_000})).await?;
    stage.fronts[0].vanish(true);
    stage.fronts[1].vanish(true);
    let successor = stage.rival_waits(ringfence_wire::Mode::Exclusive, 30_000).await?;
    // The machine may have stopped the process. While it answers, its timers fire, too.
    for _ in 0..ANSWERS {
        stage.must("hello", json!({})).await?;
        if !stage.adapter.losses("L").is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let told = stage.adapter.losses("L");
    ensure!(!told.is_empty(), "another has the key, and its loss was not told");
    let [Some(why)] = &told[..] else { bail!("the losses that were told are {told:?}") };
    ensure!(why == "unconfirmed", "the reason is {why}, not unconfirmed");
    let refusal = refused(stage.ask("headers", json!({"lease": "L", "key": stage.key})).await?, "Lost")?;
    ensure!(reason(&refusal) == "unconfirmed", "the reason is {}", refusal.whole["reason"]);
    let guard_high = stage.view(&stage.key).await?.fence;
    ensure!(
        Token(lease.token) < guard_high && guard_high == successor.token,
        "the guard would take what is late"
    );
    stage.fronts[0].vanish(false);
    stage.fronts[1].vanish(false);
    refused(stage.ask("release", json!({"lease": "L"})).await?, "Lost")?;
    stage.is_held_by(successor.token.0).await.context("a late release took the successor's key")?;
    stage.rival_leaves(successor).await
}
