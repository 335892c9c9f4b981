//! Measures Ringfence beside other services, on one machine, in one run.

#![allow(clippy::print_stdout, reason = "figures are what this prints")]

mod args;
mod background;
mod beside;
mod calls;
mod fetched;
mod figures;
mod floor;
mod greedy;
mod handover;
mod hostile;
mod job;
mod load;
mod measure;
mod members;
mod pairs;
mod scale;
mod service;
mod shell;
mod turn;
mod usage;
mod watches;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tokio::runtime;

use fetched::Fetched;
use figures::show;
use job::Job;
use measure::Options;

/// Compares Ringfence with other lock services, on one machine, in one run
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Each client acquires and releases its own key: Ringfence, etcd, ZooKeeper, NATS, Hazelcast, Redis, Redlock, plain HTTP
    Compare(Locks),
    /// All clients acquire and release the same key
    Contended(Locks),
    /// Each call acquires or releases many keys
    Batch {
        #[command(flatten)]
        options: Options,
        /// Keys per call
        #[arg(long, value_delimiter = ',', default_value = "16,128")]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
        sizes: Vec<u16>,
    },
    /// Validations at the cluster, one node and the mirror; writes with and without a guard
    Reads(Options),
    /// The cost of a growing number of live leases, each number on a new cluster
    Scale(scale::Plan),
    /// What a principal that uses all its limits costs the others
    Greedy(greedy::Plan),
    /// The time until the next client holds, when the holder is gone, and the leader as well
    Handover(handover::Plan),
    /// Attacks by a client with a few connections: the longest step, CPU, memory, late renewals
    Hostile(hostile::Plan),
    /// Speed, handover and lost writes of each lock in one table, from what compare, handover and the ladder wrote
    Beside(beside::Plan),
    /// Replaces every node, from three to five to three, and restarts nodes: failed calls, lost leases, the longest gap
    Members(members::Plan),
    /// Gets services that the system has no package of, from the registries of their languages, into `target/fetched`
    Fetch {
        /// Which [default: all]
        #[arg(value_enum)]
        services: Vec<Fetched>,
    },
    /// Two programs in alternation, so that the drift of the machine meets both: the ratios of neighbouring turns
    Pairs(pairs::Plan),
    /// `ringfence lock` and `etcdctl lock`; size, memory and start time of the program
    Shell(shell::Plan),
    /// As compare, without watches and with many
    Watch(watches::Plan),
    /// An HTTP server that does nothing, for the cost of a pair of requests. Ends with its standard input
    #[command(hide = true)]
    Echo,
}

#[derive(Args)]
struct Locks {
    #[command(flatten)]
    options: Options,
    /// Run the clients as tasks of one program that share its connections; for Ringfence, with the Rust client
    #[arg(long)]
    tasks: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let done =
        runtime.context("cannot start the runtime").and_then(|runtime| runtime.block_on(run(cli.command)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringfence-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Compare(Locks { options, tasks }) => {
            options.run(&[1, 8, 64, 256, 1_024], &[Job::OwnKey], tasks).await
        }
        Command::Contended(Locks { options, tasks }) => options.run(&[64], &[Job::OneKey], tasks).await,
        Command::Batch { options, sizes } => {
            let batches = sizes.into_iter().map(|size| Job::Batch(size.into()));
            let jobs: Vec<Job> = [Job::OwnKey].into_iter().chain(batches).collect();
            options.run(&[64], &jobs, false).await
        }
        Command::Reads(options) => {
            let jobs = [Job::Read, Job::ReadLocally, Job::Write, Job::GuardedWrite];
            options.run(&[64], &jobs, false).await
        }
        Command::Scale(plan) => {
            let figures = scale::scale(&plan).await?;
            show(&figures, &plan.output)?;
            figures.check()
        }
        Command::Greedy(plan) => show(&greedy::greed(&plan).await?, &plan.output),
        Command::Handover(plan) => show(&handover::handover(&plan).await?, &plan.output),
        Command::Hostile(plan) => {
            let figures = hostile::hostile(&plan).await?;
            show(&figures, &plan.output)?;
            figures.check()
        }
        Command::Beside(plan) => beside::beside(&plan),
        Command::Members(plan) => {
            let figures = members::members(&plan).await?;
            show(&figures, &plan.output)?;
            figures.check()
        }
        Command::Fetch { services } => {
            let wanted = if services.is_empty() { Fetched::value_variants() } else { &services };
            wanted.iter().try_for_each(|service| service.fetch())
        }
        Command::Pairs(plan) => show(&pairs::pairs(&plan).await?, &plan.output),
        Command::Shell(plan) => {
            println!("{}", shell::shell(&plan).await?);
            Ok(())
        }
        Command::Watch(plan) => show(&watches::watches(&plan).await?, &plan.output),
        Command::Echo => service::serve_echo().await,
    }
}
