//! Plays scenarios: each with an adapter process, fronts and a key of its own, several at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::{StreamExt, stream};
use ringfence_harness::Consistency;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::timeout;

use crate::adapter::{Adapter, Recipe, STARTS_WITHIN};
use crate::front::log::Asked;
use crate::front::{Front, Shared};
use crate::scenario::Scenario;
use crate::stage::{SOON, Stage};
use crate::world::World;

/// Bounds a scenario: each of its waits has a bound of its own.
const SCENARIO_WITHIN: Duration = Duration::from_secs(150);
/// How often a scenario is played at most, if it fails while the machine is slow.
pub const PLAYS: usize = 4;
/// How many fronts each has.
const FRONTS: usize = 3;
/// How many lines of what was seen a failure shows.
const TOLD: usize = 25;

/// What came of one scenario with one adapter.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The library keeps the rule.
    Passed,
    /// The library says that it does not have these abilities.
    NotOffered(Vec<&'static str>),
    /// It does not keep the rule, and how that showed.
    Failed(String),
}

/// A scenario that was played.
#[derive(Clone, Debug)]
pub struct Played {
    /// Its name.
    pub scenario: &'static str,
    /// The place of the adapter.
    pub adapter: usize,
    /// What came of it.
    pub outcome: Outcome,
    /// How long it took, with all its plays.
    pub took: Duration,
    /// How earlier plays failed, and what of the machine was slow meanwhile.
    pub earlier: Vec<String>,
}

/// Plays each scenario with each adapter, `jobs` at once, and tells `done` of each.
pub async fn play_all(
    world: &World,
    scenarios: &[Scenario],
    adapters: &[Recipe],
    jobs: usize,
    is_quick: bool,
    mut done: impl FnMut(&Played),
) -> Vec<Played> {
    let all = scenarios
        .iter()
        .flat_map(|scenario| adapters.iter().enumerate().map(move |adapter| (scenario, adapter)));
    let playing = all.map(|(scenario, (adapter, recipe))| async move {
        let begun = Instant::now();
        let (outcome, earlier) = play(world, scenario, recipe, is_quick).await;
        Played { scenario: scenario.name, adapter, outcome, took: begun.elapsed(), earlier }
    });
    let mut played = Vec::new();
    let mut results = stream::iter(playing).buffer_unordered(jobs.max(1));
    while let Some(one) = results.next().await {
        done(&one);
        played.push(one);
    }
    played
}

/// Plays one scenario with one adapter. A failure counts if the machine kept up, or if it is the last of [`PLAYS`]. Returns also how
/// earlier plays failed.
pub async fn play(
    world: &World,
    scenario: &Scenario,
    recipe: &Recipe,
    is_quick: bool,
) -> (Outcome, Vec<String>) {
    let mut earlier = Vec::new();
    loop {
        let begun = Instant::now();
        let outcome = play_once(world, scenario, recipe, is_quick).await;
        match (&outcome, world.pulse.slow_since(begun)) {
            (Outcome::Failed(why), Some(slow)) if earlier.len() + 1 < PLAYS => {
                earlier.push(format!("{slow}; {why}"));
                world.pulse.calm().await;
            }
            _ => return (outcome, earlier),
        }
    }
}

async fn play_once(world: &World, scenario: &Scenario, recipe: &Recipe, is_quick: bool) -> Outcome {
    let mut stage = match set(world, scenario, recipe, is_quick).await {
        Ok(stage) => stage,
        Err(error) => return Outcome::Failed(format!("{error:#}")),
    };
    let missing: Vec<&str> =
        scenario.needs.iter().copied().filter(|need| !stage.abilities.contains(*need)).collect();
    if !missing.is_empty() {
        return Outcome::NotOffered(missing);
    }
    let played = timeout(SCENARIO_WITHIN, (scenario.play)(&mut stage)).await;
    let played = match played.unwrap_or_else(|_| Err(anyhow::anyhow!("not done within {SCENARIO_WITHIN:?}")))
    {
        Ok(()) => finish(&mut stage).await,
        Err(error) => Err(error),
    };
    match played {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Failed(format!("{error:#}{}", described(&stage))),
    }
}

