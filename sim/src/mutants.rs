//! Mutants: builds of the product with one deliberate bug each. They test the simulator.
//!
//! A mutant is a patch and a [`Hunt`], which names the laws that the bug breaks. It counts as caught only if one of those is
//! broken. A run without a patch, built the same way and as long, must find nothing: so the bug was found, not the build.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use ringfence_laws::check::answers::{LINEARIZABLE_READS, NO_GRANT_LOST};
use ringfence_laws::check::causes::{BOUNDED_END, NO_EARLY_END};
use ringfence_laws::check::clock::CLUSTER_TIME;
use ringfence_laws::check::exclusion::EXCLUSION;
use ringfence_laws::check::nodes::EQUAL_STATES;
use ringfence_laws::check::queues::{NO_LATE_WAITER, QUEUE_ORDER};
use ringfence_laws::check::repeats::ONE_GRANT_PER_LEASE;
use ringfence_laws::check::tokens::{GRANTED_TOKENS, TOKENS};
use ringfence_laws::check::transactions::{TAKEN_BACK, WHOLE_SETS};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::run::run;
use crate::world::{
    BOTH_SERVE, CONDEMNED, CONNECTS_ALL_THE_TIME, ENDS_LATE, FORGETFUL_SERVES, LOG_FILLS_MEMORY,
    NOBODY_LEADS, NOBODY_SERVES, NOTHING_COMMITS, TIME_LAGS,
};

/// The profile and the flags that `sim/run` builds with.
const PROFILE: &str = "sim";
const FLAGS: &str = "--cfg tokio_unstable";
/// How long the run may take that is under way when the time is over.
const LAST_RUN: Duration = Duration::from_secs(120);
/// The workspace without a patch.
const CONTROL: &str = "no-mutant";

/// What [`World`](crate::world::World) and [`run`] say themselves.
const LAGS_FOR_EVER: &str = "not all members serve";
const DIVERGES: &str = "applied another change";
const NOT_IN_LOG: &str = "no log has it";
const LOG_DIFFERS: &str = "and the log has";
const DOES_NOT_START: &str = "ended though nothing was wrong";
const UNREADABLE: &str = "cannot be read";
const ASKS_FOR_LOSS: &str = "asks for more data to be lost";
const PANIC: &str = "a node panicked";

/// Options of `mutants`.
#[derive(Args, Debug)]
pub struct MutantsOptions {
    /// Only mutants whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// For how long each is hunted at most
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The first seed of each hunt [default: drawn]
    #[arg(long)]
    seed: Option<u64>,
    /// Hunt this mutant in this program, which was built with its patch
    #[arg(long, hide = true)]
    hunt: Option<String>,
}

/// How a mutant is found.
struct Hunt {
    name: &'static str,
    /// Its patch is among those of `ringfence-jepsen`.
    is_jepsens: bool,
    /// A finding counts if it has one of these.
    laws: Vec<&'static str>,
}

/// What came of a hunt, which a process says as JSON to the one that began it.
#[derive(Default, Serialize, Deserialize)]
struct Hunted {
    /// The finding that counts, and its seed.
    caught: Option<(u64, String)>,
    /// Another finding, if there was one before.
    other: Option<String>,
    runs: u64,
    simulated: Duration,
}

