//! The command line of the simulator.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use ringfence_laws::store;
use ringfence_sim::mutants::{MutantsOptions, run_mutants};
use ringfence_sim::plan::Plan;
use ringfence_sim::regressions::{self, Regression};
use ringfence_sim::run::{Outcome, collect_panics, grants, judge_history, run};
use ringfence_sim::shrink::shrink;
use ringfence_sim::swarm::Swarm;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Something contradicts the laws.
const FOUND: u8 = 1;
/// Nothing does, but something was not exercised.
const NOT_EXERCISED: u8 = 2;

/// Runs whole clusters in simulated time, and judges what clients saw.
///
/// Exits with 1 if a run contradicts the laws, and with 2 if nothing does but something was not exercised.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One run
    Run {
        #[command(flatten)]
        one: One,
        /// Tell every message and every operation of a disk
        #[arg(long)]
        trace: bool,
        /// Write the history into a folder below this one, as ringfence-jepsen does
        #[arg(long)]
        store: Option<PathBuf>,
    },
    /// The runs that once failed, from sim/regressions
    Regressions,
    /// Runs with fresh seeds, for some minutes, until one fails
    Swarm {
        /// For how long; up to four times as long while something was not exercised
        #[arg(long, default_value_t = 2.0)]
        minutes: f64,
        /// The first seed [default: drawn]
        #[arg(long)]
        seed: Option<u64>,
        /// How many runs are played at once
        #[arg(long, default_value_t = 1)]
        jobs: usize,
    },
    /// Look for a smaller plan that fails like this one
    Shrink {
        #[command(flatten)]
        one: One,
        /// For how long
        #[arg(long, default_value_t = 5.0)]
        minutes: f64,
        /// Where the plan is written
        #[arg(long, default_value = "plan.json")]
        into: PathBuf,
    },
    /// Hunts deliberate bugs
    Mutants(MutantsOptions),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct One {
    /// The seed of the run
    #[arg(long)]
    seed: Option<u64>,
    /// A file with the plan of the run, as JSON
    #[arg(long)]
    plan: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    collect_panics();
    match Arguments::parse().command {
        Command::Mutants(options) => run_mutants(&options, &mut std::io::stdout()),
        Command::Run { one, trace, store } => play_one(&one.plan()?, trace, store.as_deref()),
        Command::Regressions => play_regressions(),
        Command::Swarm { minutes, seed, jobs } => {
            Ok(play_many(Duration::from_secs_f64(minutes * 60.0), seed, jobs))
        }
        Command::Shrink { one, minutes, into } => {
            play_smaller(one.plan()?, Duration::from_secs_f64(minutes * 60.0), &into)
        }
    }
}

impl One {
    fn plan(&self) -> anyhow::Result<Plan> {
        let Some(path) = &self.plan else {
            return Ok(Plan::draw(self.seed.context("a seed or a plan is required")?));
        };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no plan", path.display()))
    }
}

fn to_json(plan: &Plan) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(plan)?)
}

fn play_one(plan: &Plan, is_full: bool, folder: Option<&Path>) -> anyhow::Result<ExitCode> {
    let outcome = run(plan, is_full);
    let mut lines: Vec<_> = outcome.story.iter().cloned().chain(grants(&outcome.history)).collect();
    lines.sort_by_key(|line| line.at);
    lines.iter().for_each(|line| say(&line.to_string()));
    say(&outcome.coverage.to_string());
    tell(plan.seed, &outcome);
    say(&format!("seed {}: {} s, digest {:016x}", plan.seed, outcome.simulated / 1_000, outcome.digest));
    if let Some(folder) = folder {
        let folder = folder.join(format!("seed-{}", plan.seed));
        store::write(&folder, &outcome.history, &judge_history(&outcome.history))?;
        say(&format!("the page of the run is {}", folder.join("index.html").display()));
    }
    Ok(code(outcome.findings.len(), &outcome.coverage.missing_of_one()))
}

fn play_regressions() -> anyhow::Result<ExitCode> {
    let mut failed = 0;
    for (name, Regression { showed, plan }) in regressions::all()? {
        let outcome = run(&plan, false);
        failed += usize::from(!outcome.findings.is_empty());
        outcome.findings.iter().for_each(|finding| say(&format!("{name}: {finding}")));
        say(&format!("{name}: played again; once: {showed}"));
    }
    Ok(code(failed, &[]))
}

fn play_many(time: Duration, seed: Option<u64>, jobs: usize) -> ExitCode {
    let first = seed.unwrap_or_else(|| fastrand::u64(..) >> 20);
    let began = Instant::now();
    let total = Swarm { first, time, jobs }.play(tell);
    let (hours, took) = (total.simulated as f64 / 3.6e6, began.elapsed().as_secs_f64());
    say(&total.coverage.to_string());
    say(&format!(
        "{} runs from seed {first}, {} failed, {hours:.1} hours of clusters in {took:.0} s: {:.0} times real time",
        total.runs,
        total.failed,
        hours * 3_600.0 / took
    ));
    code(total.failed as usize, &total.coverage.missing_of_many())
}

fn play_smaller(plan: Plan, within: Duration, into: &Path) -> anyhow::Result<ExitCode> {
    let first = run(&plan, false);
    let Some(finding) = first.findings.first() else {
        say(&format!("seed {} does not fail", plan.seed));
        return Ok(ExitCode::SUCCESS);
    };
    let (began, mut tried) = (Instant::now(), 0);
    let small = shrink(plan, |plan| {
        tried += 1;
        began.elapsed() < within
            && run(plan, false).findings.first().is_some_and(|it| kind(it) == kind(finding))
    });
    std::fs::write(into, to_json(&small)?).with_context(|| format!("cannot write {}", into.display()))?;
    small.faults.iter().for_each(|fault| say(&format!("{:>9} {}", fault.at, fault.what)));
    let (faults, clients, seconds) = (small.faults.len(), small.load.clients, small.time / 1_000);
    say(&format!(
        "{faults} faults, {clients} clients and {seconds} s are left after {tried} tries: {finding}"
    ));
    say(&format!("sim/run run --plan {} --trace", into.display()));
    Ok(ExitCode::from(FOUND))
}

/// What a finding is about: its beginning, without numbers.
fn kind(finding: &str) -> String {
    finding.chars().filter(|char| !char.is_ascii_digit()).take(24).collect()
}

fn code(failed: usize, missing: &[&str]) -> ExitCode {
    if failed > 0 {
        return ExitCode::from(FOUND);
    }
    if !missing.is_empty() {
        say(&format!("not exercised: {}", missing.join(", ")));
        return ExitCode::from(NOT_EXERCISED);
    }
    ExitCode::SUCCESS
}

fn tell(seed: u64, outcome: &Outcome) {
    if outcome.findings.is_empty() {
        return;
    }
    outcome.findings.iter().for_each(|finding| say(&format!("seed {seed}: {finding}")));
    say(&format!("again: sim/run run --seed {seed} --trace; smaller: sim/run shrink --seed {seed}"));
}

#[allow(clippy::print_stdout, reason = "this is its output")]
fn say(line: &str) {
    println!("{line}");
}
