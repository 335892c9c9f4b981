//! Many calls that begin together, of which a client may make a few requests.

use std::collections::{BTreeSet, HashSet};

use anyhow::ensure;
use ringfence_wire::Mode;
use serde_json::{Value, json};

use crate::adapter::Call;
use crate::front::act::{Act, Gate};
use crate::front::log::Asked;
use crate::rival::{LONG_MS, Rival, take};
use crate::stage::{Stage, lease, refused};

const COUNT: usize = 50;

/// Each call learns of its own lease, and of no other.
pub(crate) async fn each_its_own(stage: &mut Stage) -> anyhow::Result<()> {
    stage.open(&[0, 1]).await?;
    let mut tokens = BTreeSet::new();
    for (number, call) in begin(stage, "acquire").await?.into_iter().enumerate() {
        tokens.insert(is_granted(stage, number, call).await?);
    }
    ensure!(tokens.len() == COUNT, "{} tokens for {COUNT} leases", tokens.len());
    release_all(stage, 0..COUNT).await
}

/// Whoever gives up takes nobody along.
pub(crate) async fn one_is_cancelled(stage: &mut Stage) -> anyhow::Result<()> {
    const CANCELLED: usize = COUNT / 2;
    let gate = Gate::default();
    let until_cancelled = gate.clone();
    stage.play(move |asked| match asked.acquires().is_empty() {
        false => Act::pass().after(&until_cancelled),
        true => Act::pass(),
    });
    stage.open(&[0, 1]).await?;
    let mut calls = begin(stage, "acquire").await?;
    stage.seen("some are granted", |asked| !asked.acquires().is_empty() && asked.node_said.is_some()).await?;
    let cancelled = calls.remove(CANCELLED);
    stage.must("cancel", json!({"target": cancelled.id})).await?;
    gate.open();
    refused(cancelled.answer().await?, "Cancelled")?;
    let others: Vec<usize> = (0..COUNT).filter(|number| *number != CANCELLED).collect();
    for (number, call) in others.iter().zip(calls) {
        is_granted(stage, *number, call).await?;
    }
    release_all(stage, others).await?;
    stage.key = key(stage, CANCELLED);
    stage.is_free().await
}

/// An answer that is lost is lost for all whose calls were in the request. Each repeats its own.
pub(crate) async fn answers_are_lost(stage: &mut Stage) -> anyhow::Result<()> {
    let mut known = HashSet::new();
    stage.play(move |asked| {
        let ids = asked.acquires().into_iter().map(str::to_owned).collect::<Vec<_>>();
        let is_new = ids.into_iter().filter(|id| known.insert(id.clone())).count() > 0;
        if is_new { Act::lose_answer() } else { Act::pass() }
    });
    stage.open(&[0, 1]).await?;
    for (number, call) in begin(stage, "acquire").await?.into_iter().enumerate() {
        is_granted(stage, number, call).await?;
    }
    let all = stage.shared.log.all();
    let ids: BTreeSet<&str> = all.iter().flat_map(Asked::acquires).collect();
    ensure!(ids.len() == COUNT, "{} ids were used for {COUNT} acquires", ids.len());
    release_all(stage, 0..COUNT).await
}

/// A refusal of one says nothing of others.
pub(crate) async fn half_are_refused(stage: &mut Stage) -> anyhow::Result<()> {
    let rivals = rivals(stage).await?;
    stage.open(&[0, 1]).await?;
    for (number, call) in begin(stage, "try").await?.into_iter().enumerate() {
        match number % 2 {
            0 => refused(call.answer().await?, "Held").map(drop)?,
            _ => is_granted(stage, number, call).await.map(drop)?,
        }
    }
    leave(stage, rivals).await?;
    release_all(stage, (1..COUNT).step_by(2)).await
}

/// Whoever waits keeps nobody else waiting.
pub(crate) async fn half_wait(stage: &mut Stage) -> anyhow::Result<()> {
    let rivals = rivals(stage).await?;
    stage.open(&[0, 1]).await?;
    let (mut waiting, mut free) = (Vec::new(), Vec::new());
    for (number, call) in begin(stage, "acquire").await?.into_iter().enumerate() {
        if number % 2 == 0 { &mut waiting } else { &mut free }.push((number, call));
    }
    for (number, call) in free {
        is_granted(stage, number, call).await?;
    }
    leave(stage, rivals).await?;
    for (number, call) in waiting {
        is_granted(stage, number, call).await?;
    }
    release_all(stage, 0..COUNT).await
}

fn key(stage: &Stage, number: usize) -> String {
    format!("{}/{number}", stage.key)
}

async fn begin(stage: &mut Stage, op: &str) -> anyhow::Result<Vec<Call>> {
    let many: Vec<Value> = (0..COUNT)
        .map(|number| json!({"client": "c", "lease": format!("L{number}"), "keys": [key(stage, number)], "ttl_ms": LONG_MS, "wait_ms": 30_000}))
        .collect();
    stage.adapter.begin_many(op, &many).await
}

async fn is_granted(stage: &Stage, number: usize, call: Call) -> anyhow::Result<u64> {
    let token = lease(call.answer().await?)?.token;
    let holders: Vec<u64> =
        stage.view(&key(stage, number)).await?.holders.iter().map(|one| one.token.0).collect();
    ensure!(holders == [token], "acquire {number} was told {token}, and the cluster has {holders:?}");
    Ok(token)
}

async fn release_all(stage: &mut Stage, numbers: impl IntoIterator<Item = usize>) -> anyhow::Result<()> {
    let many: Vec<Value> = numbers.into_iter().map(|number| json!({"lease": format!("L{number}")})).collect();
    for releasing in stage.adapter.begin_many("release", &many).await? {
        let released = releasing.answer().await?;
        ensure!(released.is_ok(), "`release` failed: {released:?}");
    }
    Ok(())
}

/// Others hold every second key.
async fn rivals(stage: &Stage) -> anyhow::Result<Vec<Rival>> {
    let mut rivals = Vec::new();
    for number in (0..COUNT).step_by(2) {
        rivals.push(take(&stage.node, &key(stage, number), Mode::Exclusive, LONG_MS, 0).await?);
    }
    Ok(rivals)
}

async fn leave(stage: &Stage, rivals: Vec<Rival>) -> anyhow::Result<()> {
    for rival in rivals {
        stage.rival_leaves(rival).await?;
    }
    Ok(())
}
