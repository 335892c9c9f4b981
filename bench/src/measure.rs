//! The same jobs on every service that can do them, in turns. Each service is started for its turn.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::args::{Output, Repeats};
use crate::figures::{Figure, ratio, show, table};
use crate::floor;
use crate::job::Job;
use crate::service::Services;
use crate::turn::{Extent, Row};

/// Threads that use less are not shown.
const LEAST_US: f64 = 0.1;
/// The longest measurement of the disk alone.
const FLOOR: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    services: Services,
    #[command(flatten)]
    extent: Extent,
    #[command(flatten)]
    output: Output,
}

/// All rows of all rounds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Comparison {
    sync_p50_ms: Figure,
    pub(crate) rows: Vec<Row>,
}

impl Options {
    /// Measures `jobs` and prints the figures. With `tasks`, clients share the connections of one program.
    pub(crate) async fn run(&self, clients: &[usize], jobs: &[Job], tasks: bool) -> Result<()> {
        show(&self.compare(self.extent.clients(clients), jobs, tasks).await?, &self.output)
    }

    /// One row for each job, number of clients and service, in this order.
    async fn compare(&self, clients: &[usize], jobs: &[Job], tasks: bool) -> Result<Comparison> {
        let contenders = self.services.found()?;
        let mut sync_p50_ms = Figure::default();
        let mut rows = BTreeMap::new();
        let Repeats { rounds, .. } = self.extent.repeats;
        for round in 1..=rounds {
            let disk = tempfile::tempdir()?;
            sync_p50_ms.push(floor::sync_p50_ms(disk.path(), self.extent.repeats.time().min(FLOOR))?);
            for (place, contender) in contenders.iter().enumerate() {
                let jobs: Vec<Job> = jobs.iter().copied().filter(|job| contender.can(*job)).collect();
                if jobs.is_empty() || tasks && !contender.has_tasks() {
                    continue;
                }
                eprintln!("round {round} of {rounds}: {}", contender.name());
                let service = contender.start().await?;
                for (job, &clients) in jobs.iter().flat_map(|job| clients.iter().map(move |it| (*job, it))) {
                    let name = if tasks { ", as tasks of one program" } else { "" };
                    let row = rows.entry((job, clients, place)).or_insert_with(|| Row {
                        job: format!("{job}{name}"),
                        clients,
                        service: contender.name(),
                        ..Row::default()
                    });
                    self.extent.measure(&*service, job, tasks, row).await?;
                }
            }
        }
        ensure!(!rows.is_empty(), "none of these services can do this");
        Ok(Comparison { sync_p50_ms, rows: rows.into_values().collect() })
    }
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
