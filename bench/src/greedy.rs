//! What a principal costs the others that has all its limits allow, and asks for twice as much: the same load without it and
//! beside it, in turns.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use ringfence_wire::LeaseId;
use serde::Serialize;
use tokio::time::Instant;

use crate::args::{Output, Program, Repeats, count};
use crate::background::{Background, Ready, Stop};
use crate::figures::{Figure, ratio, table};
use crate::load::open;
use crate::service::{GREEDY_REQUESTS_PER_S, Ringfence, Security, start_ringfence};

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    ringfence: Program,
    /// Number of clients of the other principal
    #[arg(long, default_value_t = 16, value_parser = count())]
    clients: usize,
    /// Their cycles per second, all together
    #[arg(long, default_value_t = 500, value_parser = count())]
    rate: usize,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The figures of the others.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    p50_ms: Figure,
    p99_ms: Figure,
    /// What the greedy one was granted and refused.
    granted_per_s: Figure,
    refused_per_s: Figure,
}

/// Without it, and beside it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Greed {
    clients: usize,
    rate: usize,
    rows: [Row; 2],
}

/// Measures both in each round, in alternating order.
pub(crate) async fn greed(plan: &Plan) -> Result<Greed> {
    let ringfence = start_ringfence(&plan.ringfence.path()?, Security::Rules).await?;
    let mut rows = [Row::default(), Row::default()];
    for round in 0..plan.repeats.rounds {
        for turn in 0..rows.len() {
            let is_beside = (turn + round) % 2 == 1;
            eprintln!("round {} of {}: {}", round + 1, plan.repeats.rounds, NAMES[usize::from(is_beside)]);
            measure(&ringfence, plan, is_beside, &mut rows[usize::from(is_beside)]).await?;
        }
    }
    Ok(Greed { clients: plan.clients, rate: plan.rate, rows })
}

const NAMES: [&str; 2] = ["alone", "beside it"];
/// As many connections as it needs for twice its requests.
const CONNECTIONS: usize = 8;

async fn measure(ringfence: &Ringfence, plan: &Plan, is_beside: bool, row: &mut Row) -> Result<()> {
    let (rate, time) = (plan.rate as f64, plan.repeats.time());
    let greedy = if is_beside { Some(start(ringfence).await?) } else { None };
    let mut workers = ringfence.cycles(plan.clients, |client| format!("others/{client}")).await?;
    open(&mut workers, rate, time / 4).await?;
    let load = open(&mut workers, rate, time).await?;
    row.p50_ms.push(load.quantile_ms(0.5));
    row.p99_ms.push(load.quantile_ms(0.99));
    let (granted, refused, took) = greedy.map_or(Ok((0, 0, Duration::from_secs(1))), Background::stop)?;
    ensure!(!is_beside || granted > 0 && refused > 0, "{granted} were granted and {refused} refused");
    row.granted_per_s.push(f64::from(granted) / took.as_secs_f64());
    row.refused_per_s.push(f64::from(refused) / took.as_secs_f64());
    Ok(())
}

/// Acquires without end; returns how many leases it was granted and refused, and in which time.
async fn start(ringfence: &Ringfence) -> Result<Background<(u32, u32, Duration)>> {
    let connector = ringfence.greedy();
    let work = async move |ready: Ready, stop: Stop| {
        let mut asking = Vec::new();
        for number in 0..CONNECTIONS {
            asking.push((number, connector.connect().await?));
        }
        // Leases of an earlier round may be left.
        let (run, begun) = (LeaseId::random(), Instant::now());
        ready.send();
        let each = asking.into_iter().map(|(number, mut connection)| {
            let stop = stop.clone();
            async move {
                let (mut granted, mut refused) = (0_u32, 0_u32);
                for turn in 0.. {
                    if stop.is_requested() {
                        break;
                    }
                    let due = f64::from(turn) * CONNECTIONS as f64 / f64::from(2 * GREEDY_REQUESTS_PER_S);
                    tokio::time::sleep_until(begun + Duration::from_secs_f64(due)).await;
                    let body = format!(r#"{{"keys":["greedy/{run}/{number}/{turn}"],"ttl_ms":10000}}"#);
                    match connection.call("POST", "/v1/leases", &body).await?.status {
                        201 => granted += 1,
                        429 => refused += 1,
                        status => anyhow::bail!("status {status}"),
                    }
                }
                anyhow::Ok((granted, refused))
            }
        });
        let counts = futures_util::future::try_join_all(each).await?;
        let (granted, refused) = counts.into_iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        Ok((granted, refused, begun.elapsed()))
    };
    Background::start(work).await
}

impl fmt::Display for Greed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, rate, .. } = self;
        writeln!(
            f,
            "{clients} clients acquire and release {rate} times a second in all, with TLS and rules, alone and beside a principal \
             that asks for twice its {GREEDY_REQUESTS_PER_S} requests/s and has 1,000 leases"
        )?;
        let [alone, beside] = &self.rows;
        let of: [fn(&Row) -> &Figure; 2] = [|row| &row.p50_ms, |row| &row.p99_ms];
        let cells = |name: &str, row: &Row| {
            let cells = of.iter().map(|of| of(row).spread());
            let others = [row.granted_per_s.text(), row.refused_per_s.text()];
            std::iter::once(name.to_owned()).chain(cells).chain(others).collect::<Vec<_>>()
        };
        let ratios = of.iter().map(|of| ratio(of(beside), of(alone)));
        let ratios = std::iter::once("ratio".to_owned()).chain(ratios).collect();
        let headings = ["", "p50 ms", "p99 ms", "granted/s", "refused/s"];
        f.write_str(&table(&headings, &[cells(NAMES[0], alone), cells(NAMES[1], beside), ratios]))
    }
}
