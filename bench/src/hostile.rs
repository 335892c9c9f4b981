//! What a stranger with a few connections can do to a cluster: each shape of load alone, on a fresh cluster of three
//! nodes, while holders renew short leases at every node.
//!
//! A shape passes if no step of a node's runtime was long, no renewal was late, no leader was elected and memory is
//! bounded.

mod floods;
mod holders;
mod resp;
mod shapes;
mod stranger;

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use ringfence_harness::{Answered, Cluster, Node};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::args::{Output, Program, count};
use crate::figures::{digits, table};
use crate::service::is_wanted;
use crate::usage;

use holders::Renewed;
use shapes::SHAPES;
use stranger::Stranger;

/// The longest step of a runtime that passes, ms.
const STEP_MS: f64 = 50.0;
/// The most memory that a node may use beyond what it had before: a quarter of a small machine.
const MEMORY_MIB: f64 = 200.0;
/// How long renewals may take beside a flood: their p99, and the longest.
const P99_MS: f64 = 50.0;
const LONGEST_MS: f64 = 250.0;
/// Nodes write snapshots, and new log segments, this often.
const SNAPSHOT_AFTER_BYTES: u32 = 4 << 20;
/// How long nodes rest after a shape before the figures are read.
const AFTER: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    ringfence: Program,
    /// Only attacks whose names contain this; repeatable
    #[arg(long)]
    only: Vec<String>,
    /// Seconds per attack
    #[arg(long, default_value_t = 10, value_parser = count())]
    seconds: usize,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// One row per shape.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hostile {
    seconds: usize,
    rows: Vec<Row>,
}

/// What one shape did to the cluster.
#[derive(Clone, Debug, Serialize)]
struct Row {
    shape: &'static str,
    is_paced: bool,
    /// What the stranger did, in the shape's own unit: usually requests.
    done: u64,
    /// The bytes it sent while it was measured.
    sent_bytes: u64,
    /// The longest step of any node's runtime; `None` where no node answered.
    longest_step_ms: Option<f64>,
    /// Of all nodes, in cores.
    cpu: f64,
    /// The largest growth of a node.
    memory_mib: f64,
    renewed: Renewed,
    elections: u64,
    /// The nodes that exited.
    ended: Vec<u64>,
}

pub(crate) async fn hostile(plan: &Plan) -> Result<Hostile> {
    let (program, time) = (plan.ringfence.path()?, Duration::from_secs(plan.seconds as u64));
    let mut rows = Vec::new();
    let shapes = SHAPES.iter().chain(resp::SHAPES).chain(floods::SHAPES);
    for shape in shapes.filter(|shape| is_wanted(&plan.only, shape.name)) {
        eprintln!("{}", shape.name);
        rows.push(measure(&program, time, shape).await.context(shape.name)?);
    }
    ensure!(!rows.is_empty(), "--only: no shape has this in its name");
    Ok(Hostile { seconds: plan.seconds, rows })
}

async fn measure(program: &Path, time: Duration, shape: &shapes::Shape) -> Result<Row> {
    let cluster = Cluster::builder(program)
        .argument(format!("--snapshot-after-bytes={SNAPSHOT_AFTER_BYTES}"))
        .resp()
        .caller_checks_panics();
    let cluster = stranger::with_few_descriptors(cluster).await?;
    let leader = cluster.leader().await?;
    let (leads, term) = (leader.id(), term(leader).await?);
    let mut stranger = Stranger::new(&cluster, leads);
    (shape.prepare)(&mut stranger).await.context("cannot prepare")?;
    let holders = holders::start(cluster.nodes().iter().map(Node::http).collect()).await?;

    let pids: Vec<u32> = cluster.nodes().iter().filter_map(Node::pid).collect();
    let resident = pids.iter().map(|pid| usage::resident_bytes(&[*pid])).collect::<Result<Vec<u64>>>()?;
    let cpu = usage::cpu(&pids)?;
    for pid in &pids {
        // Resets the peak of memory: see proc_pid_clear_refs(5).
        fs::write(format!("/proc/{pid}/clear_refs"), "5").context("cannot reset the peak of memory")?;
    }
    let (before, begun) = (stranger.sent_bytes(), Instant::now());
    let done = (shape.attack)(&mut stranger, begun + time).await.context("cannot go on")?;
    ensure!(done > 0, "nothing was done");
    let sent_bytes = stranger.sent_bytes() - before;
    sleep(AFTER).await;
    let took = begun.elapsed();

    let mut ended = Vec::new();
    for node in cluster.nodes() {
        if node.take_ended()?.is_some() {
            ended.push(node.id());
        }
    }
    let running: Vec<u32> = cluster.nodes().iter().filter_map(Node::pid).collect();
    let used = usage::cpu(&running)?.saturating_sub(cpu);
    let mut memory_mib: f64 = 0.0;
    for (pid, resident) in pids.iter().zip(resident).filter(|(pid, _)| running.contains(pid)) {
        let grown = usage::peak_bytes(&[*pid])?.saturating_sub(resident);
        memory_mib = memory_mib.max(grown as f64 / f64::from(1 << 20));
    }
    drop(stranger);
    let mut row = Row {
        shape: shape.name,
        is_paced: shape.is_paced,
        done,
        sent_bytes,
        longest_step_ms: None,
        cpu: used.as_secs_f64() / took.as_secs_f64(),
        memory_mib,
        renewed: holders.stop().context("holders")?,
        elections: 0,
        ended,
    };
    for node in cluster.running() {
        // The longest of the last 30 s.
        let Ok(Some(lag)) = node.metric("ringfence_loop_lag_longest_seconds").await else { continue };
        row.longest_step_ms = Some(row.longest_step_ms.unwrap_or(0.0).max(lag * 1e3));
        row.elections = row.elections.max(self::term(node).await?.saturating_sub(term));
    }
    Ok(row)
}