fn table() -> Vec<Hunt> {
    let own = |name, laws: &[&'static str]| Hunt { name, is_jepsens: false, laws: laws.to_vec() };
    let jepsens = |name, laws: &[&'static str]| Hunt { is_jepsens: true, ..own(name, laws) };
    let lost = [NO_GRANT_LOST.name, TOKENS.name, EQUAL_STATES.name, DIVERGES, NOT_IN_LOG, LOG_DIFFERS];
    let and = |more: &[&'static str]| [&lost, more].concat();
    vec![
        own("links-by-id", &and(&[PANIC])),
        own("reads-by-read-index", &[LINEARIZABLE_READS.name]),
        own("gives-up-on-founding", &[ASKS_FOR_LOSS]),
        own("stale-cut-reads-as-gap", &["entries are missing"]),
        own("snapshot-before-log", &[DOES_NOT_START, UNREADABLE]),
        // A node that has forgotten what it acknowledged may panic instead: openraft checks that commits never go back.
        own("acknowledges-before-flush", &and(&[PANIC])),
        jepsens("deposed-leader-expires", &[NO_EARLY_END.name, CLUSTER_TIME.name]),
        jepsens("detaches-newer", &[NO_EARLY_END.name]),
        jepsens("exclusive-beside-shared", &[EXCLUSION.name]),
        jepsens("forgets-ends", &[ONE_GRANT_PER_LEASE.name]),
        jepsens("forgets-votes", &and(&[PANIC, DOES_NOT_START, NOBODY_LEADS])),
        jepsens("grants-late-waiters", &[NO_LATE_WAITER.name]),
        jepsens("lets-wiped-node-in", &and(&[PANIC])),
        jepsens("reads-locally", &[LINEARIZABLE_READS.name]),
        jepsens("reads-unconfirmed", &[LINEARIZABLE_READS.name]),
        jepsens("releases-nothing", &[LINEARIZABLE_READS.name, NO_GRANT_LOST.name, BOUNDED_END.name]),
        jepsens("renews-nothing", &[NO_EARLY_END.name]),
        jepsens("repeat-grants-twice", &[ONE_GRANT_PER_LEASE.name]),
        jepsens("revision-left-out-of-snapshot", &[TOKENS.name, EQUAL_STATES.name, DIVERGES]),
        jepsens("sets-first-key-alone", &[WHOLE_SETS.name]),
        jepsens("shared-overtakes", &[QUEUE_ORDER.name]),
        jepsens("tokens-start-anew", &[TOKENS.name, DIVERGES]),
        jepsens("unknown-as-not-done", &[NO_GRANT_LOST.name, NO_EARLY_END.name]),
        own("stuck-leader-stays", &[NOTHING_COMMITS]),
        own("keeps-log-for-slow-node", &[LOG_FILLS_MEMORY]),
        own("believes-what-was-turned-back", &and(&[PANIC, FORGETFUL_SERVES, CONNECTS_ALL_THE_TIME])),
        own("lets-second-process-in", &and(&[PANIC, BOTH_SERVE, NOBODY_LEADS])),
        own("takes-a-frozen-member-for-moved", &[CONDEMNED, BOTH_SERVE]),
        own("uncallable-leader-stays", &[NOBODY_SERVES]),
        own("delivers-once", &[LAGS_FOR_EVER]),
        own("raises-no-revision", &[TOKENS.name, GRANTED_TOKENS.name]),
        own("clock-runs-ahead", &[ENDS_LATE]),
        own("logs-no-time", &[TIME_LAGS, BOUNDED_END.name]),
        own("gives-up-votes-early", &[NOBODY_LEADS]),
        own("conditions-unchecked", &[WHOLE_SETS.name]),
        own("answers-from-the-old-copy", &[LINEARIZABLE_READS.name, NO_GRANT_LOST.name]),
        own("never-takes-back", &[TAKEN_BACK.name]),
        own("openraft-commits-without-quorum", &and(&[PANIC])),
        own("openraft-commits-uncompared", &and(&[PANIC, DOES_NOT_START, UNREADABLE])),
    ]
}

/// Builds and hunts all mutants, and says of each on `out` what came of it. One is hunted while the next is built.
pub fn run_mutants(options: &MutantsOptions, out: &mut (impl Write + Send)) -> anyhow::Result<ExitCode> {
    if let Some(name) = &options.hunt {
        let hunted = hunt(name, options.first_seed(), options.minutes)?;
        writeln!(out, "{}", serde_json::to_string(&hunted)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_wanted = |hunt: &Hunt| options.only.as_ref().is_none_or(|only| hunt.name.contains(only));
    let control = Hunt { name: CONTROL, is_jepsens: false, laws: Vec::new() };
    let wanted: Vec<Hunt> = [control].into_iter().chain(table()).filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "--only: no mutant has a name that contains this");
    writeln!(
        out,
        "| mutant | | by | simulated hours | seeds | seed | minutes |\n|---|---|---|--:|--:|--:|--:|"
    )?;
    out.flush()?;
    thread::scope(|scope| {
        let (built, to_hunt) = mpsc::sync_channel::<(&Hunt, PathBuf)>(0);
        let hunter = scope.spawn(move || {
            let mut all_well = true;
            for (hunt, program) in to_hunt {
                all_well &= hunt.report(&program, options, out)?;
            }
            Ok(ExitCode::from(u8::from(!all_well)))
        });
        for hunt in &wanted {
            let program = ringfence_patched::build_in(
                PROFILE,
                FLAGS,
                "ringfence-sim",
                hunt.patch()?.as_deref().as_slice(),
            )?;
            if built.send((hunt, program)).is_err() {
                // The hunter has failed.
                break;
            }
        }
        drop(built);
        hunter.join().expect("the hunter returns its errors")
    })
}

/// A finding as one cell of a table.
fn short(finding: &str) -> String {
    let line = finding.lines().next().unwrap_or_default().replace('|', "/");
    match line.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

impl MutantsOptions {
    fn first_seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| fastrand::u64(..) >> 20)
    }
}

impl Hunt {
    /// The patch; `None`: this is the control.
    fn patch(&self) -> anyhow::Result<Option<PathBuf>> {
        let folder = if self.is_jepsens { "../jepsen/mutants" } else { "mutants" };
        let patch = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(format!("{}.patch", self.name));
        Ok((self.name != CONTROL).then(|| patch.canonicalize()).transpose()?)
    }

    /// Hunts, and writes a line of the table; returns whether it came out as it should.
    fn report(&self, program: &Path, options: &MutantsOptions, out: &mut impl Write) -> anyhow::Result<bool> {
        let began = Instant::now();
        let failed = |error: anyhow::Error| Hunted { other: Some(format!("{error:#}")), ..Hunted::default() };
        let hunted = self.follow(program, options).unwrap_or_else(failed);
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        let (word, is_well) = match (&hunted.caught, &hunted.other) {
            (None, None) if self.name == CONTROL => ("valid", true),
            (Some(_), _) => ("caught", true),
            (None, Some(_)) => ("OTHERWISE", false),
            (None, None) => ("NOT CAUGHT", false),
        };
        let (seed, by) = match (&hunted.caught, &hunted.other) {
            (Some((seed, what)), _) => (seed.to_string(), what.as_str()),
            (None, other) => (String::new(), other.as_deref().unwrap_or_default()),
        };
        let (name, by, hours) = (self.name, short(by), hunted.simulated.as_secs_f64() / 3_600.0);
        writeln!(out, "| {name} | {word} | {by} | {hours:.2} | {} | {seed} | {minutes:.1} |", hunted.runs)?;
        out.flush()?;
        Ok(is_well)
    }

    /// Runs the hunt in a process of its own: a mutant may hang, or end it.
    fn follow(&self, program: &Path, options: &MutantsOptions) -> anyhow::Result<Hunted> {
        let mut command = Command::new(program);
        command.args(["mutants", "--hunt", self.name]);
        command.args([
            "--minutes",
            &options.minutes.to_string(),
            "--seed",
            &options.first_seed().to_string(),
        ]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.context("cannot run the mutant")?;
        let (began, most) = (Instant::now(), Duration::from_secs_f64(options.minutes * 60.0) + LAST_RUN);
        while child.try_wait()?.is_none() {
            if began.elapsed() > most {
                child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let output = child.wait_with_output()?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{} has ended without a result: {}", self.name, output.status))
    }
}

/// Plays fresh seeds until a finding counts, or the time is over.
fn hunt(name: &str, first: u64, minutes: f64) -> anyhow::Result<Hunted> {
    let laws = table().into_iter().find(|hunt| hunt.name == name).map(|hunt| hunt.laws).unwrap_or_default();
    let began = Instant::now();
    let mut hunted = Hunted::default();
    for seed in first.. {
        if began.elapsed().as_secs_f64() > minutes * 60.0 {
            break;
        }
        let outcome = run(&Plan::draw(seed), false);
        hunted.runs += 1;
        hunted.simulated += Duration::from_millis(outcome.simulated);
        let counts = |finding: &&String| laws.iter().any(|law| finding.contains(law));
        if let Some(finding) = outcome.findings.iter().find(counts) {
            hunted.caught = Some((seed, finding.clone()));
            break;
        }
        if let Some(finding) = outcome.findings.first() {
            hunted.other.get_or_insert_with(|| format!("{seed}: {finding}"));
        }
    }
    Ok(hunted)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn every_patch_has_a_hunt_and_applies() {
        let mut own = BTreeSet::new();
        for hunt in table() {
            assert!(!hunt.laws.is_empty(), "{}", hunt.name);
            let patch = hunt.patch().unwrap().unwrap();
            ringfence_patched::check(&patch).unwrap();
            own.insert(patch);
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutants");
        for file in fs::read_dir(folder).unwrap() {
            let patch = file.unwrap().path().canonicalize().unwrap();
            assert!(own.contains(&patch), "{} has no hunt", patch.display());
        }
    }
}
