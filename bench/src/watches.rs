//! What watchers cost those who acquire: the same load, without watchers and with many, in turns.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use ringfence_harness::Cluster;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::figures::{Figure, digits, table};
use crate::job::cycles;
use crate::load::closed;
use crate::service::{Ringfence, Service};
use crate::usage;

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) watchers: usize,
    pub(crate) clients: usize,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
}

/// What was measured with so many watchers.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) watchers: usize,
    pub(crate) per_s: Figure,
    pub(crate) p50_ms: Figure,
    pub(crate) p99_ms: Figure,
    /// Of all nodes, for 10,000 cycles.
    pub(crate) cpu_s: Figure,
    /// Of who made the load and read the watches.
    pub(crate) load_cpu_s: Figure,
    /// What all watchers together were told.
    pub(crate) told_per_s: Figure,
}

/// Without watchers, and with them.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Watches {
    pub(crate) clients: usize,
    pub(crate) rows: [Row; 2],
}

/// Measures both in each round, by turns the one or the other first.
pub(crate) async fn watches(program: &Path, plan: &Plan) -> Result<Watches> {
    let ringfence = Ringfence::of(Cluster::builder(program).start().await?).await?;
    let mut rows = [Row::default(), Row { watchers: plan.watchers, ..Row::default() }];
    for round in 0..plan.rounds {
        for turn in 0..rows.len() {
            let row = &mut rows[(turn + round) % 2];
            eprintln!("round {} of {}: {} watchers", round + 1, plan.rounds, row.watchers);
            measure(&ringfence, plan, row).await?;
        }
    }
    Ok(Watches { clients: plan.clients, rows })
}

async fn measure(ringfence: &Ringfence, plan: &Plan, row: &mut Row) -> Result<()> {
    let (pids, own) = (ringfence.pids(), [std::process::id()]);
    let key = |client: usize| format!("watched/{:05}", client % plan.clients);
    let watched = (0..row.watchers).map(key).collect();
    let watchers = Watchers::start(ringfence.leader(), watched).await?;
    let mut workers = cycles(ringfence, plan.clients, key).await?;
    closed(&mut workers, plan.time / 4).await?;
    let (cpu, own_cpu, told) = (usage::cpu(&pids)?, usage::cpu(&own)?, watchers.told());
    let load = closed(&mut workers, plan.time).await?;
    let per_10_000 = |used: Duration| used.as_secs_f64() * 1e4 / load.turns() as f64;
    row.per_s.push(load.per_second());
    row.p50_ms.push(load.quantile_ms(0.5));
    row.p99_ms.push(load.quantile_ms(0.99));
    row.cpu_s.push(per_10_000(usage::cpu(&pids)? - cpu));
    row.load_cpu_s.push(per_10_000(usage::cpu(&own)? - own_cpu));
    row.told_per_s.push((watchers.told() - told) as f64 / load.took.as_secs_f64());
    watchers.end()
}

/// Connections that only read, on a thread of their own: who makes the load is not to wait for them.
struct Watchers {
    told: Arc<AtomicU64>,
    end: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Watchers {
    /// One for each of these prefixes; returns when all have begun.
    async fn start(node: SocketAddr, prefixes: Vec<String>) -> Result<Self> {
        let (told, (end, ended), (ready, all)) =
            (Arc::<AtomicU64>::default(), oneshot::channel(), oneshot::channel());
        let counted = Arc::clone(&told);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut reading = JoinSet::new();
                for prefix in prefixes {
                    reading.spawn(read(open(node, &prefix).await?, Arc::clone(&counted)));
                }
                // Whoever waits for it has failed otherwise.
                let _ = ready.send(());
                tokio::select! {
                    _ = ended => Ok(()),
                    Some(broken) = reading.join_next() => broken?,
                }
            })
        });
        let watchers = Self { told, end, thread };
        match all.await {
            Ok(()) => Ok(watchers),
            Err(_) => watchers.end().and(Err(anyhow!("the watchers have ended"))),
        }
    }

    /// How many events all of them have read.
    fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Ends them; fails if one of them was ended before.
    fn end(self) -> Result<()> {
        let _ = self.end.send(());
        self.thread.join().map_err(|_| anyhow!("the watchers have panicked"))?
    }
}

async fn open(node: SocketAddr, prefix: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(node).await?;
    let request = format!("GET /v1/watch?prefix={prefix} HTTP/1.1\r\nhost: {node}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await?;
        head.extend(byte);
    }
    ensure!(head.starts_with(b"HTTP/1.1 200 "), "watch: {}", String::from_utf8_lossy(&head));
    Ok(stream)
}

/// Counts events by the empty lines that end them.
async fn read(mut stream: TcpStream, told: Arc<AtomicU64>) -> Result<()> {
    let (mut buffer, mut last) = (vec![0; 64 << 10], 0);
    loop {
        let bytes = stream.read(&mut buffer).await.context("a watch")?;
        ensure!(bytes > 0, "a watch was ended");
        let read = &buffer[..bytes];
        // This costs more where many are told, which is not what is measured.
        let ends =
            memchr::memmem::find_iter(read, b"\n\n").count() + usize::from((last, read[0]) == (b'\n', b'\n'));
        told.fetch_add(ends as u64, Ordering::Relaxed);
        last = read[bytes - 1];
    }
}

impl Watches {
    /// A row without watchers, one with, and what the second has of the first.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{} clients acquire and release a key of their own; each is watched by as many, at the leader\n",
            self.clients
        );
        let [without, with] = &self.rows;
        let ratio = |of: fn(&Row) -> &Figure| {
            let pair = of(with).median().zip(of(without).median());
            pair.map_or_else(|| "-".to_owned(), |(with, without)| digits(with / without))
        };
        let of: [fn(&Row) -> &Figure; 5] =
            [|row| &row.per_s, |row| &row.p50_ms, |row| &row.p99_ms, |row| &row.cpu_s, |row| &row.load_cpu_s];
        let cells = |row: &Row| {
            let cells = of.iter().map(|of| of(row).spread());
            let name = format!("{} watchers", row.watchers);
            std::iter::once(name).chain(cells).chain([row.told_per_s.text()]).collect::<Vec<_>>()
        };
        let ratios = std::iter::once("ratio".to_owned()).chain(of.iter().map(|of| ratio(*of))).collect();
        let rows = [cells(without), cells(with), ratios];
        let headings = ["", "cycles/s", "p50 ms", "p99 ms", "CPU s/10k", "load CPU", "told/s"];
        let _ = write!(text, "{}", table(&headings, &rows));
        text
    }

    /// Writes what [`Watches::text`] shows, and each round's own figure.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        Ok(std::fs::write(path, serde_json::to_vec_pretty(self)?)?)
    }
}
