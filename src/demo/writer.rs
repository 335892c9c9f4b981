//! A writer: a process that acquires a lease, reads the account, and writes it back with something added.
//!
//! ```text
//!  the demo ──starts──▶ writer: acquire ─▶ touch, read ─▶ look at the lease ─▶ [stopped] ─▶ write ─▶ exit
//!           ◀── what it holds, and what became of its write: two lines of JSON
//! ```
//! One that `pauses` is stopped between its look at the lease and its write. It stops itself there so that the demo hits
//! the moment each time, with SIGSTOP, which no process can handle or notice: what follows is what any process does
//! that the scheduler, the collector or the hypervisor has held up for a while.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use ringfence_guard::{Admission, Claim};
use ringfence_wire::{Key, LeaseId, Token};
use rustix::process::{Signal, getpid, kill_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::ChildStdout;
use tokio::time::{sleep, timeout};

use super::accounts::{Accounts, Balances};
use super::client::Client;
use crate::child::{self, Child};

/// How long the demo waits for what a writer does, its wait for the lease included.
const PATIENCE: Duration = Duration::from_secs(60);

/// What makes this process a writer.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    die_with_parent: i32,
    /// A [`Task`] in JSON
    task: String,
}

/// What a writer has to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// What it is called.
    pub(crate) name: String,
    /// The key of its lease.
    pub(crate) key: Key,
    /// The time-to-live of its lease.
    pub(crate) ttl_ms: u32,
    /// How long it is willing to stand in line.
    pub(crate) wait_ms: u32,
    /// By how much it raises the balance.
    pub(crate) adds: u64,
    /// Whether it is stopped before it writes.
    pub(crate) pauses: bool,
    /// Where the accounts are.
    pub(crate) dir: PathBuf,
    /// Whom it asks, in this order.
    pub(crate) nodes: Vec<SocketAddr>,
}

/// What a writer says when it holds its lease and has read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Holds {
    pub(crate) lease_id: LeaseId,
    pub(crate) token: Token,
    pub(crate) reads: u64,
    pub(crate) left_ms: u32,
}

/// What a writer says when it has written, or tried to.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Wrote {
    pub(crate) balance: u64,
    /// What stood in the guarded file, if that rejected it.
    pub(crate) rejected_below: Option<Token>,
}

/// A writer as the demo sees it; killed when dropped.
pub(crate) struct Writer {
    name: String,
    process: Child,
    says: Lines<BufReader<ChildStdout>>,
}

/// Is one.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    child::die_with_parent(arguments.die_with_parent)?;
    let task: Task = serde_json::from_str(&arguments.task)?;
    let client = Client::new(task.nodes);
    let lease_id = LeaseId::random();
    let grant = client.acquire(lease_id, &task.name, &task.key, task.ttl_ms, task.wait_ms).await?;
    let claim = Claim::new(grant.token, grant.keys.first().context("a lease without keys")?.fence)?;
    let accounts = Accounts::open(&task.dir);
    let read = accounts.read_as(claim)?;

    let left_ms = client.lease(lease_id).await?.expires_in_ms.unwrap_or(0).try_into()?;
    say(&Holds { lease_id, token: grant.token, reads: read.guarded, left_ms })?;
    if task.pauses {
        kill_process(getpid(), Signal::STOP)?;
    }
    let new = Balances { guarded: read.guarded + task.adds, plain: read.plain + task.adds };
    let rejected_below = match accounts.write(claim, new)? {
        Admission::Accepted => None,
        Admission::Stale { high } => Some(high),
    };
    say(&Wrote { balance: new.guarded, rejected_below })
}

fn say(what: &impl Serialize) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(what)?)?)
}

impl Writer {
    pub(crate) fn start(task: Task) -> anyhow::Result<Self> {
        let mut command = child::this_program("demo-writer")?;
        command.arg(serde_json::to_string(&task)?).stdout(Stdio::piped());
        let name = task.name;
        let mut process = Child::start(command).with_context(|| format!("cannot start {name}"))?;
        let says = process.take_stdout().context("its output is piped")?;
        Ok(Self { name, process, says: BufReader::new(ChildStdout::from_std(says)?).lines() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Waits until it holds its lease, and has read.
    pub(crate) async fn holds(&mut self) -> anyhow::Result<Holds> {
        self.next().await
    }

    /// Waits until it has written, or tried to.
    pub(crate) async fn wrote(&mut self) -> anyhow::Result<Wrote> {
        self.next().await
    }

    /// Waits until it is stopped.
    pub(crate) async fn stopped(&mut self) -> anyhow::Result<()> {
        let stops = async {
            loop {
                if let Some(status) = self.process.ended()? {
                    bail!("{} has ended ({status})", self.name);
                }
                if self.process.has_stopped()? {
                    return Ok(());
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, stops).await.with_context(|| format!("{} is not stopped in time", self.name))?
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        Ok(self.process.resume()?)
    }

    async fn next<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let line = timeout(PATIENCE, self.says.next_line()).await;
        let line = line.with_context(|| format!("{} says nothing in time", self.name))??;
        let line = line.with_context(|| format!("{} has ended", self.name))?;
        serde_json::from_str(&line).with_context(|| format!("{} says `{line}`", self.name))
    }
}
