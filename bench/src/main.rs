//! Measures Ringfence beside its peers, on one machine, in one run.

#![allow(clippy::print_stdout, reason = "figures are what this prints")]

mod calls;
mod figures;
mod floor;
mod hostile;
mod http;
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

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use tokio::runtime;

use job::Job;
use market::market;
use measure::{Plan, compare};
use scale::scale;
use service::{installed, serve_echo};
use watches::watches;

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
    /// Acquire and release one key that all want
    Contended(Locks),
    /// Acquire and release many keys in one call each
    Batch {
        #[command(flatten)]
        options: Options,
        /// How many keys one call has
        #[arg(long, value_delimiter = ',', default_value = "16,128")]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
        sizes: Vec<u16>,
    },
    /// Ask about tokens: of the cluster, of one node, of the mirror; write with and without a guard
    Reads(Options),
    /// The marketplace of "Redis in Action": WATCH, locks in Redis, and leases with a guard in Redis
    Market(Market),
    /// Ever more live leases, each time on a fresh cluster: what they cost
    Scale(Scale),
    /// What a stranger with a few connections can do to a cluster: the longest step, CPU, memory, late renewals
    Hostile(Hostile),
    /// A command under a lock, beside etcdctl's; and what the program takes: size, memory, time to start
    Shell(Shell),
    /// Acquire and release keys of one's own while nobody watches them, and while many do
    Watch(Watch),
    /// What a pair of HTTP requests costs: answers until its standard input ends
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

#[derive(Args)]
struct Options {
    #[command(flatten)]
    services: Services,
    /// How many clients there are [default: 64; of `compare` 1,8,64,256,1024]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    clients: Vec<u16>,
    /// How often each is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// How many seconds each measurement takes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    seconds: u16,
    /// Calls a second: an open load, whose latencies count from when a call was due
    #[arg(long)]
    rate: Option<u32>,
    /// Where all figures go, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where a drawing goes, as SVG: what more clients do to each service
    #[arg(long)]
    svg: Option<PathBuf>,
}

#[derive(Args)]
struct Market {
    #[command(flatten)]
    ringfence: Ringfence,
    /// How often each way is measured under each load
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// How many seconds each measurement takes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    seconds: u16,
}

#[derive(Args)]
struct Ringfence {
    /// The program under test [default: the one built beside this]
    #[arg(long)]
    program: Option<PathBuf>,
}

#[derive(Args)]
struct Scale {
    #[command(flatten)]
    ringfence: Ringfence,
    /// How many live leases there are
    #[arg(long, value_delimiter = ',', default_value = "1000,100000,1000000",
        value_parser = clap::value_parser!(u64).range(1..))]
    leases: Vec<u64>,
    /// How many clients there are
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// After how much log nodes take snapshots: with few leases it takes long to write much
    #[arg(long, default_value_t = 8 << 20, value_parser = clap::value_parser!(u64).range(65_536..))]
    snapshot_after_bytes: u64,
    /// How many seconds cycles are measured
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    seconds: u16,
    /// Where all figures go, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct Hostile {
    #[command(flatten)]
    ringfence: Ringfence,
    /// Only shapes with this in their names; may be repeated
    #[arg(long)]
    only: Vec<String>,
    /// How many seconds each shape goes on
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    seconds: u16,
    /// Where all figures go, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct Shell {
    #[command(flatten)]
    ringfence: Ringfence,
    /// etcd's server
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// etcd's client program
    #[arg(long, default_value = "etcdctl")]
    etcdctl: PathBuf,
    /// How often each command runs
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

