//! The product, built wrong on purpose: each mutant is run until the checker that is there for it has found it, or the time
//! is over.
//!
//! A mutant counts as caught only by a law that was expected to be broken, for it is the checkers that are under test here.
//! And a run without any mutant shows that what is built this way is as right as what is released, so that it is the
//! mutants that are found.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use ringfence_mutant::Mutant;
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
use crate::run::{RunOptions, run};
use crate::workload::Workload;

/// The variable by which the program learns which mutant it is.
const VARIABLE: &str = "RINGFENCE_MUTANT";
/// How long a mutant may go unnoticed.
const CAUGHT_WITHIN: Duration = Duration::from_secs(300);
/// How long load and faults of one run go on.
const TIME: Duration = Duration::from_secs(25);

/// The mirror compares nothing on its own account, as long as all goes well.
const NO_SWEEP: &[&str] = &["--mirror-sweep-keys-per-s=0"];

/// What all runs have in common.
#[derive(Clone, Debug)]
pub struct MutantsOptions {
    /// The program, built with its feature `mutants`.
    pub program: PathBuf,
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

/// Builds the program with its feature `mutants`, beside everything else that is built here, and gives its path.
pub fn build() -> anyhow::Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("jepsen/ is in the workspace")?;
    let target = workspace.join("target/mutants");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace)
        .args(["build", "--quiet", "-p", "ringfence", "--features", "mutants", "--target-dir"])
        .arg(&target)
        // A little faster than a debug build; it does not compile for release.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "cannot build ringfence with its mutants: {status}");
    Ok(target.join("debug/ringfence"))
}

