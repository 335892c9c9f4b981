//! One load on one service: its extent, and its figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::args::{Repeats, count};
use crate::figures::Figure;
use crate::job::{Assignment, Job, Queue};
use crate::load::{Load, closed, open};
use crate::service::Service;
use crate::usage;

/// How many clients do their jobs, how often, and how long.
#[derive(Args, Clone, Debug)]
pub(crate) struct Extent {
    /// Numbers of clients to measure with [default: 64; for `compare` 1,8,64,256,1024; for `pairs` 1,64,256]
    #[arg(long, value_delimiter = ',', value_parser = count())]
    clients: Vec<usize>,
    #[command(flatten)]
    pub(crate) repeats: Repeats,
    /// Make an open load of this many calls per second. The latency of a call counts from when it was due
    #[arg(long)]
    rate: Option<u32>,
}

/// The figures of one service that does one job with one number of clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) job: String,
    pub(crate) clients: usize,
    pub(crate) service: String,
    /// Locks that were acquired and released, reads, or writes.
    pub(crate) per_s: Figure,
    /// Of the acquiring call, the read or the write.
    pub(crate) p50_ms: Figure,
    pub(crate) p99_ms: Figure,
    pub(crate) p99_9_ms: Figure,
    /// Of all its processes, for 10,000 of them.
    pub(crate) cpu_s: Figure,
    /// Of each thread of the process that used the most, for one of them, in microseconds.
    pub(crate) thread_us: BTreeMap<String, Figure>,
    /// Of the clients.
    pub(crate) load_cpu_s: Figure,
    pub(crate) peak_mib: Figure,
    pub(crate) flushes_per_s: Figure,
    /// The percentage of clients of one key that were granted it before all that asked later.
    pub(crate) in_order_percent: Figure,
}

impl Extent {
    /// The numbers of clients: those that were asked for, or these.
    pub(crate) fn clients<'a>(&'a self, default: &'a [usize]) -> &'a [usize] {
        if self.clients.is_empty() { default } else { &self.clients }
    }

    /// Measures one load, and adds its figures to `row`.
    pub(crate) async fn measure(
        &self,
        service: &dyn Service,
        job: Job,
        is_task: bool,
        row: &mut Row,
    ) -> Result<()> {
        let (pids, time) = (service.pids(), self.repeats.time());
        let own = [vec![std::process::id()], service.load_pids()].concat();
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
