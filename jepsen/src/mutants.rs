//! Mutants: the product with a deliberate bug. Each is run until the checker that exists for its bug has found it, or the time
//! is over.
//!
//! A mutant is a patch, `jepsen/mutants/NAME.patch`, and a [`Hunt`] by its name. It counts as caught only by a law that was
//! expected to be broken, for the checkers are under test here. A run of the clean tree, built in the same way, shows that
//! they find the bugs, and nothing else.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, bail, ensure};
use tokio::time::Instant;

use crate::check::answers::{LINEARIZABLE_READS, NO_GRANT_LOST};
use crate::check::causes::{BOUNDED_END, NO_EARLY_END};
use crate::check::clock::CLUSTER_TIME;
use crate::check::exclusion::EXCLUSION;
use crate::check::mirror::{BEFORE_ANSWER, MIRROR_EQUAL_AT_END, MIRROR_NEVER_AHEAD, MIRROR_NEVER_FALLS};
use crate::check::nodes::{EQUAL_STATES, NO_PANIC};
use crate::check::queues::{NO_LATE_WAITER, QUEUE_ORDER};
use crate::check::repeats::ONE_GRANT_PER_LEASE;
use crate::check::tokens::TOKENS;
use crate::check::{Checker, Verdict};
use crate::nemesis::Nemesis;
use crate::patched;
use crate::program::workspace;
use crate::run::{RunOptions, run};
use crate::workload::Workload;

/// How long a mutant may go unnoticed.
const CAUGHT_WITHIN: Duration = Duration::from_secs(300);
/// How long load and faults of one run go on.
const TIME: Duration = Duration::from_secs(25);

/// The mirror compares nothing on its own account, as long as all goes well.
const NO_SWEEP: &[&str] = &["--mirror-sweep-keys-per-s=0"];

/// What all runs have in common.
#[derive(Clone, Debug)]
pub struct MutantsOptions {
    /// From which all schedules come.
    pub seed: u64,
    /// Calls in a second.
    pub rate: u32,
    /// Only the mutants with this in their names.
    pub only: Option<String>,
    /// Goes without what only root may do.
    pub no_root: bool,
    /// Where each run gets a folder.
    pub store: PathBuf,
}

/// How a mutant is looked for.
struct Hunt {
    /// The name of the mutant.
    mutant: &'static str,
    workload: Workload,
    nemeses: &'static [Nemesis],
    /// How many processes, and how many calls in a second over all of them; `None` for what suits the load, and for what
    /// was asked for.
    concurrency: Option<u32>,
    rate: Option<u32>,
    /// More arguments of `ringfence serve`.
    arguments: &'static [&'static str],
    /// Whether answers wait for the mirror, where there is one.
    before_answer: bool,
    /// The laws of which one at least has to be found broken.
    laws: Vec<&'static Checker>,
}

/// What became of it.
struct Caught {
    /// The laws that were found broken in the last run.
    broken: Vec<String>,
    /// What was found first, in plain words.
    what: String,
    by_expected: bool,
    runs: u32,
    took: Duration,
}

