//! Mutants: Python clients with one deliberate fault each. They test the scenarios.
//!
//! A mutant is one replacement in a copy of `sdk/python/src`. Each scenario that it is [said](Mutant::fails) to fail must fail, and
//! each scenario must fail one: otherwise it tests nothing. The same client without a fault must pass all of them.

mod table;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use futures_util::{StreamExt, stream};
use tempfile::TempDir;

use crate::adapter::Recipe;
use crate::play::{Outcome, play};
use crate::scenario::{SCENARIOS, Scenario};
use crate::world::World;

pub use table::MUTANTS;

/// A client with one fault.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// The file of the client, below `sdk/python/src/ringfence`.
    pub file: &'static str,
    /// What stands there, once.
    pub old: &'static str,
    /// What the mutant has instead.
    pub new: &'static str,
    /// The scenarios that must fail.
    pub fails: &'static [&'static str],
}

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

/// The Python client of this workspace.
pub fn python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../python")
}

/// The scenarios that no mutant is said to fail.
pub fn untested() -> Vec<&'static str> {
    let failed: BTreeSet<&str> = MUTANTS.iter().flat_map(|mutant| mutant.fails).copied().collect();
    SCENARIOS.iter().map(|scenario| scenario.name).filter(|name| !failed.contains(name)).collect()
}

/// A client to play with, and what must come of it.
struct Hunt {
    mutant: Option<Mutant>,
    scenario: Scenario,
}

/// Plays all mutants whose names, or whose scenarios' names, contain `only`, and first the client without a fault. Returns whether
/// each scenario judged as it must.
pub async fn play_mutants(
    world: &World,
    only: Option<&str>,
    jobs: usize,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let only = only.unwrap_or_default();
    let mut hunts = Vec::new();
    for mutant in MUTANTS {
        for name in mutant.fails.iter().filter(|name| mutant.name.contains(only) || name.contains(only)) {
            hunts.push(Hunt { mutant: Some(*mutant), scenario: scenario(name)? });
        }
    }
    ensure!(!hunts.is_empty(), "--only {only}: no mutant, and no scenario of one, has that in its name");
    let named: BTreeSet<&str> = hunts.iter().map(|hunt| hunt.scenario.name).collect();
    let sound = named.iter().map(|name| Ok(Hunt { mutant: None, scenario: scenario(name)? }));
    let hunts: Vec<Hunt> = sound.chain(hunts.into_iter().map(Ok)).collect::<anyhow::Result<_>>()?;
    let mut is_good = true;
    let mut playing = stream::iter(hunts.iter().map(|hunt| hunt.play(world))).buffer_unordered(jobs.max(1));
    while let Some((hunt, outcome)) = playing.next().await {
        let (is_right, line) = hunt.judged(&outcome?);
        is_good &= is_right;
        writeln!(out, "{line}")?;
    }
    for name in untested() {
        is_good = false;
        writeln!(out, "NO MUTANT    fails {name}")?;
    }
    Ok(is_good)
}

impl Hunt {
    async fn play(&self, world: &World) -> (&Self, anyhow::Result<Outcome>) {
        let outcome = async {
            let (source, _folder) = self.source()?;
            let adapter = python().join("conformance_adapter.py");
            let recipe = Recipe {
                words: vec!["python3".to_owned(), adapter.display().to_string()],
                variables: vec![
                    ("PYTHONPATH".to_owned(), source.display().to_string()),
                    ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()),
                ],
            };
            Ok(play(world, &self.scenario, &recipe, true).await)
        };
        (self, outcome.await)
    }

    /// The folder to import from, and its owner.
    fn source(&self) -> anyhow::Result<(PathBuf, Option<TempDir>)> {
        let original = python().join("src");
        let Some(mutant) = &self.mutant else { return Ok((original, None)) };
        let folder = tempfile::tempdir()?;
        let copy = folder.path().join("ringfence");
        fs::create_dir(&copy)?;
        for entry in fs::read_dir(original.join("ringfence"))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), copy.join(entry.file_name()))?;
            }
        }
        let file = copy.join(mutant.file);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        fs::write(&file, mutant.applied(&text)?)?;
        Ok((folder.path().to_owned(), Some(folder)))
    }

    fn judged(&self, outcome: &Outcome) -> (bool, String) {
        let scenario = self.scenario.name;
        match (self.mutant, outcome) {
            (None, Outcome::Passed) => (true, format!("ok           {scenario}")),
            (None, Outcome::NotOffered(missing)) => {
                (false, format!("NOT OFFERED  {scenario}: {}", missing.join(", ")))
            }
            (None, Outcome::Failed(why)) => {
                (false, format!("FAILED       {scenario} without a fault\n    {why}"))
            }
            (Some(mutant), Outcome::Failed(why)) => (
                true,
                format!(
                    "caught       {} by {scenario}: {}",
                    mutant.name,
                    why.lines().next().unwrap_or_default()
                ),
            ),
            (Some(mutant), _) => (false, format!("NOT CAUGHT   {} by {scenario}", mutant.name)),
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