async fn set(world: &World, scenario: &Scenario, recipe: &Recipe, is_quick: bool) -> anyhow::Result<Stage> {
    let live = match scenario.is_live {
        true => Some(world.live().await?),
        false => None,
    };
    let shared = Shared::new();
    let mut fronts = Vec::new();
    for number in 0..FRONTS {
        fronts.push(Front::start(number, world.node().address(), &shared, None)?);
    }
    let mut adapter = Adapter::start(recipe)?;
    let hello = adapter.begin("hello", &json!({})).await?.answer_within(STARTS_WITHIN).await?;
    let hello = hello.map_err(|refusal| anyhow::anyhow!("`hello` failed: {}", refusal.whole))?;
    let listed = hello["abilities"].as_array().context("`hello` has no list `abilities`")?;
    let abilities: BTreeSet<String> =
        listed.iter().filter_map(|one| one.as_str()).map(str::to_owned).collect();
    let resources = match abilities.contains("resources") {
        true => Some(resources(&mut adapter).await?),
        false => None,
    };
    Ok(Stage {
        fronts,
        shared,
        adapter,
        node: world.node(),
        key: format!("conformance/{}", ringfence_wire::LeaseId::random()),
        folder: tempfile::tempdir()?,
        abilities,
        is_quick,
        live,
        open: BTreeSet::new(),
        has_ended: false,
        resources,
    })
}

/// Ends the client and the adapter, and checks the rules of all scenarios.
async fn finish(stage: &mut Stage) -> anyhow::Result<()> {
    if !stage.has_ended {
        for client in std::mem::take(&mut stage.open) {
            stage.must("close", json!({"client": client})).await?;
        }
        nothing_is_left(stage).await?;
        stage.ends().await?;
    }
    let mut violations = stage.shared.log.violations();
    violations.extend(stage.adapter.violations());
    ensure!(violations.is_empty(), "{}", violations.join("; "));
    let keys = stage.node.patient().keys(&stage.key, None, Consistency::Linearizable).await;
    let keys = ringfence_harness::Answered::success(keys)?;
    ensure!(keys.keys.is_empty(), "the client has left leases in the cluster: {:?}", keys.keys);
    Ok(())
}

/// Waits until a client that is closed has given back what it had of the process. What it has just ended takes a moment.
async fn nothing_is_left(stage: &mut Stage) -> anyhow::Result<()> {
    let Some(before) = stage.resources.take() else { return Ok(()) };
    let begun = Instant::now();
    loop {
        let now = resources(&mut stage.adapter).await?;
        let Some((name, count)) = now.iter().find(|(name, count)| before.get(*name) < Some(*count)) else {
            return Ok(());
        };
        let had = before.get(name).copied().unwrap_or_default();
        ensure!(begun.elapsed() < SOON, "with all clients closed there are {count} {name}, and {had} before");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What the process of an adapter has.
async fn resources(adapter: &mut Adapter) -> anyhow::Result<BTreeMap<String, u64>> {
    let answer = adapter.begin("resources", &json!({})).await?.answer().await?;
    let counts = answer.map_err(|refusal| anyhow::anyhow!("`resources` failed: {}", refusal.whole))?;
    serde_json::from_value(counts).context("`resources` has counts")
}

/// What was seen, to find the fault by.
fn described(stage: &Stage) -> String {
    // Also if it is stopped: it is killed next.
    let _ = stage.adapter.signal(Signal::CONT);
    let all = stage.shared.log.all();
    let mut text = String::new();
    for asked in &all[all.len().saturating_sub(TOLD)..] {
        text += &format!("\n      {}", line(asked, all[0].at));
    }
    let logged = stage.adapter.logged();
    let last: Vec<&str> = logged.lines().rev().take(TOLD).collect();
    for line in last.iter().rev() {
        text += &format!("\n      adapter: {line}");
    }
    text
}

fn line(asked: &Asked, begun: Instant) -> String {
    let told = match asked.told {
        Some((status, at)) => format!("{status} at {} ms", (at - begun).as_millis()),
        None if asked.is_over => "the connection ended".to_owned(),
        None => "no answer".to_owned(),
    };
    let said = asked.node_said.map(|status| format!(" (the node: {status})")).unwrap_or_default();
    let at = (asked.at - begun).as_millis();
    format!("{at:>6} ms front {} {} {} -> {told}{said}", asked.front, asked.method, asked.path)
}
