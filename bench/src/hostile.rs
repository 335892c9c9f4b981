//! What a stranger with a few connections can do to a cluster: each shape of load alone, on a fresh cluster of three
//! nodes, while holders renew short leases at every node.
//!
//! A shape passes if no step of a node's runtime was long, no renewal was late, nobody was elected and memory is bounded.

mod holders;
mod shapes;
mod stranger;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ringfence_harness::{Cluster, Node, Reply};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::figures::{digits, table};
use crate::usage;

use holders::{Holders, Renewed};
use shapes::SHAPES;
use stranger::Stranger;

/// The longest step of a runtime that passes.
const STEP: Duration = Duration::from_millis(50);
/// The most memory that a node may take beyond what it had before: a quarter of a small machine.
const MEMORY_MIB: f64 = 200.0;
/// Nodes write snapshots, and new segments of the log, this often.
const SNAPSHOT_AFTER_BYTES: u32 = 4 << 20;
/// Nodes have this long after a shape before the figures are read.
const AFTER: Duration = Duration::from_secs(2);

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Only shapes with one of these in their names.
    pub(crate) only: Vec<String>,
    /// How long each shape goes on.
    pub(crate) time: Duration,
}

/// One row per shape.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hostile {
    seconds: f64,
    rows: Vec<Row>,
}

/// What one shape did to the cluster.
#[derive(Clone, Debug, Serialize)]
struct Row {
    shape: &'static str,
    /// What the stranger did, in its own unit: requests, as a rule.
    done: u64,
    /// The bytes that it sent while it was measured.
    sent_bytes: u64,
    /// The longest step of any node's runtime; nothing where no node could say.
    longest_step_ms: Option<f64>,
    /// Of all nodes, of one core.
    cpu: f64,
    /// What the largest node took beyond what it had before.
    memory_mib: f64,
    renewed: Renewed,
    elections: u64,
    /// The nodes that ended.
    ended: Vec<u64>,
}

pub(crate) async fn hostile(program: &Path, plan: &Plan) -> Result<Hostile> {
    let is_wanted = |name: &str| plan.only.is_empty() || plan.only.iter().any(|only| name.contains(only));
    let mut rows = Vec::new();
    for shape in SHAPES.iter().filter(|shape| is_wanted(shape.name)) {
        eprintln!("{}", shape.name);
        rows.push(measure(program, plan, shape).await.context(shape.name)?);
    }
    ensure!(!rows.is_empty(), "--only: no shape has this in its name");
    Ok(Hostile { seconds: plan.time.as_secs_f64(), rows })
}

async fn measure(program: &Path, plan: &Plan, shape: &shapes::Shape) -> Result<Row> {
    let cluster = Cluster::builder(program)
        .argument(format!("--snapshot-after-bytes={SNAPSHOT_AFTER_BYTES}"))
        .others_judge();
    let cluster = stranger::with_few_descriptors(cluster).await?;
    let leader = cluster.leader().await?;
    let (leads, term) = (leader.id(), term(leader).await?);
    let mut stranger = Stranger::new(&cluster, leads);
    (shape.prepare)(&mut stranger).await.context("cannot prepare")?;
    let holders = Holders::start(cluster.nodes().iter().map(Node::http)).await?;

    let pids: Vec<u32> = cluster.nodes().iter().filter_map(Node::pid).collect();
    let (cpu, resident) = (usage::cpu(&pids)?, each(&pids, usage::resident_bytes)?);
    for pid in &pids {
        // From here on the peak is that of what follows: proc_pid_clear_refs(5).
        fs::write(format!("/proc/{pid}/clear_refs"), "5").context("cannot reset the peak of memory")?;
    }
    let (before, begun) = (stranger.sent_bytes(), Instant::now());
    let done = (shape.attack)(&mut stranger, begun + plan.time).await.context("cannot go on")?;
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
    let grown = running.iter().map(|pid| {
        let before = pids.iter().position(|before| before == pid).map_or(0, |place| resident[place]);
        Ok(usage::peak_bytes(&[*pid])?.saturating_sub(before) as f64 / f64::from(1 << 20))
    });
    let memory_mib = grown.collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
    drop(stranger);
    let renewed = holders.stop()?;
    let mut row = Row {
        shape: shape.name,
        done,
        sent_bytes,
        longest_step_ms: None,
        cpu: used.as_secs_f64() / took.as_secs_f64(),
        memory_mib,
        renewed,
        elections: 0,
        ended,
    };
    for node in cluster.running() {
        let Ok(lag) = longest_lag_ms(node).await else { continue };
        row.longest_step_ms = Some(row.longest_step_ms.unwrap_or(0.0).max(lag));
        row.elections = row.elections.max(self::term(node).await?.saturating_sub(term));
    }
    Ok(row)
}

