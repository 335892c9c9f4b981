//! The same jobs on every service that can do them, in turns. Each service is started for its turn.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::args::{Output, Repeats, count};
use crate::figures::{Figure, ratio, show, table};
use crate::floor;
use crate::job::{Assignment, Job, Queue};
use crate::load::{Load, closed, open};
use crate::service::{Service, Services};
use crate::usage;

/// Threads that use less are not shown.
const LEAST_US: f64 = 0.1;
/// The longest measurement of the disk alone.
const FLOOR: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    services: Services,
    /// Numbers of clients to measure with [default: 64; for `compare` 1,8,64,256,1024]
    #[arg(long, value_delimiter = ',', value_parser = count())]
    clients: Vec<usize>,
    #[command(flatten)]
    repeats: Repeats,
    /// Make an open load of this many calls per second. The latency of a call counts from when it was due
    #[arg(long)]
    rate: Option<u32>,
    #[command(flatten)]
    output: Output,
}

/// The figures of one service that does one job with one number of clients.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    job: String,
    clients: usize,
    service: String,
    /// Locks that were acquired and released, reads, or writes.
    per_s: Figure,
    /// Of the acquiring call, the read or the write.
    p50_ms: Figure,
    p99_ms: Figure,
    p99_9_ms: Figure,
    /// Of all its processes, for 10,000 of them.
    cpu_s: Figure,
    /// Of each thread of the process that used the most, for one of them, in microseconds.
    thread_us: BTreeMap<String, Figure>,
    /// Of the clients.
    load_cpu_s: Figure,
    peak_mib: Figure,
    flushes_per_s: Figure,
    /// The percentage of clients of one key that were granted it before all that asked later.
    in_order_percent: Figure,
}

/// All rows of all rounds.
#[derive(Clone, Debug, Default, Serialize)]
struct Comparison {
    sync_p50_ms: Figure,
    rows: Vec<Row>,
}

impl Options {
    /// Measures `jobs` and prints the figures. With `tasks`, clients share the connections of one program.
    pub(crate) async fn run(&self, clients: &[usize], jobs: &[Job], tasks: bool) -> Result<()> {
        let clients = if self.clients.is_empty() { clients } else { &self.clients };
        show(&self.compare(clients, jobs, tasks).await?, &self.output)
    }

    /// One row for each job, number of clients and service, in this order.
    async fn compare(&self, clients: &[usize], jobs: &[Job], tasks: bool) -> Result<Comparison> {
        let contenders = self.services.found()?;
        let mut sync_p50_ms = Figure::default();
        let mut rows = BTreeMap::new();
        for round in 1..=self.repeats.rounds {
            let disk = tempfile::tempdir()?;
            sync_p50_ms.push(floor::sync_p50_ms(disk.path(), self.repeats.time().min(FLOOR))?);
            for (place, contender) in contenders.iter().enumerate() {
                let jobs: Vec<Job> = jobs.iter().copied().filter(|job| contender.can(*job)).collect();
                if jobs.is_empty() || tasks && !contender.has_tasks() {
                    continue;
                }
                eprintln!("round {round} of {}: {}", self.repeats.rounds, contender.name());
                let service = contender.start().await?;
                for (job, &clients) in jobs.iter().flat_map(|job| clients.iter().map(move |it| (*job, it))) {
                    let name = if tasks { ", as tasks of one program" } else { "" };
                    let row = rows.entry((job, clients, place)).or_insert_with(|| Row {
                        job: format!("{job}{name}"),
                        clients,
                        service: contender.name(),
                        ..Row::default()
                    });
                    self.measure(&*service, job, tasks, row).await?;
                }
            }
        }
        ensure!(!rows.is_empty(), "none of these services can do this");
        Ok(Comparison { sync_p50_ms, rows: rows.into_values().collect() })
    }

