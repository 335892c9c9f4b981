//! How long after the time to live of a holder that is gone the next one holds: alone, and if the leader is gone, too.

use std::fmt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::args::{Output, count};
use crate::background::{Background, Ready, Stop};
use crate::figures::{Figure, digits, table};
use crate::service::{Contender, Handing, Loss, Services};

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    services: Services,
    /// Number of rounds, each with servers that are new
    #[arg(long, default_value_t = 5, value_parser = count())]
    rounds: usize,
    /// Number of locks in a round, each with a holder and a client that waits
    #[arg(long, default_value_t = 20, value_parser = count())]
    locks: usize,
    /// Time to live of the holders, in seconds
    #[arg(long, default_value_t = 5, value_parser = count())]
    ttl: usize,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The figures of one service after one loss.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Row {
    service: String,
    loss: String,
    /// From the end of the time to live until the next client holds. Below 0 if that time began before the holder knew that it holds.
    beyond_s: Figure,
}

/// All rows of all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Handover {
    pub(crate) ttl_s: usize,
    rows: Vec<Row>,
}

pub(crate) const LOSSES: [(&str, Option<Loss>); 3] = [
    ("holder gone", None),
    ("holder gone, leader killed", Some(Loss::Killed)),
    ("holder gone, leader stopped", Some(Loss::Stopped)),
];
/// The time to live of those that wait, while they do not tell that they live.
const WAITER_TTL: Duration = Duration::from_secs(60);
/// A next holder that comes earlier still would share the lock.
const EARLIEST_S: f64 = -0.5;
/// Bounds the time until a free lock is held, and the time beyond the time to live.
const LATEST: Duration = Duration::from_secs(120);

impl Handover {
    /// The medians of a service, in the order of [`LOSSES`]; `None` where it was not measured.
    pub(crate) fn medians(&self, service: &str) -> [Option<f64>; 3] {
        LOSSES.map(|(loss, _)| {
            let row = self.rows.iter().find(|row| row.service == service && row.loss == loss);
            row?.beyond_s.median()
        })
    }
}

/// Measures all services in each round.
pub(crate) async fn handover(plan: &Plan) -> Result<Handover> {
    let mut contenders = plan.services.found()?;
    contenders.retain(|it| it.start_handing().is_some());
    ensure!(!contenders.is_empty(), "none of these services can do this");
    let named = |(loss, _)| contenders.iter().map(move |it| (it.name(), loss));
    let rows = LOSSES.into_iter().flat_map(named);
    let mut rows: Vec<_> =
        rows.map(|(service, loss)| Row { service, loss: loss.to_owned(), ..Row::default() }).collect();
    for round in 1..=plan.rounds {
        let starts = || contenders.iter().filter_map(Contender::start_handing);
        let turns = LOSSES.iter().flat_map(|(_, loss)| starts().map(move |start| (*loss, start)));
        for ((loss, start), row) in turns.zip(&mut rows) {
            eprintln!("round {round} of {}: {}, {}", plan.rounds, row.service, row.loss);
            measure(&*start.await?, plan, loss, row)
                .await
                .with_context(|| format!("{}, {}", row.service, row.loss))?;
        }
    }
    Ok(Handover { ttl_s: plan.ttl, rows })
}

async fn measure(service: &dyn Handing, plan: &Plan, loss: Option<Loss>, row: &mut Row) -> Result<()> {
    let ttl = Duration::from_secs(plan.ttl as u64);
    let (mut gone, mut waiting) = (Vec::new(), JoinSet::new());
    let begun = Instant::now();
    for lock in 0..plan.locks {
        let key = format!("handover/{lock}");
        let held = service.hold(key.clone(), ttl);
        let client = async move |ready, stop| freeze(timeout(LATEST, held).await??, ready, stop);
        gone.push(Background::start(client).await?);
        let end = Instant::now() + ttl;
        let next = service.hold(key.clone(), WAITER_TTL);
        waiting.spawn(async move {
            // Kept by its client until all have been measured.
            let held = next.await?;
            let now = Instant::now();
            let late = now.saturating_duration_since(end).as_secs_f64();
            let beyond_s = late - end.saturating_duration_since(now).as_secs_f64();
            ensure!(beyond_s > EARLIEST_S, "{key}: the next one holds {} s too early", -beyond_s);
            Ok((beyond_s, held))
        });
    }
    if let Some(loss) = loss {
        // By then, all wait: half of the time, as a leader is lost at any moment.
        sleep_until(begun + ttl / 2).await;
        service.lose_leader(loss).await?;
    }
    let latest = Instant::now() + ttl + LATEST;
    let mut kept = Vec::new();
    while let Some(done) =
        timeout_at(latest, waiting.join_next()).await.context("a lock has no next holder")?
    {
        let (beyond_s, held) = done??;
        row.beyond_s.push(beyond_s);
        kept.push(held);
    }
    gone.into_iter().try_for_each(Background::stop)
}

/// Does nothing any more, nor does any task of this runtime: the client is gone without a word.
fn freeze<T>(held: T, ready: Ready, stop: Stop) -> Result<()> {
    ready.send();
    while !stop.is_requested() {
        thread::sleep(Duration::from_millis(10));
    }
    drop(held);
    Ok(())
}

impl fmt::Display for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ttl_s, rows } = self;
        writeln!(f, "Seconds beyond the time to live of {ttl_s} s, until the next client holds\n")?;
        let cells = rows.iter().map(|Row { service, loss, beyond_s }| {
            let p99 = beyond_s.quantile(99, 100).map_or_else(|| "-".to_owned(), digits);
            vec![format!("{loss}: {service}"), p99, beyond_s.spread()]
        });
        f.write_str(&table(&["", "p99", "median (least to most)"], &cells.collect::<Vec<_>>()))
    }
}