fn each(pids: &[u32], used: fn(&[u32]) -> Result<u64>) -> Result<Vec<u64>> {
    pids.iter().map(|pid| used(&[*pid])).collect()
}

async fn term(node: &Node) -> Result<u64> {
    match node.client().cluster().await? {
        Reply::Done { body, .. } => Ok(body.term),
        Reply::Refused(problem) => bail!("node {}: {}", node.id(), problem.detail),
    }
}

/// How long the runtime of `node` was busy with one thing at most, in the last half minute or since its start.
async fn longest_lag_ms(node: &Node) -> Result<f64> {
    let Reply::Done { body, .. } = node.client().metrics().await? else { bail!("no metrics") };
    let value = body.lines().find_map(|line| line.strip_prefix("ringfence_loop_lag_longest_seconds "));
    Ok(value.context("the loop lag is not there")?.trim().parse::<f64>()? * 1e3)
}

impl Row {
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        match self.longest_step_ms {
            Some(step) if step <= STEP.as_secs_f64() * 1e3 => {}
            Some(step) => faults.push(format!("a step took {} ms", digits(step))),
            None => faults.push("no node told how long its steps were".to_owned()),
        }
        if self.memory_mib > MEMORY_MIB {
            faults.push(format!("{} MiB were taken", digits(self.memory_mib)));
        }
        faults.extend(self.renewed.fault());
        if self.elections > 0 {
            faults.push(format!("{} elections", self.elections));
        }
        if !self.ended.is_empty() {
            faults.push(format!("nodes {:?} ended", self.ended));
        }
        faults
    }
}

impl Hostile {
    /// One line per shape.
    pub(crate) fn text(&self) -> String {
        let headings =
            ["shape", "done", "KB sent", "step ms", "CPU", "MiB", "renewal ms", "late", "elections", "ended"];
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                vec![
                    row.shape.to_owned(),
                    digits(row.done as f64),
                    digits(row.sent_bytes as f64 / 1e3),
                    row.longest_step_ms.map_or_else(|| "-".to_owned(), digits),
                    format!("{:.2}", row.cpu),
                    format!("{:.0}", row.memory_mib),
                    digits(row.renewed.longest_ms),
                    format!("{} of {}", row.renewed.late, row.renewed.renewals),
                    row.elections.to_string(),
                    row.ended.len().to_string(),
                ]
            })
            .collect();
        format!(
            "Each for {} s on a fresh cluster; the longest step of a node's runtime, CPU of all nodes in cores, memory of\n\
             the largest beyond what it had, the longest renewal of a holder and how many came too late\n\n{}",
            digits(self.seconds),
            table(&headings, &rows)
        )
    }

    /// Writes all figures.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        Ok(fs::write(path, serde_json::to_vec_pretty(self)?)?)
    }

    /// Fails where a shape did harm.
    pub(crate) fn check(&self) -> Result<()> {
        let harmed = self.rows.iter().filter_map(|row| {
            let faults = row.faults();
            (!faults.is_empty()).then(|| format!("{}: {}", row.shape, faults.join(", ")))
        });
        let harmed: Vec<String> = harmed.collect();
        ensure!(
            harmed.is_empty(),
            "{} of {} shapes did harm:\n  {}",
            harmed.len(),
            self.rows.len(),
            harmed.join("\n  ")
        );
        Ok(())
    }
}
