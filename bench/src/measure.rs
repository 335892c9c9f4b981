//! The same job done by all services that can do it, in turns; each is started for its turn.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::figures::{Figure, digits, table};
use crate::floor;
use crate::job::{Job, Queue, workers};
use crate::load::{closed, open};
use crate::plot::{self, Line, Panel};
use crate::service::{Contender, Service};
use crate::usage;

/// What threads have used, by process and name.
type Threads = BTreeMap<u32, BTreeMap<String, Duration>>;

/// Threads that use less are not shown.
const LEAST_US: f64 = 0.1;
/// The disk alone is measured no longer than this.
const FLOOR: Duration = Duration::from_secs(2);

/// What is measured, and how often.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) jobs: Vec<Job>,
    /// Who takes locks is a task of one program, and shares its connections.
    pub(crate) tasks: bool,
    pub(crate) clients: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    /// Turns a second, of an open load; a closed one if there is none.
    pub(crate) rate: Option<f64>,
}

/// What one service did of one job with so many clients.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) job: String,
    pub(crate) clients: usize,
    pub(crate) service: String,
    /// Locks that were taken and let go, reads, or writes.
    pub(crate) per_s: Figure,
    /// Of the acquiring call, the read or the write.
    pub(crate) p50_ms: Figure,
    pub(crate) p99_ms: Figure,
    pub(crate) p99_9_ms: Figure,
    /// Of all its processes, for 10,000 of them.
    pub(crate) cpu_s: Figure,
    /// Of each thread of the process that used the most, for one of them, in microseconds.
    pub(crate) thread_us: BTreeMap<String, Figure>,
    /// Of who made the load.
    pub(crate) load_cpu_s: Figure,
    pub(crate) peak_mib: Figure,
    pub(crate) flushes_per_s: Figure,
    /// Of those who wanted one key: how many of a hundred were granted it before all who asked later.
    pub(crate) in_order_percent: Figure,
}

/// All rows of all rounds.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Comparison {
    pub(crate) sync_p50_ms: Figure,
    pub(crate) rows: Vec<Row>,
}

/// One row for each job, number of clients and service, in this order.
pub(crate) async fn compare(contenders: &[Contender], plan: &Plan) -> Result<Comparison> {
    let mut sync_p50_ms = Figure::default();
    let mut rows = BTreeMap::new();
    for round in 1..=plan.rounds {
        let disk = tempfile::tempdir()?;
        sync_p50_ms.push(floor::sync_p50_ms(disk.path(), plan.time.min(FLOOR))?);
        for (place, contender) in contenders.iter().enumerate() {
            let jobs: Vec<Job> = plan.jobs.iter().copied().filter(|job| contender.can(*job)).collect();
            if jobs.is_empty() || plan.tasks && !contender.has_tasks() {
                continue;
            }
            eprintln!("round {round} of {}: {}", plan.rounds, contender.name());
            let service = contender.start().await?;
            for job in jobs {
                for &clients in &plan.clients {
                    let job_name = || match plan.tasks {
                        true => format!("{job}, as tasks of one program"),
                        false => job.to_string(),
                    };
                    let new =
                        || Row { job: job_name(), clients, service: contender.name(), ..Row::default() };
                    let row = rows.entry((job, clients, place)).or_insert_with(new);
                    measure(&*service, job, plan, row).await?;
                }
            }
        }
    }
    ensure!(!rows.is_empty(), "none of these services can do this");
    Ok(Comparison { sync_p50_ms, rows: rows.into_values().collect() })
}

