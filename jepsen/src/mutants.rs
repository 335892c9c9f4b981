//! Mutants: builds of the product with one deliberate bug each. They test the checkers.
//!
//! A mutant is a patch, `jepsen/mutants/NAME.patch`, and a [`Hunt`] of the same name: the workload, the faults and the laws
//! that detect the bug. It counts as caught only if one of those laws is broken. Runs without a patch, built the same way,
//! must be valid: so the bug was detected, not the build. A bug that only an upgrade shows is [rolled](Play::Roll) out.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, bail, ensure};
use ringfence_laws::check::answers::{LINEARIZABLE_READS, NO_GRANT_LOST};
use ringfence_laws::check::causes::{BOUNDED_END, NO_EARLY_END};
use ringfence_laws::check::clock::CLUSTER_TIME;
use ringfence_laws::check::exclusion::EXCLUSION;
use ringfence_laws::check::mirror::{
    BEFORE_ANSWER, MIRROR_EQUAL_AT_END, MIRROR_NEVER_AHEAD, MIRROR_NEVER_FALLS,
};
use ringfence_laws::check::nodes::{EQUAL_STATES, NO_PANIC};
use ringfence_laws::check::queues::{NO_LATE_WAITER, QUEUE_ORDER};
use ringfence_laws::check::repeats::ONE_GRANT_PER_LEASE;
use ringfence_laws::check::tokens::TOKENS;
use ringfence_laws::check::transactions::WHOLE_SETS;
use ringfence_laws::check::{Checker, Verdict};
use ringfence_patched::workspace;
use tokio::time::Instant;

use crate::nemesis::{self, Nemesis};
use crate::run::{RunOptions, run};
use crate::suite::Common;
use crate::upgrade;
use crate::workload::Workload;

/// How long the hunt for one mutant may take.
const CAUGHT_WITHIN: Duration = Duration::from_secs(300);
/// Duration of the load and the faults of one run.
const TIME: Duration = Duration::from_secs(25);

/// A new leader raises the revision, which hides that a numbering starts anew. Where the first revision is low, none does.
const NO_FLOORS: &[&str] = &["--first-revision=1"];
/// Without the sweep, which would repair what a bug wrote to Redis.
const NO_SWEEP: &[&str] = &["--mirror-sweep-keys-per-s=0"];

/// How a hunt plays a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Play {
    /// All nodes have it, under faults.
    Run,
    /// The nodes are upgraded to it, one by one, with the next version of the rules.
    Roll,
}

/// Options of all runs.
#[derive(Debug, clap::Args)]
pub struct MutantsOptions {
    /// Only mutants whose names contain this
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Of all runs.
    #[command(flatten)]
    pub common: Common,
}

/// How to detect a mutant.
struct Hunt {
    /// The name of the mutant.
    mutant: &'static str,
    play: Play,
    workload: Workload,
    nemeses: &'static [Nemesis],
    /// The number of clients, and their calls per second in total. `None`: the default of the workload, and the option.
    concurrency: Option<u32>,
    rate: Option<u32>,
    /// More arguments of `ringfence serve`.
    arguments: &'static [&'static str],
    /// Whether grants wait for the mirror, if there is one.
    before_answer: bool,
    /// At least one of these must be broken.
    laws: Vec<&'static Checker>,
}

/// The outcome of a hunt.
struct Caught {
    /// The laws that were broken in the last run.
    broken: Vec<String>,
    /// The first breach, in words.
    what: String,
    by_expected: bool,
    runs: u32,
    took: Duration,
}

