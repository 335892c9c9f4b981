//! The command line of the harness.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use ringfence_jepsen::grey;
use ringfence_jepsen::mutants::{MutantsOptions, run_mutants};
use ringfence_jepsen::nemesis::Nemesis;
use ringfence_jepsen::run::{RunOptions, judge_and_store, run};
use ringfence_jepsen::suite::{Common, Suite, SuiteOptions, run_suite};
use ringfence_jepsen::upgrade::{self, Course, UpgradeOptions, run_upgrades};
use ringfence_jepsen::workload::Workload;
use ringfence_laws::check::{Results, Verdict};
use ringfence_laws::store;
use ringfence_patched::program;

/// Injects faults into a Ringfence cluster, records every call, and checks the record against the guarantees.
///
/// Exit status: 0 valid, 1 invalid, 2 unknown (something was not exercised or is undecidable), 3 the run itself failed.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one workload with faults, check the result, and store it
    Test(Test),
    /// Run many tests, and print a table of the results
    Suite(Suites),
    /// Run builds of Ringfence that each have one deliberate bug: the checkers must detect it
    Mutants(MutantsOptions),
    /// Upgrade the nodes of a cluster one by one, from an older program and back, and mix both
    Upgrade(Upgrade),
    /// Measure what half-broken environments do to a cluster, against what is promised in each
    ///
    /// Exit status: 0 all promises hold, 1 one is broken, 2 unknown (a fault was not observed), 3 the run itself failed.
    Grey(grey::Options),
    /// Check a stored run again
    Check {
        /// The folder of the run
        folder: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Program {
    /// The program under test [default: built from this workspace]
    #[arg(long)]
    program: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Test {
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    nodes: u64,
    /// What the clients do
    #[arg(long)]
    workload: Workload,
    /// Faults to inject, mixed: one or more, separated by commas
    #[arg(long, value_delimiter = ',')]
    nemesis: Vec<Nemesis>,
    /// Duration of load and faults, in seconds
    #[arg(long, default_value_t = 60)]
    time: u64,
    /// Number of clients [default: depends on the workload]
    #[arg(long)]
    concurrency: Option<u32>,
    /// Additional argument for `ringfence serve`; repeatable
    #[arg(long, allow_hyphen_values = true)]
    argument: Vec<String>,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Suites {
    /// The runs
    suite: Suite,
    /// Seconds per run for `full`, or in total for `soak`
    #[arg(long)]
    time: Option<u64>,
    /// Only runs whose names contain this, such as `lease-3`
    #[arg(long)]
    only: Option<String>,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Upgrade {
    /// The older program, or a commit to build it from
    #[arg(long, value_name = "PROGRAM|COMMIT", default_value = upgrade::old::BEFORE_RULES)]
    old: String,
    /// The new program [default: this workspace, with the next version of the rules, which only tests have]
    #[arg(long, value_name = "PROGRAM")]
    new: Option<PathBuf>,
    /// A bad build of the new program, for the course `witness` [default: one that decides by the next rules too early]
    #[arg(long, value_name = "PROGRAM")]
    early: Option<PathBuf>,
    /// What happens to the nodes
    #[arg(long, value_delimiter = ',', default_values_t = [Course::Roll, Course::Mix, Course::Witness])]
    course: Vec<Course>,
    /// How often nodes are rolled, each time in a new cluster
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seed of the first run; the next run has the next [default: random; it is printed]
    #[arg(long, default_value_t = fastrand::u32(..).into(), hide_default_value = true)]
    seed: u64,
    /// Calls per second, of all clients together
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Folder for the results, with one folder per run
    #[arg(long, default_value = "store")]
    store: PathBuf,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            // By itself clap says 2, which is taken for a run of which not all could be told.
            return if error.use_stderr() { 3.into() } else { ExitCode::SUCCESS };
        }
    };
    match perform(arguments.command) {
        Ok(code) => code.into(),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "ringfence-jepsen: {error:#}");
            3.into()
        }
    }
}

