//! What clients notice while every node is replaced and while nodes restart one after the other: failed calls, lost leases, and
//! the longest time in which nobody got an answer.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use futures_util::future::try_join_all;
use ringfence_client::{Client, Error, Lease};
use ringfence_harness::{Cluster, Node, until};
use serde::Serialize;
use tokio::time::Instant;

use crate::args::{Output, Program, count};
use crate::figures::{digits, table};
use crate::load::{Work, Worker, open_until};

/// Bounds a change of one node.
const SOON: Duration = Duration::from_secs(120);
/// The time-to-live of the leases that are kept. The client renews three times in it.
const KEPT_TTL: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    ringfence: Program,
    /// Cycles per second, which are due at fixed times
    #[arg(long, default_value_t = 5_000, value_parser = count())]
    rate: usize,
    /// Number of tasks that share the cycles, with one Rust client
    #[arg(long, default_value_t = 256, value_parser = count())]
    clients: usize,
    /// Number of leases that are kept all the time
    #[arg(long, default_value_t = 100, value_parser = count())]
    kept: usize,
    /// Number of rolling restarts
    #[arg(long, default_value_t = 10, value_parser = count())]
    restarts: usize,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What the clients noticed during some changes.
#[derive(Clone, Debug, Serialize)]
struct Row {
    changes: String,
    seconds: f64,
    cycles: u64,
    failed: u64,
    /// Of the failed calls.
    last_error: Option<String>,
    /// The longest time without an answer for anybody.
    longest_gap_ms: f64,
    /// From the time when a cycle was due to its end.
    p99_9_ms: f64,
    longest_cycle_ms: f64,
    kept: usize,
    lost: usize,
}

/// Every node replaced, and rolling restarts.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Members {
    rate: usize,
    rows: Vec<Row>,
}

pub(crate) async fn members(plan: &Plan) -> Result<Members> {
    let cluster = Cluster::builder(plan.ringfence.path()?).joiners(3).start().await?;
    let client = Client::connect(cluster.nodes().iter().map(Node::url))?;
    let leases = (0..plan.kept).map(|number| client.lock(format!("kept/{number}")).ttl(KEPT_TTL).acquire());
    let leases = try_join_all(leases).await?;
    let mut rows = Vec::new();
    let replaced = replace_all(&cluster, &client);
    rows.push(under_load(plan, &client, &leases, "3 to 5 to 3 nodes, all replaced", replaced).await?);
    let restarts = format!("{} rolling restarts", plan.restarts);
    let restarted = restart_all(&cluster, plan.restarts);
    rows.push(under_load(plan, &client, &leases, &restarts, restarted).await?);
    Ok(Members { rate: plan.rate, rows })
}

/// Nodes 1 to 3 go, 4 to 6 come; meanwhile there are five.
async fn replace_all(cluster: &Cluster, client: &Client) -> Result<()> {
    for id in [4, 5] {
        add(cluster.node(id), client).await?;
    }
    for id in [1, 2] {
        remove(cluster.node(id), client).await?;
    }
    add(cluster.node(6), client).await?;
    remove(cluster.node(3), client).await
}

async fn restart_all(cluster: &Cluster, times: usize) -> Result<()> {
    for _ in 0..times {
        for id in 4..=6 {
            let node = cluster.node(id);
            node.terminate().await?;
            node.start()?;
            node.ready().await?;
        }
    }
    Ok(())
}

async fn add(node: &Node, client: &Client) -> Result<()> {
    node.start()?;
    let (id, peer) = (node.id(), node.peer().to_string());
    let added = async || client.add_member(id, peer.as_str()).await.ok();
    until(SOON, format!("node {id} is added"), added).await?;
    let votes = async || client.cluster().await.ok()?.members.get(&id)?.voter.then_some(());
    until(SOON, format!("node {id} votes"), votes).await?;
    Ok(node.ready().await?)
}

async fn remove(node: &Node, client: &Client) -> Result<()> {
    let id = node.id();
    let removed = async || client.remove_member(id).await.ok();
    until(SOON, format!("node {id} is removed"), removed).await?;
    node.terminate().await?;
    Ok(())
}