/// Builds and hunts all mutants, and reports each on `out`. Returns the exit code: 0 if each was caught and the runs without
/// a patch were valid, else 1.
pub async fn run_mutants(options: &MutantsOptions, out: &mut impl Write) -> anyhow::Result<u8> {
    let is_wanted = |hunt: &Hunt| options.only.as_ref().is_none_or(|only| hunt.mutant.contains(only));
    let wanted: Vec<Hunt> = hunts()?.into_iter().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "--only: no mutant has a name that contains this");
    writeln!(
        out,
        "seed {}; each run is stored below {}",
        options.common.seed,
        options.common.store.display()
    )?;
    let mut all_well = true;
    if options.only.is_none() {
        let program = ringfence_patched::build("ringfence", &[])?;
        for workload in [Workload::Lease, Workload::Mirror, Workload::Queue, Workload::Resp] {
            let hunt = hunt("no-mutant", workload, &[Nemesis::Kill, Nemesis::Partition], Vec::new());
            let (_, results) = run(&hunt.options_of_run(&program, options, options.common.seed)).await?;
            writeln!(out, "no mutant, {workload}: {:?}", results.verdict)?;
            all_well &= results.verdict == Verdict::Valid;
        }
        let next = upgrade::with_patch(upgrade::NEXT_RULES)?;
        let (_, results) =
            upgrade::roll(&next, options.common.seed, options.common.rate, &options.common.store).await?;
        writeln!(out, "no mutant, {}: {:?}", nemesis::UPGRADE, results.verdict)?;
        all_well &= results.verdict == Verdict::Valid;
    }
    writeln!(out, "\n{:<30} {:<10} {:>5} {:>6}  by", "mutant", "", "runs", "after")?;
    for hunt in &wanted {
        let program = hunt.build()?;
        let Caught { broken, what, by_expected, runs, took } = hunt.go(&program, options).await?;
        all_well &= by_expected;
        let went = match (by_expected, broken.is_empty()) {
            (true, _) => "caught",
            (false, false) => "OTHERWISE",
            (false, true) => "NOT CAUGHT",
        };
        let (name, took) = (hunt.mutant, took.as_secs());
        writeln!(out, "{name:<30} {went:<10} {runs:>5} {took:>4} s  {}", broken.join(", "))?;
        if !what.is_empty() {
            writeln!(out, "{:<30} {what}", "")?;
        }
        if !by_expected {
            let expected: Vec<&str> = hunt.laws.iter().map(|law| law.name).collect();
            writeln!(out, "{:<30} expected: {}", "", expected.join(", "))?;
        }
        out.flush()?;
    }
    Ok(u8::from(!all_well))
}

/// The hunts for all mutants. Fails if a patch has no hunt, or a hunt has no patch.
fn hunts() -> anyhow::Result<Vec<Hunt>> {
    let hunts = table();
    let hunted = hunts.iter().map(Hunt::patch).collect::<Result<BTreeSet<_>, _>>()?;
    let folder = folder()?;
    let patches = fs::read_dir(&folder)
        .and_then(|files| files.map(|file| Ok(file?.path())).collect::<io::Result<BTreeSet<_>>>())
        .with_context(|| format!("cannot read {}", folder.display()))?;
    if let Some(patch) = patches.difference(&hunted).next() {
        bail!("{} has no hunt in jepsen/src/mutants.rs", patch.display());
    }
    if let Some(patch) = hunted.difference(&patches).next() {
        bail!("a hunt in jepsen/src/mutants.rs has no {}", patch.display());
    }
    Ok(hunts)
}

fn folder() -> anyhow::Result<PathBuf> {
    Ok(workspace()?.join("jepsen/mutants"))
}

impl Hunt {
    fn patch(&self) -> anyhow::Result<PathBuf> {
        Ok(folder()?.join(format!("{}.patch", self.mutant)))
    }

    fn build(&self) -> anyhow::Result<PathBuf> {
        let patch = self.patch()?;
        match self.play {
            Play::Run => ringfence_patched::build("ringfence", &[&patch]),
            Play::Roll => {
                ringfence_patched::build("ringfence", &[&upgrade::path_of(upgrade::NEXT_RULES)?, &patch])
            }
        }
    }