/// Runs all mutants; tells of each on `out`. Gives the exit code: 0 where each was caught and the run without any was valid,
/// 1 else.
pub async fn run_mutants(options: &MutantsOptions, out: &mut impl Write) -> anyhow::Result<u8> {
    let is_wanted = |hunt: &Hunt| options.only.as_ref().is_none_or(|only| hunt.mutant.contains(only));
    let wanted: Vec<Hunt> = hunts()?.into_iter().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "--only: no mutant has this in its name");
    writeln!(out, "seed {}; each run is stored below {}", options.seed, options.store.display())?;
    let mut all_well = true;
    if options.only.is_none() {
        let program = patched::build("ringfence", None)?;
        for workload in [Workload::Lease, Workload::Mirror] {
            let hunt = hunt("no-mutant", workload, &[Nemesis::Kill, Nemesis::Partition], Vec::new());
            let (_, results) = run(&hunt.run(&program, options, options.seed)).await?;
            writeln!(out, "no mutant, {workload}: {:?}", results.verdict)?;
            all_well &= results.verdict == Verdict::Valid;
        }
    }
    writeln!(out, "\n{:<30} {:<10} {:>5} {:>6}  by", "mutant", "", "runs", "after")?;
    for hunt in &wanted {
        let program = patched::build("ringfence", Some(&hunt.patch()?))?;
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

/// The hunts for all mutants. It is an error if a patch has no hunt, or a hunt no patch.
fn hunts() -> anyhow::Result<Vec<Hunt>> {
    let hunts = table();
    let looked_for = hunts.iter().map(Hunt::patch).collect::<Result<BTreeSet<_>, _>>()?;
    let folder = folder()?;
    let patches = fs::read_dir(&folder)
        .and_then(|files| files.map(|file| Ok(file?.path())).collect::<io::Result<BTreeSet<_>>>())
        .with_context(|| format!("cannot read {}", folder.display()))?;
    if let Some(patch) = patches.difference(&looked_for).next() {
        bail!("{}: no hunt in jepsen/src/mutants.rs is for this mutant", patch.display());
    }
    if let Some(patch) = looked_for.difference(&patches).next() {
        bail!("there is a hunt for a mutant, but no {}", patch.display());
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

    async fn go(&self, program: &Path, options: &MutantsOptions) -> anyhow::Result<Caught> {
        let began = Instant::now();
        let mut seed = options.seed;
        let (mut runs, mut broken, mut what) = (0, Vec::new(), String::new());
        let mut by_expected = false;
        while !by_expected && began.elapsed() < CAUGHT_WITHIN {
            let run_options = self.run(program, options, seed);
            runs += 1;
            seed += 1;
            match run(&run_options).await {
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
                // Some mutants do not live long.
                Err(error) => what = format!("a run failed: {error:#}"),
            }
        }
        Ok(Caught { broken, what, by_expected, runs, took: began.elapsed() })
    }

    fn run(&self, program: &Path, options: &MutantsOptions, seed: u64) -> RunOptions {
        // It is the seed that decides whether answers wait for the mirror.
        let seed = 2 * seed + u64::from(self.before_answer);
        RunOptions {
            program: program.to_owned(),
            nodes: 3,
            workload: self.workload,
            nemeses: self.nemeses.to_vec(),
            time: TIME,
            seed,
            rate: self.rate.unwrap_or(options.rate),
            concurrency: self.concurrency,
            no_root: options.no_root,
            arguments: self.arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: Vec::new(),
            folder: options.store.join(format!("{}-{}-{seed}", self.mutant, self.workload)),
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
        workload,
        nemeses,
        concurrency: None,
        rate: None,
        arguments: &[],
        before_answer: false,
        laws,
    }
}

/// Where each mutant shows, and by which laws.
fn table() -> Vec<Hunt> {
    use Nemesis::{
        Kill, LeaderPause, LoneLeader, Partition, Pause, PowerCut, RedisStop, Transfer, WallClock, Wipe,
    };
    use Workload::{Lease, Mirror, Queue};
    // Killed, a process loses only what it has not even written yet: one in some hundred kills shows it.
    let cut: &[_] = if PowerCut.suits(true).is_ok() { &[PowerCut] } else { &[Kill] };
    vec![
        hunt("acknowledges-before-flush", Lease, cut, vec![&NO_GRANT_LOST, &TOKENS]),
        // Its vote is older than its log then, which openraft does not bear, if the node does not vote twice first.
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
        // What a lone leader has taken waits with who asked for it: so there are many of them.
        Hunt {
            concurrency: Some(48),
            ..hunt("unknown-as-not-done", Lease, &[LoneLeader], vec![&NO_GRANT_LOST, &NO_EARLY_END])
        },
        // A leader that was stopped over the election of another writes what it had in hand: nothing else is to come between.
        // The sweep would repair it before anybody looks. And there has to be something in hand.
        Hunt {
            arguments: NO_SWEEP,
            concurrency: Some(24),
            rate: Some(400),
            ..hunt("mirrors-blindly", Mirror, &[LeaderPause], vec![&MIRROR_NEVER_FALLS])
        },
        hunt("mirrors-later-fences", Mirror, &[], vec![&MIRROR_NEVER_AHEAD]),
        Hunt { before_answer: true, ..hunt("mirrored-unseen", Mirror, &[RedisStop], vec![&BEFORE_ANSWER]) },
        Hunt { arguments: NO_SWEEP, ..hunt("mirrors-no-ends", Mirror, &[], vec![&MIRROR_EQUAL_AT_END]) },
        hunt("lets-wiped-node-in", Lease, &[Wipe, Kill], vec![&NO_PANIC, &NO_GRANT_LOST]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::About;

    /// A mutant is built where its patch stands, and a hunk whose old lines occur twice could go to the wrong place.
    #[test]
    fn every_patch_has_a_hunt_and_applies_in_one_place() {
        for hunt in hunts().unwrap() {
            let patch = hunt.patch().unwrap();
            patched::check(&patch).unwrap();
            for (file, old) in old_lines(&fs::read_to_string(&patch).unwrap()) {
                let source = fs::read_to_string(workspace().unwrap().join(file)).unwrap();
                assert_eq!(
                    source.matches(&old).count(),
                    1,
                    "{}: {file} has these lines:\n{old}",
                    hunt.mutant
                );
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
    fn every_mutant_is_looked_for_by_laws_that_its_workload_is_judged_by() {
        let store = "store".into();
        let options = MutantsOptions { seed: 7, rate: 60, only: None, no_root: false, store };
        for hunt in table() {
            let run = hunt.run("ringfence".as_ref(), &options, 7);
            let nemeses = run.nemeses.iter().map(Nemesis::to_string).collect();
            let judged = run.workload.laws(&About { seed: run.seed, nemeses, ..About::default() });
            assert!(!hunt.laws.is_empty(), "{}", hunt.mutant);
            for law in &hunt.laws {
                assert!(judged.iter().any(|it| it.name == law.name), "{}: {}", hunt.mutant, law.name);
            }
        }
    }
}