#[derive(Args)]
struct Watch {
    #[command(flatten)]
    ringfence: Ringfence,
    /// How many watchers there are, each of the key of one client
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..))]
    watchers: u16,
    /// How many clients there are
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// How often each is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// How many seconds each measurement takes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    seconds: u16,
    /// Where all figures go, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct Services {
    #[command(flatten)]
    ringfence: Ringfence,
    /// A program of etcd, as often as there are versions [default: `etcd`]
    #[arg(long)]
    etcd: Vec<PathBuf>,
    /// Only services with one of these in their names
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
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
            options.measure(&[1, 8, 64, 256, 1_024], vec![Job::OwnKey], tasks).await
        }
        Command::Contended(Locks { options, tasks }) => {
            options.measure(&[64], vec![Job::OneKey], tasks).await
        }
        Command::Batch { options, sizes } => {
            let jobs = [Job::OwnKey].into_iter().chain(sizes.into_iter().map(|size| Job::Batch(size.into())));
            options.measure(&[64], jobs.collect(), false).await
        }
        Command::Reads(options) => {
            let jobs = vec![Job::Read, Job::ReadLocally, Job::Write, Job::GuardedWrite];
            options.measure(&[64], jobs, false).await
        }
        Command::Market(options) => {
            let plan = market::Plan {
                program: options.ringfence.program()?,
                rounds: options.rounds.into(),
                seconds: options.seconds.into(),
            };
            println!("{}", market(&plan).await?);
            Ok(())
        }
        Command::Scale(options) => {
            let plan = scale::Plan {
                leases: options.leases,
                clients: options.clients.into(),
                time: Duration::from_secs(options.seconds.into()),
                snapshot_after_bytes: options.snapshot_after_bytes,
            };
            let figures = scale(&options.ringfence.program()?, &plan).await?;
            println!("{}", figures.text());
            options.json.map_or(Ok(()), |path| figures.write_json(&path))?;
            figures.check()
        }
        Command::Hostile(options) => {
            let plan =
                hostile::Plan { only: options.only, time: Duration::from_secs(options.seconds.into()) };
            let figures = hostile::hostile(&options.ringfence.program()?, &plan).await?;
            println!("{}", figures.text());
            options.json.map_or(Ok(()), |path| figures.write_json(&path))?;
            figures.check()
        }
        Command::Shell(Shell { ringfence, etcd, etcdctl, runs }) => {
            let plan = shell::Plan { program: ringfence.program()?, etcd, etcdctl, runs };
            println!("{}", shell::shell(&plan).await?);
            Ok(())
        }
        Command::Watch(options) => {
            let plan = watches::Plan {
                watchers: options.watchers.into(),
                clients: options.clients.into(),
                rounds: options.rounds.into(),
                time: Duration::from_secs(options.seconds.into()),
            };
            let figures = watches(&options.ringfence.program()?, &plan).await?;
            println!("{}", figures.text());
            options.json.map_or(Ok(()), |path| figures.write_json(&path))
        }
        Command::Echo => serve_echo().await,
    }
}

impl Options {
    async fn measure(self, clients: &[u16], jobs: Vec<Job>, tasks: bool) -> Result<()> {
        let contenders = self.services.found()?;
        let clients = if self.clients.is_empty() { clients } else { &self.clients };
        let (rounds, time) = (self.rounds.into(), Duration::from_secs(self.seconds.into()));
        let clients = clients.iter().copied().map(usize::from).collect();
        let plan = Plan { jobs, tasks, clients, rounds, time, rate: self.rate.map(f64::from) };
        let comparison = compare(&contenders, &plan).await?;
        println!("{}", comparison.text());
        if let Some(path) = &self.svg {
            std::fs::write(path, comparison.plot()).with_context(|| path.display().to_string())?;
        }
        self.json.map_or(Ok(()), |path| comparison.write_json(&path))
    }
}

impl Ringfence {
    fn program(&self) -> Result<PathBuf> {
        let beside = || Ok(std::env::current_exe()?.with_file_name("ringfence"));
        let program = self.program.clone().map_or_else(beside, anyhow::Ok)?;
        ensure!(program.exists(), "{} is missing: build it, or name another by --program", program.display());
        // Nodes run elsewhere.
        Ok(std::path::absolute(program)?)
    }
}

impl Services {
    /// What is installed and wanted; tells what is not installed.
    fn found(&self) -> Result<Vec<service::Contender>> {
        let etcds = if self.etcd.is_empty() { vec!["etcd".into()] } else { self.etcd.clone() };
        let (mut found, missing) = installed(&self.ringfence.program()?, &etcds);
        for missing in missing {
            eprintln!("left out: {missing}");
        }
        let is_wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| name.contains(only));
        found.retain(|contender| is_wanted(&contender.name()));
        ensure!(!found.is_empty(), "--only: no service has this in its name");
        Ok(found)
    }
}
