//! What live leases cost: the same figures with ever more of them, each time on a fresh cluster of three nodes.
//!
//! All leases are renewed at a third of their TTL, as their holders would. A follower is down while they are acquired, and
//! catches up. In the end all nodes are killed, and must have kept every lease.

mod batches;
mod expiry;
mod node;
mod renewals;
mod report;
mod snapshots;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use ringfence_harness::{Cluster, Node, until};
use serde::Serialize;
use tokio::time::Instant;

use crate::args::{Output, Program, count};
use crate::load::closed;
use crate::service::{Ringfence, Service};
use crate::usage;

use batches::fill;
use expiry::{Expiry, expire};
use renewals::{Renewals, Renewed};
use snapshots::{Snapshots, snapshots};

/// The TTL of each lease.
const TTL: Duration = Duration::from_secs(600);
/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(120);

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    ringfence: Program,
    /// Numbers of live leases to measure with
    #[arg(long, value_delimiter = ',', default_value = "1000,100000,1000000",
        value_parser = clap::value_parser!(u64).range(1..))]
    leases: Vec<u64>,
    /// Number of clients
    #[arg(long, default_value_t = 64, value_parser = count())]
    clients: usize,
    /// Nodes take a snapshot after this many bytes of log; less than by default, to see snapshots with few leases too
    #[arg(long, default_value_t = 8 << 20, value_parser = clap::value_parser!(u64).range(65_536..))]
    snapshot_after_bytes: u64,
    /// Seconds per measurement
    #[arg(long, default_value_t = 10, value_parser = count())]
    seconds: usize,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The figures of all numbers of leases.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Scale {
    clients: usize,
    rows: Vec<Row>,
}

/// The figures of one number of live leases.
#[derive(Clone, Debug, Serialize)]
struct Row {
    leases: u64,
    fill_s: f64,
    /// Of a follower that was down meanwhile.
    catch_up_s: f64,
    cycles_per_s: f64,
    acquire_p50_ms: f64,
    acquire_p99_ms: f64,
    acquire_p99_9_ms: f64,
    snapshots: Snapshots,
    /// Of each node, while only these leases were live.
    resident_bytes: Vec<u64>,
    /// Of each node, at the end.
    peak_bytes: Vec<u64>,
    expiry: Expiry,
    renewed: Renewed,
    /// The longest, while leases expired.
    renewal_at_expiry_ms: f64,
    /// Of all nodes at once.
    restart_s: f64,
}

pub(crate) async fn scale(plan: &Plan) -> Result<Scale> {
    let mut rows = Vec::new();
    for &leases in &plan.leases {
        rows.push(measure(plan, leases).await.with_context(|| format!("with {leases} leases"))?);
    }
    Ok(Scale { clients: plan.clients, rows })
}

async fn measure(plan: &Plan, leases: u64) -> Result<Row> {
    let time = Duration::from_secs(plan.seconds as u64);
    let cluster = Cluster::builder(plan.ringfence.path()?)
        .argument(format!("--snapshot-after-bytes={}", plan.snapshot_after_bytes))
        .start()
        .await?;
    let service = Ringfence::of(cluster).await?;
    let (cluster, address) = (service.cluster(), service.leader());
    let leader = cluster.leader().await?;

    eprintln!("{leases} leases: acquired, while a follower is down");
    let behind = cluster.others(leader.id()).next().context("there is no follower")?;
    behind.kill()?;
    let begun = Instant::now();
    let ids = fill(address, "live", leases, || TTL).await?;
    let fill_s = begun.elapsed().as_secs_f64();
    has_live(leader, leases).await?;
    let renewals = Renewals::start(address, ids, begun);
    behind.start()?;
    let catch_up_s = seconds(cluster.caught_up(SOON)).await?;

    eprintln!("{leases} leases: cycles");
    let mut workers = service.cycles(plan.clients, |client| format!("own/{client}")).await?;
    closed(&mut workers, time / 4).await?;
    let load = closed(&mut workers, time).await?;
    eprintln!("{leases} leases: snapshots");
    let snapshots = snapshots(cluster, leader, workers).await?;
    has_live(leader, leases).await?;
    let resident_bytes = of_each(&service, usage::resident_bytes)?;

    eprintln!("{leases} leases: a tenth as many expire");
    let expiry = expire(leader, leases, fill_s / leases as f64).await?;
    has_live(leader, leases).await?;
    let peak_bytes = of_each(&service, usage::peak_bytes)?;

    eprintln!("{leases} leases: all nodes are killed");
    let leads = cluster.leader().await?.id();
    ensure!(leads == leader.id(), "node {leads} leads instead of node {}: void", leader.id());
    let renewals = renewals.stop().await?;
    cluster.kill_all()?;
    let restart_s = seconds(cluster.all_ready()).await?;
    has_live(cluster.leader().await?, leases).await?;

    Ok(Row {
        leases,
        fill_s,
        catch_up_s,
        cycles_per_s: load.per_second(),
        acquire_p50_ms: load.quantile_ms(0.5),
        acquire_p99_ms: load.quantile_ms(0.99),
        acquire_p99_9_ms: load.quantile_ms(0.999),
        snapshots,
        resident_bytes,
        peak_bytes,
        renewal_at_expiry_ms: renewals::longest_ms(&renewals, expiry.begun, expiry.over),
        expiry,
        renewed: Renewed::of(&renewals),
        restart_s,
    })
}

async fn seconds<T, E>(done: impl Future<Output = Result<T, E>>) -> Result<f64, E> {
    let begun = Instant::now();
    done.await?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Fails unless this many leases are live.
async fn has_live(node: &Node, leases: u64) -> Result<()> {
    let look = || async { (node::status(node).await.ok()?.live_leases == leases).then_some(()) };
    let live = until(Duration::from_secs(5), format!("{leases} leases are live"), look).await;
    live.with_context(|| format!("node {}", node.id()))
}

fn of_each(service: &Ringfence, used: fn(&[u32]) -> Result<u64>) -> Result<Vec<u64>> {
    service.pids().into_iter().map(|pid| used(&[pid])).collect()
}
