//! Measures Ringfence beside its peers, on one machine, in one run.

#![allow(clippy::print_stdout, reason = "figures are what this prints")]

mod args;
mod background;
mod calls;
mod figures;
mod floor;
mod hostile;
mod job;
mod load;
mod market;
mod measure;
mod plot;
mod scale;
mod service;
mod shell;
mod usage;
mod watches;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use tokio::runtime;

use figures::show;
use job::Job;
use measure::Options;

/// Measures Ringfence beside its peers, on one machine, in one run
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Acquire and release a key of one's own: Ringfence, etcd, ZooKeeper, Redis, Redlock, and HTTP alone
    Compare(Locks),
    /// Acquire and release one key that all clients want
    Contended(Locks),
    /// Acquire and release many keys in one call each
    Batch {
        #[command(flatten)]
        options: Options,
        /// Keys per call
        #[arg(long, value_delimiter = ',', default_value = "16,128")]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
        sizes: Vec<u16>,
    },
    /// Validate tokens at the cluster, one node and the mirror; write with and without a guard
    Reads(Options),
    /// The marketplace of "Redis in Action": WATCH, locks in Redis, and leases with a guard in Redis
    Market(market::Plan),
    /// What ever more live leases cost, each number on a fresh cluster
    Scale(scale::Plan),
    /// What a stranger with a few connections can do to a cluster: the longest step, CPU, memory, late renewals
    Hostile(hostile::Plan),
    /// A command under a lock, beside etcdctl's; and the program's size, memory and time to start
    Shell(shell::Plan),
    /// Acquire and release a key of one's own while nobody watches it, and while many do
    Watch(watches::Plan),
    /// An HTTP server that does nothing: what a pair of requests costs. Ends with its standard input
    #[command(hide = true)]
    Echo,
}

#[derive(Args)]
struct Locks {
    #[command(flatten)]
    options: Options,
    /// Clients are tasks of one program that share its connections; those of Ringfence use the Rust client
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
        Command::Market(plan) => {
            println!("{}", market::market(&plan).await?);
            Ok(())
        }
        Command::Scale(plan) => {
            let figures = scale::scale(&plan).await?;
            show(&figures, &plan.output)?;
            figures.check()
        }
        Command::Hostile(plan) => {
            let figures = hostile::hostile(&plan).await?;
            show(&figures, &plan.output)?;
            figures.check()
        }
        Command::Shell(plan) => {
            println!("{}", shell::shell(&plan).await?);
            Ok(())
        }
        Command::Watch(plan) => show(&watches::watches(&plan).await?, &plan.output),
        Command::Echo => service::serve_echo().await,
    }
}
