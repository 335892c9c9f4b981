//! Mutants: clients with one deliberate fault each. They test the scenarios.
//!
//! A mutant is one replacement in a copy of a client's [source](Sdk). Each scenario that it is [said](Mutant::fails) to fail must fail,
//! and each scenario that the library offers must fail one: otherwise it tests nothing. The same client without a fault must pass all
//! of them.

mod go;
mod java;
mod python;
mod python_threads;
mod sdk;
mod typescript;

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::{Context, ensure};
use futures_util::{StreamExt, stream};

use crate::play::{Outcome, play};
use crate::scenario::{SCENARIOS, Scenario};
use crate::world::World;

pub use sdk::Sdk;

/// A client with one fault.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// The file, in the [source](Sdk::source) of the client.
    pub file: &'static str,
    /// What stands there, once.
    pub old: &'static str,
    /// What the mutant has instead.
    pub new: &'static str,
    /// The scenarios that must fail.
    pub fails: &'static [&'static str],
}

macro_rules! mutants {
    ($($name:literal $file:literal $old:literal => $new:literal fails [$($scenario:literal)*];)*) => {
        pub(super) const MUTANTS: &[$crate::mutants::Mutant] = &[$($crate::mutants::Mutant {
            name: $name,
            file: $file,
            old: $old,
            new: $new,
            fails: &[$($scenario),*],
        }),*];
    };
}
use mutants;

impl Mutant {
    /// What its file becomes. The error says that the client has changed.
    pub fn applied(&self, text: &str) -> anyhow::Result<String> {
        let found = text.matches(self.old).count();
        ensure!(
            found == 1,
            "mutant {}: what it replaces in {} occurs {found} times there",
            self.name,
            self.file
        );
        Ok(text.replacen(self.old, self.new, 1))
    }
}

/// A client to play with, and what must come of it.
struct Hunt {
    sdk: Sdk,
    mutant: Option<Mutant>,
    scenario: Scenario,
}

/// Plays all mutants whose names, or whose scenarios' names, contain `only`, and first the clients without a fault. Returns whether
/// each scenario judged as it must.
pub async fn play_mutants(
    world: &World,
    sdks: &[Sdk],
    only: Option<&str>,
    jobs: usize,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let only = only.unwrap_or_default();
    let mut hunts = Vec::new();
    for &sdk in sdks {
        hunts.extend(hunts_of(sdk, only)?);
    }
    ensure!(!hunts.is_empty(), "--only {only}: no mutant, and no scenario of one, has that in its name");
    let mut is_good = true;
    let mut playing = stream::iter(hunts.iter().map(|hunt| hunt.play(world))).buffer_unordered(jobs.max(1));
    while let Some((hunt, outcome)) = playing.next().await {
        let (is_right, line) = hunt.judged(&outcome?);
        is_good &= is_right;
        writeln!(out, "{line}")?;
    }
    for &sdk in sdks {
        for name in sdk.untested() {
            is_good = false;
            writeln!(out, "NO MUTANT    {sdk} fails {name}")?;
        }
    }
    Ok(is_good)
}

/// The client without a fault, and its mutants.
fn hunts_of(sdk: Sdk, only: &str) -> anyhow::Result<Vec<Hunt>> {
    let mut hunts = Vec::new();
    for mutant in sdk.mutants() {
        for name in mutant.fails.iter().filter(|name| mutant.name.contains(only) || name.contains(only)) {
            hunts.push(Hunt { sdk, mutant: Some(*mutant), scenario: scenario(name)? });
        }
    }
    let mut sound: BTreeSet<&str> = hunts.iter().map(|hunt| hunt.scenario.name).collect();
    // Otherwise it would have to be failed by a mutant.
    sound.extend(sdk.not_offered().map(|scenario| scenario.name).filter(|name| name.contains(only)));
    let sound = sound.into_iter().map(|name| Ok(Hunt { sdk, mutant: None, scenario: scenario(name)? }));
    sound.chain(hunts.into_iter().map(Ok)).collect()
}

impl Hunt {
    async fn play(&self, world: &World) -> (&Self, anyhow::Result<Outcome>) {
        let outcome = async {
            // The folder is needed until the adapter has ended.
            let (recipe, _folder) = self.sdk.adapter(self.mutant.as_ref()).await?;
            Ok(play(world, &self.scenario, &recipe, true).await.0)
        };
        (self, outcome.await)
    }

    fn judged(&self, outcome: &Outcome) -> (bool, String) {
        let (sdk, scenario) = (self.sdk, self.scenario.name);
        match (self.mutant, outcome) {
            (None, Outcome::Passed) => (true, format!("ok           {sdk} {scenario}")),
            (None, Outcome::NotOffered(missing)) => {
                let is_known = self.sdk.not_offered().any(|one| one.name == scenario);
                let said = if is_known { "not offered" } else { "NOT OFFERED" };
                (is_known, format!("{said}  {sdk} {scenario}: {}", missing.join(", ")))
            }
            (None, Outcome::Failed(why)) => {
                (false, format!("FAILED       {sdk} {scenario} without a fault\n    {why}"))
            }
            (Some(mutant), Outcome::Failed(why)) => (
                true,
                format!(
                    "caught       {sdk} {} by {scenario}: {}",
                    mutant.name,
                    why.lines().next().unwrap_or_default()
                ),
            ),
            (Some(mutant), _) => (false, format!("NOT CAUGHT   {sdk} {} by {scenario}", mutant.name)),
        }
    }
}

fn scenario(name: &str) -> anyhow::Result<Scenario> {
    SCENARIOS
        .iter()
        .find(|scenario| scenario.name == name)
        .copied()
        .with_context(|| format!("there is no scenario {name}"))
}