async fn term(node: &Node) -> Result<u64> {
    let status = node.client().cluster().await.success();
    Ok(status.with_context(|| format!("node {}", node.id()))?.term)
}

impl Row {
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        match self.longest_step_ms {
            Some(step) if step <= STEP_MS => {}
            Some(step) => faults.push(format!("a step took {} ms", digits(step))),
            None => faults.push("no node reported how long its steps were".to_owned()),
        }
        if self.memory_mib > MEMORY_MIB {
            faults.push(format!("a node grew by {} MiB", digits(self.memory_mib)));
        }
        faults.extend(self.renewed.fault());
        let Renewed { p99_ms, longest_ms, .. } = self.renewed;
        if self.is_paced && (p99_ms > P99_MS || longest_ms > LONGEST_MS) {
            let (p99, longest) = (digits(p99_ms), digits(longest_ms));
            faults.push(format!("renewals took {p99} ms (p99), and {longest} ms at most"));
        }
        if self.elections > 0 {
            faults.push(format!("{} elections", self.elections));
        }
        if !self.ended.is_empty() {
            faults.push(format!("nodes {:?} ended", self.ended));
        }
        faults
    }
}

impl fmt::Display for Hostile {
    /// One line per shape.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = [
            "shape",
            "done",
            "KB sent",
            "step ms",
            "CPU",
            "MiB",
            "renewal p99 ms",
            "longest ms",
            "late",
            "elections",
            "ended",
        ];
        let rows = self.rows.iter().map(|row| {
            vec![
                row.shape.to_owned(),
                digits(row.done as f64),
                digits(row.sent_bytes as f64 / 1e3),
                row.longest_step_ms.map_or_else(|| "-".to_owned(), digits),
                format!("{:.2}", row.cpu),
                format!("{:.0}", row.memory_mib),
                digits(row.renewed.p99_ms),
                digits(row.renewed.longest_ms),
                format!("{} of {}", row.renewed.late, row.renewed.renewals),
                row.elections.to_string(),
                row.ended.len().to_string(),
            ]
        });
        write!(
            f,
            "Each for {} s on a fresh cluster: the longest step of a node's runtime, CPU of all nodes in cores, growth of\n\
             the largest node's memory, and the renewals of holders on another host: p99, longest, and how many were late\n\n{}",
            self.seconds,
            table(&headings, &rows.collect::<Vec<_>>())
        )
    }
}

impl Hostile {
    /// Fails if a shape did harm.
    pub(crate) fn check(&self) -> Result<()> {
        let harmed = self.rows.iter().filter_map(|row| {
            let faults = row.faults();
            (!faults.is_empty()).then(|| format!("\n  {}: {}", row.shape, faults.join(", ")))
        });
        let harmed: Vec<String> = harmed.collect();
        let (count, all) = (harmed.len(), self.rows.len());
        ensure!(harmed.is_empty(), "{count} of {all} shapes did harm:{}", harmed.concat());
        Ok(())
    }
}