fn perform(command: Command) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Command::Test(test) => {
            let options = test.options()?;
            let (_, results) = runtime.block_on(run(&options))?;
            tell(&results, &options.folder)
        }
        Command::Suite(suites) => {
            let options = SuiteOptions {
                program: suites.program.path()?,
                time: suites.time.map(Duration::from_secs),
                only: suites.only,
                common: suites.common,
            };
            runtime.block_on(run_suite(suites.suite, &options, &mut stdout()))
        }
        Command::Mutants(mut options) => {
            options.common.store.push("mutants");
            runtime.block_on(run_mutants(&options, &mut stdout()))
        }
        Command::Upgrade(arguments) => {
            let Upgrade { old, new, early, course, rounds, seed, rate, store } = arguments;
            let release = !cfg!(debug_assertions);
            let new = new.map_or_else(|| upgrade::with_patch(upgrade::NEXT_RULES), Ok)?.canonicalize()?;
            let early = match early {
                None if course.contains(&Course::Witness) => upgrade::with_patch(upgrade::EARLY_RULES)?,
                early => early.unwrap_or_else(|| new.clone()),
            };
            let options = UpgradeOptions {
                old: upgrade::old::program(&old, release)?,
                new,
                early: early.canonicalize()?,
                courses: course,
                rounds,
                seed,
                rate,
                store,
            };
            runtime.block_on(run_upgrades(&options, &mut stdout()))
        }
        Command::Grey(options) => runtime.block_on(grey::measure(&options, &mut stdout())),
        Command::Check { folder } => {
            let history = store::read(&folder)?;
            let workload = Workload::from_str(&history.about.workload, false);
            let workload = workload.map_err(anyhow::Error::msg).context("the run's workload is not known")?;
            let (_, results) = runtime.block_on(judge_and_store(history, workload, &folder))?;
            tell(&results, &folder)
        }
    }
}

impl Program {
    fn path(&self) -> anyhow::Result<PathBuf> {
        match &self.program {
            // Nodes are started elsewhere.
            Some(program) => {
                program.canonicalize().with_context(|| format!("there is no {}", program.display()))
            }
            None => program::build(!cfg!(debug_assertions)),
        }
    }
}

impl Test {
    fn options(self) -> anyhow::Result<RunOptions> {
        let mut options = RunOptions {
            program: self.program.path()?,
            nodes: self.nodes,
            workload: self.workload,
            nemeses: self.nemesis,
            time: Duration::from_secs(self.time),
            seed: self.common.seed,
            rate: self.common.rate,
            concurrency: self.concurrency,
            no_root: self.common.no_root,
            arguments: self.argument,
            folder: PathBuf::new(),
        };
        options.folder = self.common.store.join(options.name());
        Ok(options)
    }
}

/// Says what a run comes to, and gives the exit code.
fn tell(results: &Results, folder: &Path) -> anyhow::Result<u8> {
    let mut out = stdout();
    for law in &results.laws {
        let counts: Vec<String> =
            law.found.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        writeln!(out, "{:<8} {:<22} {}", name(law.verdict), law.name, counts.join(", "))?;
        for breach in law.found.breaches.iter().take(5) {
            writeln!(out, "         {} (calls {:?})", breach.what, breach.calls)?;
        }
        if let Some(why) = &law.found.undecided {
            writeln!(out, "         {why}")?;
        }
    }
    writeln!(out, "\n{}: {}\nagain: {}", name(results.verdict), folder.display(), results.about.command)?;
    Ok(match results.verdict {
        Verdict::Valid => 0,
        Verdict::Invalid => 1,
        Verdict::Unknown => 2,
    })
}

fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Valid => "valid",
        Verdict::Unknown => "unknown",
        Verdict::Invalid => "INVALID",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_the_debate_are_accepted() {
        let debate = include_str!("../../docs/debate.md");
        let commands: Vec<_> = debate.lines().filter(|line| line.starts_with("jepsen ")).collect();
        assert!(!commands.is_empty());
        for command in commands {
            let parsed = Arguments::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "{command}: {parsed:?}");
        }
    }
}
