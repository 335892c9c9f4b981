//! Leases that are held, and renewed.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ringfence_wire::Mode;
use serde_json::{Value, json};

use crate::front::act::{Act, Gate};
use crate::front::log::Asked;
use crate::stage::{SOON, STEADY_MS, Stage, lease};

/// One call renews all leases.
pub(crate) async fn many_leases(stage: &mut Stage) -> anyhow::Result<()> {
    // Acquiring a thousand takes longer than some ttls.
    let (count, ttl_ms) = if stage.is_quick { (100, STEADY_MS) } else { (1_000, 45_000) };
    stage.open(&[0, 1]).await?;
    let mut acquiring = Vec::new();
    for number in 0..count {
        let fields = json!({"lease": format!("L{number}"), "keys": [format!("{}/{number}", stage.key)], "ttl_ms": ttl_ms});
        acquiring.push(stage.begin_acquire(fields).await?);
    }
    for acquiring in acquiring {
        lease(acquiring.answer().await?)?;
    }
    let begun = stage.shared.log.count();
    // Leases of different ages come together within some rounds.
    let together =
        |asked: &Asked| asked.index >= begun && asked.was_told(200) && asked.renews().len() == count;
    let rounds = stage.seen_many(2, "one call renews all leases, twice", together).await?;
    // A renewal of all whose answer is late is repeated.
    let between = stage.shared.log.of(|asked| {
        let is_between = asked.index > rounds[0].index && asked.index < rounds[1].index;
        is_between && asked.is_renewal() && asked.renews().len() < count
    });
    ensure!(between.is_empty(), "{} renewals of some came between two that renew all", between.len());
    // Before that, a grant whose answer was late is renewed before the caller has it.
    let alone = stage.shared.log.of(|asked| asked.index >= begun && asked.is_renewal_of_one());
    ensure!(alone.is_empty(), "{} leases were renewed by calls of their own", alone.len());
    let mut releasing = Vec::new();
    for number in 0..count {
        releasing.push(stage.adapter.begin("release", &json!({"lease": format!("L{number}")})).await?);
    }
    for releasing in releasing {
        let released = releasing.answer().await?;
        ensure!(released.is_ok(), "`release` failed: {released:?}");
    }
    Ok(())
}

/// The answer to an older request takes nothing back.
pub(crate) async fn older_answer(stage: &mut Stage) -> anyhow::Result<()> {
    let rival = stage.rival_waits(Mode::Shared { limit: None }, 0).await?;
    let (gate, mut is_first) = (Gate::default(), true);
    let until_newer = gate.clone();
    stage.play(move |asked| match asked.is_renewal_of_one() && std::mem::take(&mut is_first) {
        true => Act::pass().after(&until_newer),
        false => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    let lease = stage.acquired(json!({"keys": [{"key": stage.key, "shared": true}]})).await?;
    ensure!(fence(stage).await? == rival.token.0, "the fence is not the token of the oldest holder");
    let older = stage.adapter.begin("renew", &json!({"lease": "L"})).await?;
    stage
        .seen("the node has answered the older renewal", |asked| {
            asked.is_renewal_of_one() && asked.node_said == Some(200)
        })
        .await?;
    stage.rival_leaves(rival).await?;
    stage.must("renew", json!({"lease": "L"})).await?;
    let newer = fence(stage).await?;
    ensure!(newer == lease.token, "a renewal did not raise the fence");
    gate.open();
    older
        .answer()
        .await?
        .map_err(|refusal| anyhow::anyhow!("the older renewal failed: {}", refusal.whole))?;
    ensure!(fence(stage).await? == newer, "an older answer lowered the fence");
    stage.release("L").await
}

async fn fence(stage: &mut Stage) -> anyhow::Result<u64> {
    let fence = stage.must("fence", json!({"lease": "L", "key": stage.key})).await?;
    fence["fence"].as_u64().context("no `fence`")
}

/// A renewal that hangs leaves time for another node.
pub(crate) async fn hung_renewal(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let lease = stage.acquired(json!({"ttl_ms": 16_000})).await?;
    let mut bad = None;
    // Whichever is asked first to renew hangs with all renewals: it lives, and answers probes.
    stage.play(move |asked| match asked.is_renewal() {
        true if *bad.get_or_insert(asked.front) == asked.front => Act::hang(),
        _ => Act::pass(),
    });
    stage
        .seen_many(2, "renewals at the other node", |asked| asked.is_renewal() && asked.was_told(200))
        .await?;
    ensure!(stage.adapter.losses("L").is_empty(), "the lease was lost, and another node was there");
    stage.is_held_by(lease.token).await?;
    stage.play(|_| Act::pass());
    stage.release("L").await
}

/// Without confirmations the holder is told to get ready, and is safe again after one.
pub(crate) async fn unsure_then_held(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let lease = stage.acquired(json!({"ttl_ms": 18_000})).await?;
    stage.play(|asked| match asked.is_renewal() {
        true => Act::close(),
        false => Act::pass(),
    });
    comes_to(stage, "unsure").await?;
    stage.play(|_| Act::pass());
    comes_to(stage, "held").await?;
    ensure!(stage.adapter.losses("L").is_empty(), "the lease was lost in between");
    stage.is_held_by(lease.token).await?;
    stage.release("L").await
}

async fn comes_to(stage: &mut Stage, wanted: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let (state, reason) = stage.state("L").await?;
        if state == wanted {
            return Ok(());
        }
        ensure!(state != "lost", "the lease is lost ({reason:?}), and never became {wanted}");
        ensure!(begun.elapsed() < SOON, "the state stays {state}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What a guard is told: the key, encoded, and the fence as last confirmed.
pub(crate) async fn headers(stage: &mut Stage) -> anyhow::Result<()> {
    stage.key += "/Zoë 100%?#";
    let rival = stage.rival_waits(Mode::Shared { limit: None }, 0).await?;
    stage.open(&[0, 1]).await?;
    let lease =
        stage.acquired(json!({"keys": [{"key": stage.key, "shared": true}], "ttl_ms": STEADY_MS})).await?;
    ensure!(
        header(stage, "ringfence-token").await? == lease.token.to_string(),
        "another token is sent than was granted"
    );
    ensure!(
        header(stage, "ringfence-fence").await? == rival.token.to_string(),
        "the fence is not the oldest holder's token"
    );
    let key = header(stage, "ringfence-key").await?;
    let decoded = percent_encoding::percent_decode_str(&key).decode_utf8()?.into_owned();
    ensure!(
        key.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/') && decoded == stage.key,
        "the header of the key is {key:?}"
    );
    stage.rival_leaves(rival).await?;
    // The next renewal brings the new fence.
    let begun = Instant::now();
    while header(stage, "ringfence-fence").await? != lease.token.to_string() {
        ensure!(begun.elapsed() < SOON, "no renewal raises the fence in the headers");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stage.release("L").await
}

async fn header(stage: &mut Stage, name: &str) -> anyhow::Result<String> {
    let answer = stage.must("headers", json!({"lease": "L", "key": stage.key})).await?;
    let headers = answer["headers"].as_object().context("no `headers`")?;
    let found = headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
    found
        .and_then(|(_, value)| Value::as_str(value))
        .map(str::to_owned)
        .with_context(|| format!("no header {name}"))
}
