//! The ends of blocks, and releases.

use std::time::{Duration, Instant};

use anyhow::ensure;
use ringfence_wire::EndReason;
use serde_json::json;

use crate::front::act::{Act, Gate, Reply};
use crate::front::log::Asked;
use crate::stage::{SOON, Stage, gone, reason, refused};

const HOLD: Duration = Duration::from_secs(4);
const CLOSES_WITHIN: Duration = Duration::from_secs(20);

/// What went wrong in the body is what the caller has to know.
pub(crate) async fn body_error(stage: &mut Stage) -> anyhow::Result<()> {
    stage.play(|asked| match asked.is_delete() {
        true => Act::instead(Reply::problem(410, "lease-gone", gone(EndReason::Expired))),
        false => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    let block = |body: &str, stage: &Stage| json!({"client": "c", "lease": body, "keys": [stage.key], "ttl_ms": 60_000, "wait_ms": 30_000, "body": body, "ms": 1});
    let raised = stage.ask("using", block("raise", stage)).await?;
    refused(raised, "Body")?;
    // A body that succeeded has to learn that somebody else may have worked as well.
    let lost = stage.ask("using", block("ok", stage)).await?;
    refused(lost, "Lost")?;
    stage.play(|_| Act::pass());
    let ok = stage.ask("using", json!({"client": "c", "lease": "last", "keys": [stage.key], "ttl_ms": 60_000, "wait_ms": 30_000, "body": "ok"})).await?;
    ensure!(ok.is_ok(), "a block that nothing happened to failed: {ok:?}");
    stage.is_free().await
}

/// Work that was quick keeps others away for as long as it was told to.
pub(crate) async fn hold_at_least(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let block = json!({"client": "c", "lease": "L", "keys": [stage.key], "ttl_ms": 60_000, "wait_ms": 30_000, "hold_at_least_ms": 4_000, "body": "ok"});
    // The grant is later than this.
    let begun = Instant::now();
    stage.must("using", block).await?;
    let holders = stage.view(&stage.key).await?.holders;
    let early = begun.elapsed().as_millis() < 4_000;
    ensure!(!early || holders.len() == 1, "the key is free although it is to be held for 4 s");
    // It ends all the same.
    let successor = stage.rival_waits(ringfence_wire::Mode::Exclusive, 30_000).await?;
    let held = begun.elapsed().as_millis();
    ensure!(held >= 3_900, "another had the key after {held} ms");
    stage.rival_leaves(successor).await
}

/// A lease is held at least as long whether a block ends or a release ends it, and also if the program ends then.
pub(crate) async fn hold_at_least_by_release(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    // The grant is later than this.
    let begun = Instant::now();
    let lease = stage.acquired(json!({"ttl_ms": 60_000, "hold_at_least_ms": 4_000})).await?;
    stage.release("L").await?;
    let rest = stage.shared.log.of(|asked| asked.renews().contains(&&*lease.id));
    let asked_for: Vec<Option<u64>> = rest.iter().map(|asked| asked.renewed_ttl_ms(&lease.id)).collect();
    let is_right = |ttl_ms: &Option<u64>| ttl_ms.is_some_and(|ttl_ms| ttl_ms <= 4_100);
    ensure!(
        begun.elapsed() >= HOLD || asked_for.iter().all(is_right) && asked_for.len() == 1,
        "the release has renewed for {asked_for:?} ms, not once for what was left of 4,000"
    );
    let successor = stage.rival_waits(ringfence_wire::Mode::Exclusive, 30_000).await?;
    let held = begun.elapsed().as_millis();
    ensure!(held >= 3_900, "another had the key after {held} ms");
    stage.rival_leaves(successor).await
}

/// Whoever ends a lease in its holder's place keeps it held for as long.
pub(crate) async fn hold_at_least_by_others(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let begun = Instant::now();
    let key = stage.key.clone();
    for lease in ["dropped", "closed"] {
        let keys = [format!("{key}/{lease}")];
        let held = json!({"lease": lease, "keys": keys, "ttl_ms": 2_000, "hold_at_least_ms": 4_000});
        stage.acquired(held).await?;
    }
    stage.must("drop", json!({"lease": "dropped"})).await?;
    stage.open.remove("c");
    stage.must("close", json!({"client": "c"})).await?;
    for lease in ["dropped", "closed"] {
        stage.key = format!("{key}/{lease}");
        let successor = stage.rival_waits(ringfence_wire::Mode::Exclusive, 30_000).await?;
        let held = begun.elapsed().as_millis();
        ensure!(held >= 3_900, "another had {} after {held} ms", stage.key);
        stage.rival_leaves(successor).await?;
    }
    Ok(())
}

/// An outage does not end what is to be held.
pub(crate) async fn hold_at_least_in_an_outage(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let begun = Instant::now();
    stage.acquired(json!({"ttl_ms": 10_000, "hold_at_least_ms": 15_000})).await?;
    stage.play(|_| Act::close());
    let releasing = stage.adapter.begin("release", &json!({"lease": "L"})).await?;
    // It is longer than a call is repeated, with the pause before its last attempt, and shorter than the lease lives.
    tokio::time::sleep(Duration::from_secs(7)).await;
    stage.play(|_| Act::pass());
    if let Err(refusal) = releasing.answer().await? {
        let is_doubt = ["Unknown", "Unavailable"].contains(&&*refusal.kind);
        ensure!(is_doubt, "the release failed with {}", refusal.whole);
    }
    let successor = stage.rival_waits(ringfence_wire::Mode::Exclusive, 60_000).await?;
    let held = begun.elapsed().as_millis();
    ensure!(held >= 14_800, "another had the key after {held} ms");
    stage.rival_leaves(successor).await
}

/// A client that is closed holds nothing.
pub(crate) async fn close_releases(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    stage.acquired(json!({})).await?;
    let other = json!({"lease": "M", "keys": [format!("{}/other", stage.key)]});
    stage.acquired(other).await?;
    stage.open.remove("c");
    stage.must("close", json!({"client": "c"})).await?;
    for key in [stage.key.clone(), format!("{}/other", stage.key)] {
        let holders = stage.view(&key).await?.holders;
        ensure!(holders.is_empty(), "the client is closed, and {key} is held");
    }
    refused(stage.acquire(json!({"lease": "N"})).await?, "Closed").map(drop)
}

/// Whoever works under a lease is told that `close` has given it away.
pub(crate) async fn close_tells(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let block = json!({"client": "c", "lease": "L", "keys": [stage.key], "ttl_ms": 3_000, "wait_ms": 30_000, "body": "until_lost"});
    let using = stage.adapter.begin("using", &block).await?;
    // The client has the lease. That the cluster has granted it does not say so.
    stage.seen("a renewal", Asked::is_renewal).await?;
    stage.open.remove("c");
    stage.must("close", json!({"client": "c"})).await?;
    let refusal = refused(using.answer_within(SOON).await?, "Lost")?;
    ensure!(reason(&refusal) == "released", "the loss is said to be {}", reason(&refusal));
    let holders = stage.view(&stage.key).await?.holders;
    ensure!(holders.is_empty(), "the client is closed, and the key is held");
    Ok(())
}

/// `close` waits no longer than it is told to, and says what it has left.
pub(crate) async fn close_within(stage: &mut Stage) -> anyhow::Result<()> {
    close_is_bounded(stage, json!({"client": "c", "within_ms": 500})).await
}

/// By itself `close` waits for 5 s.
pub(crate) async fn close_by_default(stage: &mut Stage) -> anyhow::Result<()> {
    close_is_bounded(stage, json!({"client": "c"})).await
}

async fn close_is_bounded(stage: &mut Stage, close: serde_json::Value) -> anyhow::Result<()> {
    let lease = stage.holding().await?;
    stage.play(|_| Act::hang());
    stage.open.remove("c");
    // A client that does not care waits for 30 s.
    let closed = stage.adapter.begin("close", &close).await?.answer_within(CLOSES_WITHIN).await?;
    let closed = closed.map_err(|refusal| anyhow::anyhow!("`close` failed: {}", refusal.whole))?;
    ensure!(closed["left"] == 1, "one lease is left, and `close` says {closed}");
    stage.revoke(ringfence_wire::Token(lease.token)).await
}

/// A release that comes too late says so, and the cluster is told all the same.
pub(crate) async fn release_after_expiry(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let lease = stage.acquired(json!({"ttl_ms": 1_500})).await?;
    stage.play(|asked| match asked.is_renewal() {
        true => Act::hang(),
        false => Act::pass(),
    });
    stage.adapter.lost("L", SOON).await?;
    refused(stage.ask("release", json!({"lease": "L"})).await?, "Lost")?;
    stage.seen("a release of the lease is sent", |asked| asked.releases().contains(&&*lease.id)).await?;
    stage.is_free().await
}

/// A second release takes nobody's key.
pub(crate) async fn double_release(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    stage.acquired(json!({})).await?;
    stage.release("L").await?;
    let successor = stage.rival().await?;
    stage.release("L").await?;
    stage.is_held_by(successor.token.0).await?;
    stage.rival_leaves(successor).await
}

/// A release that nobody answers goes on, and `close` waits for it.
pub(crate) async fn unknown_release(stage: &mut Stage) -> anyhow::Result<()> {
    let lease = stage.holding().await?;
    let works = Gate::default();
    let broken = |asked: &Asked| match asked.releases().is_empty() {
        false => Act::reply(Reply::problem(504, "indeterminate", json!({}))),
        true => Act::pass(),
    };
    stage.play(broken);
    refused(stage.ask("release", json!({"lease": "L"})).await?, "Unknown")?;
    let seen = stage.shared.log.count();
    let release = |asked: &Asked| asked.index >= seen && asked.releases().contains(&&*lease.id);
    stage.seen("the release is repeated in the background", release).await?;
    let until_open = works.clone();
    // From now on the node does it, and the answer waits.
    stage.play(move |_| Act::pass().after(&until_open));
    stage.open.remove("c");
    let closing = stage.adapter.begin("close", &json!({"client": "c"})).await?;
    let again = stage.shared.log.count();
    stage
        .seen("it is repeated while the client closes", |asked| {
            asked.index >= again && asked.releases().contains(&&*lease.id)
        })
        .await?;
    works.open();
    let closed = closing.answer().await?;
    ensure!(closed.is_ok(), "`close` failed: {closed:?}");
    let done = stage.shared.log.of(|asked| {
        asked.releases().contains(&&*lease.id) && asked.told.is_some_and(|(status, _)| status < 300)
    });
    ensure!(!done.is_empty(), "`close` was done before the release was");
    stage.is_free().await
}
