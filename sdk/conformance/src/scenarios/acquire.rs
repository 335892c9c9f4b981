//! Acquires that do not wait.

use anyhow::ensure;
use ringfence_wire::EndReason;
use serde_json::json;

use crate::front::act::{Act, Gate, Reply};
use crate::front::log::Asked;
use crate::stage::{Stage, gone, lease, reason, refused};

/// A repeat with the same id finds the grant.
pub(crate) async fn grant_answer_lost(stage: &mut Stage) -> anyhow::Result<()> {
    let mut is_first = true;
    stage.play(move |asked| match asked.is_put() && std::mem::take(&mut is_first) {
        true => Act::lose_answer(),
        false => Act::pass(),
    });
    let lease = stage.holding().await?;
    ensure!(stage.only_put_id()? == lease.id, "another id was asked for than was granted");
    stage.is_held_by(lease.token).await?;
    stage.release("L").await?;
    stage.is_free().await
}

/// The error of a try says who is in the way.
pub(crate) async fn held_names_holders(stage: &mut Stage) -> anyhow::Result<()> {
    let rival = stage.rival().await?;
    stage.open(&[0, 1]).await?;
    let tried = json!({"client": "c", "lease": "L", "keys": [stage.key], "ttl_ms": 60_000});
    let held = refused(stage.ask("try", tried).await?, "Held")?;
    let holder = &held.whole["holders"][0];
    let right = holder["key"] == stage.key.as_str()
        && holder["token"] == rival.token.0
        && holder["holder"] == "rival";
    ensure!(right, "the holder is not named: {}", held.whole["holders"]);
    stage.rival_leaves(rival).await
}

/// What is left of a grant may be too little to begin: it is renewed before the caller has it.
pub(crate) async fn doubtful_grant(stage: &mut Stage) -> anyhow::Result<()> {
    stage.play(|asked| match asked.is_put() {
        true => Act::edit(|reply| reply.edit(|grant| grant["expires_in_ms"] = json!(200_000))),
        false => Act::pass(),
    });
    let lease = stage.holding().await?;
    let renewed = stage.shared.log.of(|asked| asked.renews().contains(&&*lease.id) && asked.was_told(200));
    ensure!(!renewed.is_empty(), "a lease with a third of its time left was handed out without a renewal");
    stage.release("L").await
}

/// A lease that ended before the client knew of it is none; another id may be granted.
pub(crate) async fn id_ended_unseen(stage: &mut Stage) -> anyhow::Result<()> {
    let mut is_first = true;
    stage.play(move |asked| match asked.is_put() && std::mem::take(&mut is_first) {
        true => Act::reply(Reply::problem(410, "lease-gone", gone(EndReason::Expired))),
        false => Act::pass(),
    });
    let lease = stage.holding().await?;
    let ids = stage.put_ids();
    ensure!(ids.len() == 2 && ids.contains(&lease.id), "{} ids were used, and not 2", ids.len());
    stage.is_held_by(lease.token).await?;
    stage.release("L").await
}

/// An operator has ended the lease: the client does not take the key again behind his back.
pub(crate) async fn revoked(stage: &mut Stage) -> anyhow::Result<()> {
    let gate = Gate::default();
    let until_revoked = gate.clone();
    // A client may ask several times until then.
    stage.play(move |asked| match asked.is_put() && !until_revoked.is_open() {
        true => Act::lose_answer().after(&until_revoked),
        false => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({})).await?;
    let token = stage.holder().await?;
    stage.revoke(token).await?;
    gate.open();
    let lost = refused(acquiring.answer().await?, "Lost")?;
    ensure!(reason(&lost) == "revoked", "the reason is {}, not revoked", lost.whole["reason"]);
    stage.only_put_id()?;
    stage.is_free().await
}

/// What cannot succeed is not sent.
pub(crate) async fn invalid(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    for (what, fields) in [
        ("an empty segment", json!({"keys": ["a//b"]})),
        ("an empty key", json!({"keys": [""]})),
        ("a control character", json!({"keys": ["a\u{7}b"]})),
        ("a ttl of 1 ms", json!({"ttl_ms": 1})),
        ("no keys", json!({"keys": []})),
    ] {
        let answer = stage.acquire(fields).await?;
        refused(answer, "Invalid").map_err(|error| error.context(what))?;
    }
    ensure!(stage.shared.log.connections() == 0, "something was sent, or a connection made");
    Ok(())
}

/// Tokens have 53 bits, and all of them count.
pub(crate) async fn largest_token(stage: &mut Stage) -> anyhow::Result<()> {
    const LARGEST: u64 = (1 << 53) - 1;
    stage.play(|asked: &Asked| match asked.is_put() {
        true => Act::edit(|reply| {
            reply.edit(|grant| {
                grant["token"] = json!(LARGEST);
                grant["keys"][0]["fence"] = json!(LARGEST);
            });
        }),
        false => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    let answer = stage.acquire(json!({})).await?;
    let fences = answer.as_ref().map(|ok| ok["fences"][&stage.key].as_u64()).ok().flatten();
    let lease = lease(answer)?;
    ensure!(
        lease.token == LARGEST && fences == Some(LARGEST),
        "the token is {}, the fence {fences:?}",
        lease.token
    );
    if stage.abilities.contains("headers") {
        let headers = stage.must("headers", json!({"lease": "L", "key": stage.key})).await?;
        let text = headers.to_string().to_lowercase();
        ensure!(text.contains(r#""ringfence-token":"9007199254740991""#), "the headers are {headers}");
    }
    stage.release("L").await
}