async fn measure(service: &dyn Service, job: Job, plan: &Plan, row: &mut Row) -> Result<()> {
    let (pids, own) = (service.pids(), [std::process::id()]);
    let queue = Arc::new(Queue::default());
    let mut workers = workers(service, job, row.clients, plan.tasks, &queue).await?;
    closed(&mut workers, plan.time / 4).await?;
    let (cpu, own_cpu, flushes) = (usage::cpu(&pids)?, usage::cpu(&own)?, service.flushes().await);
    let threads = usage::cpu_by_thread(&pids)?;
    let load = match plan.rate {
        Some(rate) => open(&mut workers, rate, plan.time).await?,
        None => closed(&mut workers, plan.time).await?,
    };
    let units = job.units() as f64;
    let per_10_000 = |used: Duration| used.as_secs_f64() * 1e4 / (load.turns() as f64 * units);
    row.per_s.push(load.per_second() * units);
    row.p50_ms.push(load.quantile_ms(0.5));
    row.p99_ms.push(load.quantile_ms(0.99));
    row.p99_9_ms.push(load.quantile_ms(0.999));
    row.cpu_s.push(per_10_000(usage::cpu(&pids)? - cpu));
    row.load_cpu_s.push(per_10_000(usage::cpu(&own)? - own_cpu));
    for (name, used) in busiest(&threads, &usage::cpu_by_thread(&pids)?) {
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

/// What each thread used of the process that used the most.
fn busiest(before: &Threads, after: &Threads) -> BTreeMap<String, Duration> {
    let used = after.iter().map(|(pid, threads)| {
        let before =
            |name| before.get(pid).and_then(|threads| threads.get(name)).copied().unwrap_or_default();
        threads.iter().map(|(name, time)| (name.clone(), time.saturating_sub(before(name)))).collect()
    });
    used.max_by_key(|threads: &BTreeMap<String, Duration>| threads.values().sum::<Duration>())
        .unwrap_or_default()
}

impl Comparison {
    /// One table for each job and number of clients; ratios are those of its first row to each.
    pub(crate) fn text(&self) -> String {
        let mut text =
            format!("Three writers that append 200 B and sync: p50 {} ms\n", self.sync_p50_ms.spread());
        for rows in self.rows.chunk_by(|a, b| (&a.job, a.clients) == (&b.job, b.clients)) {
            let Some(first) = rows.first() else { continue };
            let ratio = |row: &Row, of: fn(&Row) -> &Figure| {
                let pair = of(first).median().zip(of(row).median());
                pair.map_or_else(|| "-".to_owned(), |(first, its)| digits(first / its))
            };
            let cells = rows.iter().map(|row| {
                vec![
                    row.service.clone(),
                    row.per_s.spread(),
                    ratio(row, |row| &row.per_s),
                    row.p50_ms.text(),
                    ratio(row, |row| &row.p50_ms),
                    row.p99_ms.text(),
                    ratio(row, |row| &row.p99_ms),
                    row.p99_9_ms.text(),
                    row.cpu_s.text(),
                    ratio(row, |row| &row.cpu_s),
                    row.load_cpu_s.text(),
                    row.peak_mib.text(),
                    row.flushes_per_s.text(),
                    row.in_order_percent.text(),
                ]
            });
            let (clients, cells) = (first.clients, cells.collect::<Vec<_>>());
            let _ = write!(text, "\n{clients} clients {}\n{}", first.job, table(&HEADINGS, &cells));
            let used = first.thread_us.iter().filter_map(|(name, us)| Some((name, us, us.median()?)));
            let used: Vec<_> = used.filter(|(_, _, median)| *median >= LEAST_US).collect();
            let used = used.iter().map(|(name, us, _)| format!("{name} {}", us.text())).collect::<Vec<_>>();
            if first.thread_us.len() > 1 {
                let _ = writeln!(text, "CPU of its threads, µs each: {}", used.join(", "));
            }
        }
        text
    }

    /// Of its first job: how many a second, and how long they took, for each number of clients.
    pub(crate) fn plot(&self) -> String {
        let first: Vec<&Row> = self.rows.iter().filter(|row| row.job == self.rows[0].job).collect();
        let panel = |what: &str, of: fn(&Row) -> &Figure| {
            let mut lines: Vec<Line> = Vec::new();
            for row in &first {
                let point = of(row).median().map(|value| (row.clients as f64, value));
                match lines.iter_mut().find(|line| line.name == row.service) {
                    Some(line) => line.points.extend(point),
                    None => {
                        lines.push(Line { name: row.service.clone(), points: point.into_iter().collect() })
                    }
                }
            }
            Panel { title: format!("{}: {what}", first[0].job), lines }
        };
        plot::svg(&[panel("how many a second", |row| &row.per_s), panel("p99, ms", |row| &row.p99_ms)])
    }

    /// Writes what [`Comparison::text`] shows, and each round's own figure.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        Ok(std::fs::write(path, serde_json::to_vec_pretty(self)?)?)
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