/// Makes the changes while tasks acquire and release, each a key of its own.
async fn under_load(
    plan: &Plan,
    client: &Client,
    leases: &[Lease],
    changes: &str,
    change: impl Future<Output = Result<()>>,
) -> Result<Row> {
    eprintln!("{changes}");
    let answers = Arc::new(Answers::default());
    let mut workers: Vec<Worker> = (0..plan.clients)
        .map(|number| {
            let (client, answers) = (client.clone(), Arc::clone(&answers));
            Worker::new(Task { client, answers, key: format!("own/{number}") })
        })
        .collect();
    let stop = Arc::<AtomicBool>::default();
    let changed = async {
        let changed = change.await;
        stop.store(true, Ordering::Relaxed);
        changed
    };
    let (load, changed) = tokio::join!(open_until(&mut workers, plan.rate as f64, &stop), changed);
    changed?;
    let load = load?;
    let mut lost = 0;
    for lease in leases {
        lost += usize::from(lease.renew().await.is_err());
    }
    let last_error = answers.last_error.lock().expect(UNPOISONED).clone();
    let longest_gap = answers.times.lock().expect(UNPOISONED).map_or(Duration::ZERO, |(_, longest)| longest);
    Ok(Row {
        changes: changes.to_owned(),
        seconds: load.took.as_secs_f64(),
        cycles: load.turns(),
        failed: answers.failed.load(Ordering::Relaxed),
        last_error,
        longest_gap_ms: longest_gap.as_secs_f64() * 1e3,
        p99_9_ms: load.quantile_ms(0.999),
        longest_cycle_ms: load.quantile_ms(1.0),
        kept: leases.len(),
        lost,
    })
}

const UNPOISONED: &str = "no panic while the answers are locked";

/// The answers that all tasks got.
#[derive(Default)]
struct Answers {
    failed: AtomicU64,
    last_error: Mutex<Option<String>>,
    /// The last answer, and the longest time between two.
    times: Mutex<Option<(Instant, Duration)>>,
}

impl Answers {
    fn note(&self, answer: Result<(), Error>) {
        if let Err(error) = answer {
            self.failed.fetch_add(1, Ordering::Relaxed);
            *self.last_error.lock().expect(UNPOISONED) = Some(error.to_string());
            return;
        }
        let now = Instant::now();
        let mut times = self.times.lock().expect(UNPOISONED);
        let (last, longest) = times.unwrap_or((now, Duration::ZERO));
        *times = Some((now, longest.max(now - last)));
    }
}

/// Acquires and releases its key. A call that fails although the client has repeated it is counted, and the task goes on.
struct Task {
    client: Client,
    answers: Arc<Answers>,
    key: String,
}

impl Work for Task {
    async fn turn(&mut self) -> Result<Instant> {
        match self.client.lock(&self.key).ttl(TTL).no_renew().acquire().await {
            Ok(lease) => {
                self.answers.note(Ok(()));
                self.answers.note(lease.release().await);
            }
            Err(error) => self.answers.note(Err(error)),
        }
        Ok(Instant::now())
    }
}

impl Members {
    /// An error if a call failed or a lease was lost.
    pub(crate) fn check(&self) -> Result<()> {
        for Row { changes, failed, last_error, lost, .. } in &self.rows {
            ensure!(*failed == 0, "{changes}: {failed} calls failed, the last with {last_error:?}");
            ensure!(*lost == 0, "{changes}: {lost} leases were lost");
        }
        Ok(())
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} cycles per second are due", self.rate)?;
        let cells = self.rows.iter().map(|row| {
            vec![
                row.changes.clone(),
                digits(row.seconds),
                row.cycles.to_string(),
                row.failed.to_string(),
                digits(row.longest_gap_ms),
                digits(row.p99_9_ms),
                digits(row.longest_cycle_ms),
                format!("{} of {}", row.lost, row.kept),
            ]
        });
        let headings = [
            "",
            "seconds",
            "cycles",
            "failed calls",
            "longest gap ms",
            "p99.9 ms",
            "longest cycle ms",
            "leases lost",
        ];
        write!(f, "{}", table(&headings, &cells.collect::<Vec<_>>()))
    }
}
