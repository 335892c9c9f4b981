//! What watchers cost the clients that acquire: the same load without watchers and with many, in turns.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ringfence_harness::{Cluster, HttpConnection};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::args::{Output, Program, Repeats, count};
use crate::background::{Background, Ready, Stop};
use crate::figures::{Figure, ratio, table};
use crate::load::closed;
use crate::service::{Ringfence, Service};
use crate::turn::per_10_000;
use crate::usage;

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    ringfence: Program,
    /// Number of watches, each on the key of one client
    #[arg(long, default_value_t = 1_000, value_parser = count())]
    watchers: usize,
    /// Number of clients
    #[arg(long, default_value_t = 64, value_parser = count())]
    clients: usize,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The figures with one number of watchers.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    watchers: usize,
    per_s: Figure,
    p50_ms: Figure,
    p99_ms: Figure,
    /// Of all nodes, for 10,000 cycles.
    cpu_s: Figure,
    /// Of the clients and the watchers.
    load_cpu_s: Figure,
    /// The events that all watchers received.
    told_per_s: Figure,
}

/// Without watchers, and with them.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Watches {
    clients: usize,
    rows: [Row; 2],
}

/// Measures both in each round, in alternating order.
pub(crate) async fn watches(plan: &Plan) -> Result<Watches> {
    let cluster = Cluster::builder(plan.ringfence.path()?).start().await?;
    let ringfence = Ringfence::of(cluster).await?;
    let mut rows = [Row::default(), Row { watchers: plan.watchers, ..Row::default() }];
    for round in 0..plan.repeats.rounds {
        for turn in 0..rows.len() {
            let row = &mut rows[(turn + round) % 2];
            eprintln!("round {} of {}: {} watchers", round + 1, plan.repeats.rounds, row.watchers);
            measure(&ringfence, plan, row).await?;
        }
    }
    Ok(Watches { clients: plan.clients, rows })
}

async fn measure(ringfence: &Ringfence, plan: &Plan, row: &mut Row) -> Result<()> {
    let (pids, own, time) = (ringfence.pids(), [std::process::id()], plan.repeats.time());
    let key = |client: usize| format!("watched/{:05}", client % plan.clients);
    let events = Arc::<AtomicU64>::default();
    let prefixes = (0..row.watchers).map(key).collect();
    let watchers = watch(ringfence.leader(), prefixes, Arc::clone(&events)).await?;
    let mut workers = ringfence.cycles(plan.clients, key).await?;
    closed(&mut workers, time / 4).await?;
    let received = || events.load(Ordering::Relaxed);
    let (cpu, own_cpu, before) = (usage::cpu(&pids)?, usage::cpu(&own)?, received());
    let load = closed(&mut workers, time).await?;
    row.per_s.push(load.per_second());
    row.p50_ms.push(load.quantile_ms(0.5));
    row.p99_ms.push(load.quantile_ms(0.99));
    row.cpu_s.push(per_10_000(usage::cpu(&pids)? - cpu, &load));
    row.load_cpu_s.push(per_10_000(usage::cpu(&own)? - own_cpu, &load));
    row.told_per_s.push((received() - before) as f64 / load.took.as_secs_f64());
    watchers.stop()
}

/// Watches each of these prefixes and counts the events; fails if a watch ends.
async fn watch(node: SocketAddr, prefixes: Vec<String>, events: Arc<AtomicU64>) -> Result<Background<()>> {
    let work = async move |ready: Ready, mut stop: Stop| {
        let mut reading = JoinSet::new();
        for prefix in prefixes {
            let stream = HttpConnection::stream(node, &format!("/v1/watch?prefix={prefix}")).await?;
            reading.spawn(read(stream, Arc::clone(&events)));
        }
        ready.send();
        tokio::select! {
            () = stop.requested() => Ok(()),
            Some(broken) = reading.join_next() => broken?,
        }
    };
    Background::start(work).await.context("watchers")
}

/// Counts events by the empty lines that end them: parsing them would cost more the more there are.
async fn read(mut stream: TcpStream, events: Arc<AtomicU64>) -> Result<()> {
    let (mut buffer, mut last) = (vec![0; 64 << 10], 0);
    loop {
        let bytes = stream.read(&mut buffer).await.context("a watch")?;
        ensure!(bytes > 0, "a watch has ended");
        let read = &buffer[..bytes];
        let ends =
            memchr::memmem::find_iter(read, b"\n\n").count() + usize::from((last, read[0]) == (b'\n', b'\n'));
        events.fetch_add(ends as u64, Ordering::Relaxed);
        last = read[bytes - 1];
    }
}

impl fmt::Display for Watches {
    /// A row without watchers, one with them, and the ratio of the second to the first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} clients acquire and release a key of their own; each is watched by as many, at the leader",
            self.clients
        )?;
        let [without, with] = &self.rows;
        let of: [fn(&Row) -> &Figure; 5] =
            [|row| &row.per_s, |row| &row.p50_ms, |row| &row.p99_ms, |row| &row.cpu_s, |row| &row.load_cpu_s];
        let cells = |row: &Row| {
            let cells = of.iter().map(|of| of(row).spread());
            let name = format!("{} watchers", row.watchers);
            std::iter::once(name).chain(cells).chain([row.told_per_s.text()]).collect::<Vec<_>>()
        };
        let ratios = of.iter().map(|of| ratio(of(with), of(without)));
        let ratios = std::iter::once("ratio".to_owned()).chain(ratios).collect();
        let headings = ["", "cycles/s", "p50 ms", "p99 ms", "CPU s/10k", "load CPU", "told/s"];
        f.write_str(&table(&headings, &[cells(without), cells(with), ratios]))
    }
}
