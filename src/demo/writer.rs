//! A writer process: acquires a lease, reads the account, adds to it and writes it back.
//!
//! ```text
//!  demo ──starts──▶ writer: acquire ─▶ touch, read ─▶ check the lease ─▶ [SIGSTOP] ─▶ write ─▶ exit
//!       ◀── Holds after the check, Wrote after the write: two lines of JSON
//! ```
//! A writer that `pauses` stops itself between the check and the write, so that every run hits that moment. SIGSTOP
//! cannot be handled or noticed: to the process it is the same as a pause by its scheduler, collector or hypervisor.

use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ringfence_client::{Client, Key, LeaseId, Token};
use ringfence_guard::{Admission, Claim};
use rustix::process::{Signal, getpid, kill_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::ChildStdout;
use tokio::time::timeout;

use super::accounts::{Accounts, Balances};
use super::{acquire, granted};
use crate::child::{self, Child};
use crate::{poll, runtime};

/// Bounds one step of a writer, its wait in the queue included.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of the hidden command `demo-writer`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    die_with_parent: i32,
    /// A [`Task`] in JSON.
    task: String,
}

/// What a writer does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) key: Key,
    pub(crate) ttl: Duration,
    /// How much it adds to the balance.
    pub(crate) adds: u64,
    /// Whether it stops itself before it writes.
    pub(crate) pauses: bool,
    /// Where the accounts are.
    pub(crate) dir: PathBuf,
    /// The nodes, in the order in which it tries them.
    pub(crate) urls: Vec<String>,
}

/// Printed when the writer holds its lease and has read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Holds {
    pub(crate) lease_id: LeaseId,
    pub(crate) token: Token,
    pub(crate) reads: u64,
    pub(crate) left_ms: u64,
}

/// Printed after the write.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Wrote {
    pub(crate) balance: u64,
    /// The fence of the guarded file, if it rejected the write.
    pub(crate) rejected_below: Option<Token>,
}

/// A writer process, seen from the demo. It is killed on drop.
pub(crate) struct Writer {
    name: String,
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
}

/// Runs in the writer process.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    runtime::block_on(write(arguments))?
}

async fn write(arguments: Arguments) -> anyhow::Result<()> {
    child::die_with_parent(arguments.die_with_parent)?;
    let task: Task = serde_json::from_str(&arguments.task)?;
    let client = Client::connect(&task.urls)?;
    let grant = acquire(client.lock(&task.key).holder(&task.name).ttl(task.ttl)).await?;
    let claim = Claim::new(grant.token, grant.keys.first().context("a lease without keys")?.fence)?;
    let accounts = Accounts::open(&task.dir);
    let read = accounts.read_as(claim)?;

    let left_ms = granted(&client, grant.lease_id).await?.expires_in_ms.unwrap_or(0);
    print(&Holds { lease_id: grant.lease_id, token: grant.token, reads: read.guarded, left_ms })?;
    if task.pauses {
        kill_process(getpid(), Signal::STOP)?;
    }
    let new = Balances { guarded: read.guarded + task.adds, plain: read.plain + task.adds };
    let rejected_below = match accounts.write(claim, new)? {
        Admission::Accepted(()) => None,
        Admission::Stale { high } => Some(high),
    };
    print(&Wrote { balance: new.guarded, rejected_below })
}

fn print(message: &impl Serialize) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(message)?)?)
}

impl Writer {
    pub(crate) fn start(task: Task) -> anyhow::Result<Self> {
        let mut command = child::this_program("demo-writer")?;
        command.arg(serde_json::to_string(&task)?).stdout(Stdio::piped());
        let name = task.name;
        let mut process = Child::start(command).with_context(|| format!("cannot start {name}"))?;
        let output = ChildStdout::from_std(process.take_stdout().context("its output is piped")?)?;
        Ok(Self { name, process, output: BufReader::new(output).lines() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its next message: [`Holds`], then [`Wrote`].
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let line = timeout(STEP_TIMEOUT, self.output.next_line()).await;
        let line = line.with_context(|| format!("{} printed nothing in time", self.name))??;
        let line = line.with_context(|| format!("{} exited", self.name))?;
        serde_json::from_str(&line).with_context(|| format!("{} printed `{line}`", self.name))
    }

    /// Waits until it has stopped itself.
    pub(crate) async fn stopped(&mut self) -> anyhow::Result<()> {
        poll::until(STEP_TIMEOUT, "the writer did not stop", async || {
            self.process.fail_if_ended(&self.name)?;
            Ok(self.process.has_stopped()?.then_some(()))
        })
        .await
    }

    /// Sends SIGCONT.
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        Ok(self.process.resume()?)
    }
}