    async fn go(&self, program: &Path, options: &MutantsOptions) -> anyhow::Result<Caught> {
        let began = Instant::now();
        let mut seed = options.common.seed;
        let (mut runs, mut broken, mut what) = (0, Vec::new(), String::new());
        let mut by_expected = false;
        while !by_expected && began.elapsed() < CAUGHT_WITHIN {
            let run_options = self.options_of_run(program, options, seed);
            runs += 1;
            seed += 1;
            let ran = match self.play {
                Play::Run => run(&run_options).await,
                Play::Roll => {
                    upgrade::roll(program, run_options.seed, run_options.rate, &run_options.folder).await
                }
            };
            match ran {
                Ok((_, results)) => {
                    let invalid: Vec<_> =
                        results.laws.iter().filter(|law| law.verdict == Verdict::Invalid).collect();
                    let expected = invalid.iter().find(|law| self.laws.iter().any(|it| it.name == law.name));
                    by_expected = expected.is_some();
                    if let Some(law) = expected.or(invalid.first()) {
                        broken = invalid.iter().map(|law| law.name.clone()).collect();
                        what =
                            law.found.breaches.first().map(|breach| breach.what.clone()).unwrap_or_default();
                    }
                }
                // Some mutants do not even start.
                Err(error) => what = format!("a run failed: {error:#}"),
            }
        }
        Ok(Caught { broken, what, by_expected, runs, took: began.elapsed() })
    }

    fn options_of_run(&self, program: &Path, options: &MutantsOptions, seed: u64) -> RunOptions {
        // An odd seed makes grants wait for the mirror.
        let seed = (seed << 1) | u64::from(self.before_answer);
        RunOptions {
            program: program.to_owned(),
            nodes: 3,
            workload: self.workload,
            nemeses: self.nemeses.to_vec(),
            time: TIME,
            seed,
            rate: self.rate.unwrap_or(options.common.rate),
            concurrency: self.concurrency,
            no_root: options.common.no_root,
            arguments: NO_FLOORS.iter().chain(self.arguments).map(|&argument| argument.to_owned()).collect(),
            folder: options.common.store.join(format!("{}-{}-{seed}", self.mutant, self.workload)),
        }
    }
}

fn hunt(
    mutant: &'static str,
    workload: Workload,
    nemeses: &'static [Nemesis],
    laws: Vec<&'static Checker>,
) -> Hunt {
    Hunt {
        mutant,
        play: Play::Run,
        workload,
        nemeses,
        concurrency: None,
        rate: None,
        arguments: &[],
        before_answer: false,
        laws,
    }
}

