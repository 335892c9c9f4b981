//! The command line of the conformance suite.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ringfence_conformance::adapter::Recipe;
use ringfence_conformance::mutants::{Sdk, play_mutants};
use ringfence_conformance::play::{Outcome, Played, play_all};
use ringfence_conformance::scenario::{Scenario, Tier, chosen};
use ringfence_conformance::world::World;

/// Plays what goes wrong between a client library and its cluster, and judges from outside what the library does.
///
/// Exit status: 0 if no scenario failed, 1 if one did, 2 if the run itself failed. What a library does not offer is listed.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// How much to play
    #[arg(long, value_enum, default_value_t = Tier::Standard)]
    tier: Tier,
    /// Only scenarios whose names contain this, of any tier; for mutants also those whose names do
    #[arg(long, value_name = "NAME", global = true)]
    only: Option<String>,
    /// How to start an adapter, split at spaces; repeatable
    #[arg(long, value_name = "CMD")]
    adapter: Vec<String>,
    /// The program of the nodes
    #[arg(long, env = "RINGFENCE_UNDER_TEST", default_value = "target/debug/ringfence", global = true)]
    program: PathBuf,
    /// How many scenarios are played at once: they mostly wait
    #[arg(long, default_value_t = 6, global = true)]
    jobs: usize,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios, with what they need
    List,
    /// Play clients that each have one deliberate fault: each scenario must fail one of each library
    Mutants {
        /// Only those of this library
        #[arg(long, value_enum, value_name = "SDK")]
        sdk: Option<Sdk>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        runtime.block_on(async {
            match arguments.command {
                None => run(arguments).await,
                Some(Command::List) => list(),
                Some(Command::Mutants { sdk }) => {
                    let world = World::start(program(&arguments.program)?).await?;
                    let sdks = sdk.map_or(Sdk::ALL.to_vec(), |sdk| vec![sdk]);
                    play_mutants(&world, &sdks, arguments.only.as_deref(), arguments.jobs, &mut stdout())
                        .await
                }
            }
        })
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Without an error output there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "conformance: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Nodes run in folders of their own.
fn program(path: &Path) -> anyhow::Result<PathBuf> {
    let whole = std::fs::canonicalize(path);
    whole.map_err(|error| anyhow::anyhow!("--program {}: {error}", path.display()))
}

async fn run(run: Arguments) -> anyhow::Result<bool> {
    anyhow::ensure!(!run.adapter.is_empty(), "--adapter: name at least one");
    let scenarios = chosen(run.tier, run.only.as_deref())?;
    let adapters = run.adapter.iter().map(|text| Recipe::parse(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let world = World::start(program(&run.program)?).await?;
    let mut out = stdout();
    let mut told = Ok(());
    let is_quick = run.tier == Tier::Quick;
    let played = play_all(&world, &scenarios, &adapters, run.jobs, is_quick, |one| {
        if told.is_ok() {
            told = tell(&mut out, one, &run.adapter[one.adapter]);
        }
    })
    .await;
    told?;
    summarize(&mut out, &scenarios, &played, &run.adapter)?;
    Ok(!played.iter().any(|one| matches!(one.outcome, Outcome::Failed(_))))
}

fn tell(out: &mut impl Write, one: &Played, adapter: &str) -> std::io::Result<()> {
    let Played { scenario, took, earlier, .. } = one;
    let seconds = took.as_secs_f32();
    for why in earlier {
        writeln!(out, "played again          {scenario}  ({adapter})\n    {why}")?;
    }
    match &one.outcome {
        Outcome::Passed => writeln!(out, "ok           {seconds:>5.1} s  {scenario}  ({adapter})"),
        Outcome::NotOffered(missing) => {
            writeln!(out, "not offered           {scenario}: {}  ({adapter})", missing.join(", "))
        }
        Outcome::Failed(why) => {
            writeln!(out, "FAILED       {seconds:>5.1} s  {scenario}  ({adapter})\n    {why}")
        }
    }
}

fn summarize(
    out: &mut impl Write,
    scenarios: &[Scenario],
    played: &[Played],
    adapters: &[String],
) -> std::io::Result<()> {
    for (index, adapter) in adapters.iter().enumerate() {
        let own: BTreeMap<&str, &Outcome> = played
            .iter()
            .filter(|one| one.adapter == index)
            .map(|one| (one.scenario, &one.outcome))
            .collect();
        let passed = own.values().filter(|outcome| ***outcome == Outcome::Passed).count();
        let failed = own.values().filter(|outcome| matches!(outcome, Outcome::Failed(_))).count();
        let missing: Vec<String> = own
            .iter()
            .filter_map(|(scenario, outcome)| match outcome {
                Outcome::NotOffered(missing) => Some(format!("{scenario} (no {})", missing.join(", no "))),
                _ => None,
            })
            .collect();
        let again = played.iter().filter(|one| one.adapter == index && !one.earlier.is_empty()).count();
        writeln!(
            out,
            "== {adapter}: {passed} of {} passed, {failed} failed, {} not offered",
            scenarios.len(),
            missing.len()
        )?;
        if again > 0 {
            writeln!(out, "==   played again, because the machine was slow: {again}")?;
        }
        for one in missing {
            writeln!(out, "==   not offered: {one}")?;
        }
    }
    Ok(())
}

fn list() -> anyhow::Result<bool> {
    let mut out = stdout();
    for scenario in ringfence_conformance::scenario::SCENARIOS {
        let tier = format!("{:?}", scenario.tier).to_lowercase();
        writeln!(out, "{tier:<9} {} {}", scenario.name, scenario.needs.join(" "))?;
    }
    Ok(true)
}