/// Runs all mutants; tells of each on `out`. Gives the exit code: 0 where each was caught and the run without any was valid,
/// 1 else.
pub async fn run_mutants(options: &MutantsOptions, out: &mut impl Write) -> anyhow::Result<u8> {
    let is_wanted = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only));
    ensure!(
        Mutant::ALL.iter().any(|mutant| is_wanted(mutant.name())),
        "--only: no mutant has this in its name"
    );
    writeln!(out, "seed {}; each run is stored below {}", options.seed, options.store.display())?;
    let mut all_well = true;
    if options.only.is_none() {
        for workload in [Workload::Lease, Workload::Mirror] {
            let hunt = hunt_of(workload, &[Nemesis::Kill, Nemesis::Partition]);
            let (_, results) = run(&hunt.run(options, None, options.seed)).await?;
            writeln!(out, "no mutant, {workload}: {:?}", results.verdict)?;
            all_well &= results.verdict == Verdict::Valid;
        }
    }
    writeln!(out, "\n{:<30} {:<10} {:>5} {:>6}  by", "mutant", "", "runs", "after")?;
    for mutant in Mutant::ALL.iter().copied().filter(|mutant| is_wanted(mutant.name())) {
        let hunt = hunt(mutant);
        let caught = hunt.go(mutant, options).await?;
        all_well &= caught.by_expected;
        let Caught { broken, what, by_expected, runs, took } = caught;
        let went = match (by_expected, broken.is_empty()) {
            (true, _) => "caught",
            (false, false) => "OTHERWISE",
            (false, true) => "NOT CAUGHT",
        };
        let (name, took) = (mutant.name(), took.as_secs());
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

impl Hunt {
    async fn go(&self, mutant: Mutant, options: &MutantsOptions) -> anyhow::Result<Caught> {
        let began = Instant::now();
        let mut seed = options.seed;
        let (mut runs, mut broken, mut what) = (0, Vec::new(), String::new());
        let mut by_expected = false;
        while !by_expected && began.elapsed() < CAUGHT_WITHIN {
            let run_options = self.run(options, Some(mutant), seed);
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

    fn run(&self, options: &MutantsOptions, mutant: Option<Mutant>, seed: u64) -> RunOptions {
        // It is the seed that decides whether answers wait for the mirror.
        let seed = 2 * seed + u64::from(self.before_answer);
        let name = mutant.map_or("no-mutant", Mutant::name);
        RunOptions {
            program: options.program.clone(),
            nodes: 3,
            workload: self.workload,
            nemeses: self.nemeses.to_vec(),
            time: TIME,
            seed,
            rate: self.rate.unwrap_or(options.rate),
            concurrency: self.concurrency,
            no_root: options.no_root,
            arguments: self.arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: mutant.map(|_| (VARIABLE.to_owned(), name.to_owned())).into_iter().collect(),
            folder: options.store.join(format!("{name}-{}-{seed}", self.workload)),
        }
    }
}

fn hunt_of(workload: Workload, nemeses: &'static [Nemesis]) -> Hunt {
    Hunt {
        workload,
        nemeses,
        concurrency: None,
        rate: None,
        arguments: &[],
        before_answer: false,
        laws: Vec::new(),
    }
}

/// Where each mutant shows, and by which laws.
fn hunt(mutant: Mutant) -> Hunt {
    use Nemesis::{
        Kill, LeaderPause, LoneLeader, Partition, Pause, PowerCut, RedisStop, Transfer, WallClock, Wipe,
    };
    use Workload::{Lease, Mirror, Queue};
    let by = |workload, nemeses, laws| Hunt { laws, ..hunt_of(workload, nemeses) };
    match mutant {
        // Killed, a process loses only what it has not even written yet: one in some hundred kills shows it.
        Mutant::AcknowledgesBeforeFlush => {
            let nemeses: &[_] = if PowerCut.suits(true).is_ok() { &[PowerCut] } else { &[Kill] };
            by(Lease, nemeses, vec![&NO_GRANT_LOST, &TOKENS])
        }
        // Its vote is older than its log then, which openraft does not bear, if the node does not vote twice first.
        Mutant::ForgetsVotes => {
            by(Lease, &[Kill, Partition], vec![&NO_GRANT_LOST, &TOKENS, &EQUAL_STATES, &NO_PANIC])
        }
        Mutant::ExpiresByWallClock => by(Lease, &[WallClock], vec![&NO_EARLY_END, &CLUSTER_TIME]),
        Mutant::DeposedLeaderExpires => by(Lease, &[Partition, Transfer], vec![&NO_EARLY_END, &CLUSTER_TIME]),
        Mutant::RevisionLeftOutOfSnapshot => Hunt {
            arguments: &["--snapshot-after-bytes=32768"],
            ..by(Lease, &[Kill], vec![&TOKENS, &EQUAL_STATES])
        },
        Mutant::TokensStartAnew => by(Lease, &[Kill, Transfer], vec![&TOKENS]),
        Mutant::ReadsLocally => by(Lease, &[Partition], vec![&LINEARIZABLE_READS]),
        Mutant::ReadsUnconfirmed => by(Lease, &[Partition, Pause], vec![&LINEARIZABLE_READS]),
        Mutant::RepeatGrantsTwice => by(Lease, &[], vec![&ONE_GRANT_PER_LEASE]),
        Mutant::ForgetsEnds => by(Lease, &[], vec![&ONE_GRANT_PER_LEASE]),
        Mutant::ReleasesNothing => by(Lease, &[], vec![&LINEARIZABLE_READS, &NO_GRANT_LOST, &BOUNDED_END]),
        Mutant::RenewsNothing | Mutant::DetachesNewer => by(Lease, &[], vec![&NO_EARLY_END]),
        Mutant::GrantsLateWaiters => by(Queue, &[Pause], vec![&NO_LATE_WAITER]),
        Mutant::SharedOvertakes => by(Lease, &[], vec![&QUEUE_ORDER]),
        Mutant::ExclusiveBesideShared => by(Lease, &[], vec![&EXCLUSION]),
        // What a lone leader has taken waits with who asked for it: so there are many of them.
        Mutant::UnknownAsNotDone => {
            Hunt { concurrency: Some(48), ..by(Lease, &[LoneLeader], vec![&NO_GRANT_LOST, &NO_EARLY_END]) }
        }
        // A leader that was stopped over the election of another writes what it had in hand: nothing else is to come between.
        // The sweep would repair it before anybody looks. And there has to be something in hand.
        Mutant::MirrorsBlindly => Hunt {
            arguments: NO_SWEEP,
            concurrency: Some(24),
            rate: Some(400),
            ..by(Mirror, &[LeaderPause], vec![&MIRROR_NEVER_FALLS])
        },
        Mutant::MirrorsLaterFences => by(Mirror, &[], vec![&MIRROR_NEVER_AHEAD]),
        Mutant::MirroredUnseen => {
            Hunt { before_answer: true, ..by(Mirror, &[RedisStop], vec![&BEFORE_ANSWER]) }
        }
        Mutant::MirrorsNoEnds => Hunt { arguments: NO_SWEEP, ..by(Mirror, &[], vec![&MIRROR_EQUAL_AT_END]) },
        Mutant::LetsWipedNodeIn => by(Lease, &[Wipe, Kill], vec![&NO_PANIC, &NO_GRANT_LOST]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::About;

    #[test]
    fn every_mutant_is_looked_for_by_laws_that_its_workload_is_judged_by() {
        let options = MutantsOptions {
            program: "ringfence".into(),
            seed: 7,
            rate: 60,
            only: None,
            no_root: false,
            store: "store".into(),
        };
        for mutant in Mutant::ALL.iter().copied() {
            let hunt = hunt(mutant);
            let run = hunt.run(&options, Some(mutant), 7);
            let nemeses = run.nemeses.iter().map(Nemesis::to_string).collect();
            let judged = run.workload.laws(&About { seed: run.seed, nemeses, ..About::default() });
            assert!(!hunt.laws.is_empty(), "{}", mutant.name());
            for law in &hunt.laws {
                assert!(judged.iter().any(|it| it.name == law.name), "{}: {}", mutant.name(), law.name);
            }
        }
    }
}