/// One hunt per mutant.
fn table() -> Vec<Hunt> {
    use Nemesis::{
        Kill, LeaderPause, LoneLeader, Partition, Pause, PowerCut, RedisStop, Transfer, WallClock, Wipe,
    };
    use Workload::{Client, Lease, Mirror, Queue, Resp};
    // A kill loses only what was not even written: about one in a hundred kills detects the bug.
    let cut: &[_] = if PowerCut.suits(true).is_ok() { &[PowerCut] } else { &[Kill] };
    vec![
        hunt("acknowledges-before-flush", Lease, cut, vec![&NO_GRANT_LOST, &TOKENS]),
        // A node that does not vote twice may panic instead: openraft refuses a vote that is older than the log.
        hunt(
            "forgets-votes",
            Lease,
            &[Kill, Partition],
            vec![&NO_GRANT_LOST, &TOKENS, &EQUAL_STATES, &NO_PANIC],
        ),
        hunt("expires-by-wall-clock", Lease, &[WallClock], vec![&NO_EARLY_END, &CLUSTER_TIME]),
        hunt("deposed-leader-expires", Lease, &[Partition, Transfer], vec![&NO_EARLY_END, &CLUSTER_TIME]),
        Hunt {
            arguments: &["--snapshot-after-bytes=32768"],
            ..hunt("revision-left-out-of-snapshot", Lease, &[Kill], vec![&TOKENS, &EQUAL_STATES])
        },
        hunt("tokens-start-anew", Lease, &[Kill, Transfer], vec![&TOKENS]),
        hunt("reads-locally", Lease, &[Partition], vec![&LINEARIZABLE_READS]),
        hunt("reads-unconfirmed", Lease, &[Partition, Pause], vec![&LINEARIZABLE_READS]),
        hunt("repeat-grants-twice", Lease, &[], vec![&ONE_GRANT_PER_LEASE]),
        hunt("forgets-ends", Lease, &[], vec![&ONE_GRANT_PER_LEASE]),
        hunt("releases-nothing", Lease, &[], vec![&LINEARIZABLE_READS, &NO_GRANT_LOST, &BOUNDED_END]),
        hunt("renews-nothing", Lease, &[], vec![&NO_EARLY_END]),
        hunt("detaches-newer", Lease, &[], vec![&NO_EARLY_END]),
        hunt("grants-late-waiters", Queue, &[Pause], vec![&NO_LATE_WAITER]),
        hunt("shared-overtakes", Lease, &[], vec![&QUEUE_ORDER]),
        hunt("exclusive-beside-shared", Lease, &[], vec![&EXCLUSION]),
        // Each client waits for its pending call, so only many clients leave many calls with the lone leader.
        Hunt {
            concurrency: Some(48),
            ..hunt("unknown-as-not-done", Lease, &[LoneLeader], vec![&NO_GRANT_LOST, &NO_EARLY_END])
        },
        // A leader that was paused during an election then writes the changes that it had in hand. So there must be some,
        // and no sweep that repairs the hash before it is read.
        Hunt {
            arguments: NO_SWEEP,
            concurrency: Some(24),
            rate: Some(400),
            ..hunt("mirrors-blindly", Mirror, &[LeaderPause], vec![&MIRROR_NEVER_FALLS])
        },
        hunt("mirrors-later-fences", Mirror, &[], vec![&MIRROR_NEVER_AHEAD]),
        Hunt { before_answer: true, ..hunt("mirrored-unseen", Mirror, &[RedisStop], vec![&BEFORE_ANSWER]) },
        Hunt { arguments: NO_SWEEP, ..hunt("mirrors-no-ends", Mirror, &[], vec![&MIRROR_EQUAL_AT_END]) },
        hunt("sets-first-key-alone", Resp, &[], vec![&WHOLE_SETS]),
        hunt("lets-wiped-node-in", Lease, &[Wipe, Kill], vec![&NO_PANIC, &NO_GRANT_LOST]),
        // Nodes of the older program stop by themselves, which counts for this law.
        Hunt { play: Play::Roll, ..hunt("proposes-too-new", Client, &[], vec![&NO_PANIC]) },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_laws::history::About;

    /// If the old lines of a hunk occurred twice, it could apply in the wrong place.
    #[test]
    fn every_patch_has_a_hunt_and_applies_in_one_place() {
        for hunt in hunts().unwrap() {
            let patch = hunt.patch().unwrap();
            ringfence_patched::check(&patch).unwrap();
            for (file, old) in old_lines(&fs::read_to_string(&patch).unwrap()) {
                let source = fs::read_to_string(workspace().unwrap().join(file)).unwrap();
                assert_eq!(source.matches(&old).count(), 1, "{}: these lines of {file}:\n{old}", hunt.mutant);
            }
        }
    }

    /// The file of each hunk, and what it replaces there.
    fn old_lines(patch: &str) -> Vec<(&str, String)> {
        let (mut file, mut hunks) = ("", Vec::new());
        for line in patch.split_inclusive('\n') {
            if let Some(path) = line.strip_prefix("--- a/") {
                file = path.trim_end();
            } else if line.starts_with("@@ ") {
                hunks.push((file, String::new()));
            } else if let (Some((_, old)), Some(kept)) = (hunks.last_mut(), line.strip_prefix([' ', '-'])) {
                *old += kept;
            }
        }
        hunks
    }

    #[test]
    fn every_hunt_expects_laws_that_are_checked_in_its_workload() {
        let store = "store".into();
        let common = Common { seed: 7, rate: 60, no_root: false, store };
        let options = MutantsOptions { only: None, common };
        for hunt in table() {
            let run = hunt.options_of_run("ringfence".as_ref(), &options, 7);
            let nemeses = run.nemeses.iter().map(Nemesis::to_string).collect();
            let judged = run.workload.laws(&About { seed: run.seed, nemeses, ..About::default() });
            assert!(!hunt.laws.is_empty(), "{}", hunt.mutant);
            for law in &hunt.laws {
                assert!(judged.iter().any(|it| it.name == law.name), "{}: {}", hunt.mutant, law.name);
            }
        }
    }
}