    async fn measure(&self, service: &dyn Service, job: Job, is_task: bool, row: &mut Row) -> Result<()> {
        let (pids, own, time) = (service.pids(), [std::process::id()], self.repeats.time());
        let queue = Arc::new(Queue::default());
        let mut workers = Vec::new();
        for number in 0..row.clients {
            let assignment = Assignment { job, number, is_task, queue: Arc::clone(&queue) };
            workers.push(service.worker(&assignment).await?);
        }
        closed(&mut workers, time / 4).await?;
        let (cpu, own_cpu, flushes) = (usage::cpu(&pids)?, usage::cpu(&own)?, service.flushes().await);
        let threads = usage::cpu_by_thread(&pids)?;
        let load = match self.rate {
            Some(rate) => open(&mut workers, f64::from(rate), time).await?,
            None => closed(&mut workers, time).await?,
        };
        let units = job.units() as f64;
        let per_10_000 = |used: Duration| per_10_000(used, &load) / units;
        row.per_s.push(load.per_second() * units);
        row.p50_ms.push(load.quantile_ms(0.5));
        row.p99_ms.push(load.quantile_ms(0.99));
        row.p99_9_ms.push(load.quantile_ms(0.999));
        row.cpu_s.push(per_10_000(usage::cpu(&pids)? - cpu));
        row.load_cpu_s.push(per_10_000(usage::cpu(&own)? - own_cpu));
        for (name, used) in usage::busiest(&threads, &usage::cpu_by_thread(&pids)?) {
            row.thread_us.entry(name).or_default().push(per_10_000(used) * 100.0);
        }
        row.peak_mib.push(usage::peak_bytes(&pids)? as f64 / f64::from(1 << 20));
        if let Some((before, after)) = flushes.zip(service.flushes().await) {
            row.flushes_per_s.push((after - before) as f64 / load.took.as_secs_f64());
        }
        if let Some(percent) = queue.in_order_percent() {
            row.in_order_percent.push(percent);
        }
        Ok(())
    }
}

/// The seconds that 10,000 turns use, where a whole load used this much.
pub(crate) fn per_10_000(used: Duration, load: &Load) -> f64 {
    used.as_secs_f64() * 1e4 / load.turns() as f64
}

impl fmt::Display for Comparison {
    /// One table for each job and number of clients. Ratios are those of its first row to each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Three writers that append 200 B and sync: p50 {} ms", self.sync_p50_ms.spread())?;
        for rows in self.rows.chunk_by(|a, b| (&a.job, a.clients) == (&b.job, b.clients)) {
            let Some(first) = rows.first() else { continue };
            let to_first = |row: &Row, of: fn(&Row) -> &Figure| ratio(of(first), of(row));
            let cells = rows.iter().map(|row| {
                vec![
                    row.service.clone(),
                    row.per_s.spread(),
                    to_first(row, |row| &row.per_s),
                    row.p50_ms.text(),
                    to_first(row, |row| &row.p50_ms),
                    row.p99_ms.text(),
                    to_first(row, |row| &row.p99_ms),
                    row.p99_9_ms.text(),
                    row.cpu_s.text(),
                    to_first(row, |row| &row.cpu_s),
                    row.load_cpu_s.text(),
                    row.peak_mib.text(),
                    row.flushes_per_s.text(),
                    row.in_order_percent.text(),
                ]
            });
            let cells: Vec<_> = cells.collect();
            write!(f, "\n{} clients {}\n{}", first.clients, first.job, table(&HEADINGS, &cells))?;
            let used = first.thread_us.iter().filter(|(_, us)| us.median() >= Some(LEAST_US));
            let used: Vec<_> = used.map(|(name, us)| format!("{name} {}", us.text())).collect();
            if first.thread_us.len() > 1 {
                writeln!(f, "CPU of its threads, µs each: {}", used.join(", "))?;
            }
        }
        Ok(())
    }
}

const HEADINGS: [&str; 14] = [
    "",
    "per s",
    "ratio",
    "p50 ms",
    "ratio",
    "p99 ms",
    "ratio",
    "p99.9 ms",
    "CPU s/10k",
    "ratio",
    "load CPU",
    "peak MiB",
    "flushes/s",
    "in order %",
];
