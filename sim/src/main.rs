//! The command line of the simulator.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use ringfence_sim::plan::Plan;
use ringfence_sim::run::{Outcome, collect_panics, run};

/// Runs whole clusters in simulated time, and judges what clients saw.
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
        /// The seed of the run
        #[arg(long)]
        seed: u64,
        /// Print every message
        #[arg(long)]
        trace: bool,
    },
    /// Runs with fresh seeds
    Swarm {
        /// For how long
        #[arg(long, default_value_t = 2.0)]
        minutes: f64,
        /// The first seed [default: drawn]
        #[arg(long)]
        seed: Option<u64>,
        /// Do not stop at a finding
        #[arg(long)]
        keep_going: bool,
    },
}

#[allow(clippy::print_stdout, reason = "this is its output")]
fn main() -> ExitCode {
    collect_panics();
    match Arguments::parse().command {
        Command::Run { seed, trace } => {
            let plan = Plan::draw(seed);
            println!("{plan:#?}");
            let outcome = run(&plan, trace);
            outcome.story.iter().for_each(|line| println!("{line}"));
            print_end(seed, &outcome);
            ExitCode::from(u8::from(!outcome.findings.is_empty()))
        }
        Command::Swarm { minutes, seed, keep_going } => {
            let first = seed.unwrap_or_else(|| fastrand::u64(..) >> 20);
            let began = Instant::now();
            let (mut coverage, mut simulated, mut runs, mut failed) = (BTreeMap::new(), 0, 0_u64, 0_u64);
            for seed in first.. {
                if began.elapsed() > Duration::from_secs_f64(minutes * 60.0) {
                    break;
                }
                let outcome = run(&Plan::draw(seed), false);
                simulated += outcome.simulated;
                runs += 1;
                for (what, count) in &outcome.coverage {
                    *coverage.entry(*what).or_insert(0) += count;
                }
                if !outcome.findings.is_empty() {
                    failed += 1;
                    print_end(seed, &outcome);
                    if !keep_going {
                        return ExitCode::FAILURE;
                    }
                }
            }
            for (what, count) in &coverage {
                println!("{count:>12} {what}");
            }
            let (hours, took) = (simulated as f64 / 3.6e6, began.elapsed().as_secs_f64());
            println!("{runs} runs, {failed} failed, {hours:.1} hours of clusters in {took:.0} s: {:.0} times", hours * 3_600.0 / took);
            ExitCode::from(u8::from(failed > 0))
        }
    }
}

#[allow(clippy::print_stdout, reason = "this is its output")]
fn print_end(seed: u64, outcome: &Outcome) {
    for finding in &outcome.findings {
        println!("seed {seed}: {finding}");
    }
    println!("seed {seed}: {} s, digest {:016x}", outcome.simulated / 1_000, outcome.digest);
}
