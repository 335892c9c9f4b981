//! Which node is asked.

use std::time::Duration;

use anyhow::{bail, ensure};
use serde_json::json;

use crate::adapter::Call;
use crate::front::Front;
use crate::front::act::Act;
use crate::front::log::Asked;
use crate::rival::Rival;
use crate::stage::Stage;

/// How often a client may ask elsewhere until it has found out that the leader's URL works.
const TURNS: usize = 50;

/// The leader saves a hop.
pub(crate) async fn leader_hint(stage: &mut Stage) -> anyhow::Result<()> {
    let leader = stage.fronts[1].url();
    stage.play(move |_| names(leader.clone()));
    stage.open(&[0, 1]).await?;
    for turn in 0..TURNS {
        let seen = stage.shared.log.count();
        turn_around(stage, turn).await?;
        let asked = stage.shared.log.of(|asked| asked.index >= seen);
        if asked.iter().all(|asked| asked.front == 1) {
            return Ok(());
        }
    }
    bail!(
        "{TURNS} leases were acquired and released, and the leader that each response names is not asked alone"
    )
}

/// A URL that a response names may be of no use here.
pub(crate) async fn failed_hint(stage: &mut Stage) -> anyhow::Result<()> {
    let leader = stage.fronts[2].url();
    stage.fronts[2].hush(true);
    stage.play(move |_| names(leader.clone()));
    stage.open(&[0, 1]).await?;
    for turn in 0..5 {
        turn_around(stage, turn).await?;
    }
    let calls = stage.shared.log.of(|asked| asked.front == 2);
    ensure!(calls.is_empty(), "a call was sent to a URL that had not answered a probe");
    Ok(())
}

/// A machine without power closes no connection.
pub(crate) async fn vanished(stage: &mut Stage) -> anyhow::Result<()> {
    is_left(stage, Front::vanish).await
}

/// The thread that has the request may be the one that hangs, and another answers all else.
pub(crate) async fn thread_hangs(stage: &mut Stage) -> anyhow::Result<()> {
    is_left(stage, Front::block).await
}

/// The cluster takes a place away soon after the connection of its wait closes.
pub(crate) async fn left_for_another(stage: &mut Stage) -> anyhow::Result<()> {
    let (rival, acquiring, put) = waits(stage).await?;
    stage.play(|asked| if asked.is_put() { Act::hang() } else { Act::pass() });
    stage.fronts[put.front].block(true);
    let is_later = |again: &Asked| again.index > put.index && again.is_put();
    stage.seen_many(2, "the same is asked elsewhere, and once more", is_later).await?;
    let is_over = stage.shared.log.all()[put.index].is_over;
    ensure!(!is_over, "it left its wait before another node had answered");
    stage.play(|_| Act::pass());
    stage.fronts[put.front].block(false);
    stage.rival_leaves(rival).await?;
    let lease = crate::stage::lease(acquiring.answer().await?)?;
    ensure!(stage.only_put_id()? == lease.id, "it lost its place");
    stage.release("L").await?;
    stage.is_free().await
}

/// A rival has the key, and the client waits for it with this PUT.
async fn waits(stage: &mut Stage) -> anyhow::Result<(Rival, Call, Asked)> {
    let rival = stage.rival().await?;
    stage.open(&[0, 1]).await?;
    let acquiring = stage.begin_acquire(json!({})).await?;
    let put =
        stage.seen("a PUT waits", |put| put.is_put() && put.body["wait_ms"].as_u64() > Some(1_000)).await?;
    Ok((rival, acquiring, put))
}

/// A wait goes on at another node after `fall_ill` was done to its own.
async fn is_left(stage: &mut Stage, fall_ill: impl Fn(&Front, bool)) -> anyhow::Result<()> {
    let (rival, acquiring, put) = waits(stage).await?;
    fall_ill(&stage.fronts[put.front], true);
    let is_later = |again: &Asked| again.index > put.index && again.is_put() && again.front != put.front;
    let elsewhere = stage.seen("the same is asked elsewhere", is_later).await?;
    ensure!(
        elsewhere.lease_id() == put.lease_id(),
        "it asked elsewhere for another lease, and lost its place"
    );
    let wait = Duration::from_millis(put.body["wait_ms"].as_u64().unwrap_or_default());
    ensure!(elsewhere.at - put.at < wait, "it stayed until its wait there was over");
    stage.rival_leaves(rival).await?;
    let lease = crate::stage::lease(acquiring.answer().await?)?;
    stage.is_held_by(lease.token).await?;
    stage.release("L").await?;
    fall_ill(&stage.fronts[put.front], false);
    stage.is_free().await
}

/// Acquires a lease, and releases it.
async fn turn_around(stage: &mut Stage, turn: usize) -> anyhow::Result<()> {
    let name = format!("L{turn}");
    stage.acquired(json!({"lease": name})).await?;
    stage.release(&name).await
}

fn names(leader: String) -> Act {
    Act::edit(move |reply| reply.headers.push(("ringfence-leader".to_owned(), leader)))
}
