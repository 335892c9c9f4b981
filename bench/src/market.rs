//! The marketplace of "Redis in Action" (chapters 4.4 and 6.2): sellers list items, buyers buy them, all data is in Redis.
//!
//! As in the book: optimistically, with one lock, and with a lock for each item. Then with leases, whose tokens Redis checks
//! atomically with each read or write. There some buyers pause for longer than their lease lasts, write all the same, and
//! must be rejected. After each run the books must add up: see [`Books`]. They do with locks, too, because no holder of a
//! lock pauses.
//!
//! Sellers lock what they list in the same way as buyers what they buy. No client pauses between two actions. A buyer's wait
//! begins when it has chosen an item, and includes the purchases that find their item gone. It includes neither looking at
//! the market nor late purchases, but waiting for an item that a late purchase holds.

mod books;
mod client;
mod goods;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ringfence_harness::{Cluster, RedisServer};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::args::{Output, Program, count};
use crate::figures::{Figure, show, table};
use crate::plot::{self, Line, Panel};
use books::Books;
use client::{Grain, Outcome, Venue, Way};
use goods::{Item, Offer, User};

/// The sellers and buyers of the book's table.
const LOADS: [(usize, usize); 3] = [(1, 1), (5, 1), (5, 5)];
const WAYS: [(&str, Way); 5] = [
    ("WATCH", Way::Watch),
    ("coarse Redis lock", Way::Lock(Grain::Market)),
    ("fine Redis lock", Way::Lock(Grain::Item)),
    ("coarse ringfence lease + guard", Way::Lease(Grain::Market)),
    ("fine ringfence lease + guard", Way::Lease(Grain::Item)),
];
/// The items of a seller for each second: more than it can list.
const STOCK: usize = 20_000;
/// The items of each seller on the market at the start, so that no buyer waits for sellers.
const OFFERED: usize = 1_000;
/// One purchase in this many is late on purpose, each buyer's first among them.
const LATE: usize = 250;

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    ringfence: Program,
    /// Number of rounds
    #[arg(long, default_value_t = 3, value_parser = count())]
    rounds: usize,
    /// Seconds per measurement
    #[arg(long, default_value_t = 5, value_parser = count())]
    seconds: usize,
    #[command(flatten)]
    output: Output,
    /// Draw the figures over the number of clients, in this SVG file
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// The figures of one way under one load.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    sellers: usize,
    buyers: usize,
    way: &'static str,
    listed: Figure,
    bought: Figure,
    /// Purchases begun again: they were refused, or their item was gone.
    retries: Figure,
    /// For each purchase.
    wait_ms: Figure,
    /// Late purchases.
    rejected: Figure,
}

/// One row for each load and way, in this order.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    seconds: usize,
    rounds: usize,
    rows: Vec<Row>,
}

/// What one buyer did.
#[derive(Clone, Debug, Default)]
struct Bought {
    offers: Vec<Offer>,
    /// Purchases begun again: they were refused, or their item was gone.
    retries: usize,
    waited: Duration,
    /// For each late purchase, all of them rejected, what the next one bought instead.
    late: Vec<Option<Offer>>,
}

/// Measures and shows all.
pub(crate) async fn market(plan: &Plan) -> Result<()> {
    let figures = measure(plan).await?;
    if let Some(path) = &plan.svg {
        std::fs::write(path, figures.plot()).with_context(|| path.display().to_string())?;
    }
    show(&figures, &plan.output)
}

async fn measure(plan: &Plan) -> Result<Figures> {
    let runs = LOADS.iter().flat_map(|load| WAYS.iter().map(move |way| (load, way)));
    let new = |(&(sellers, buyers), &(way, _))| Row { sellers, buyers, way, ..Row::default() };
    let mut rows: Vec<Row> = runs.clone().map(new).collect();
    for round in 1..=plan.rounds {
        for (((sellers, buyers), (name, way)), row) in runs.clone().zip(&mut rows) {
            eprintln!("round {round} of {}: {name}, {}", plan.rounds, load_text(*sellers, *buyers));
            let run = run(plan, *way, *sellers, *buyers, row).await;
            run.with_context(|| format!("{name}, {}", load_text(*sellers, *buyers)))?;
        }
    }
    Ok(Figures { seconds: plan.seconds, rounds: plan.rounds, rows })
}

impl Figures {
    fn plot(&self) -> String {
        let panel = |title: &str, figure: fn(&Row) -> &Figure| {
            let line = |(way, _): &(&str, Way)| {
                let rows = self.rows.iter().filter(|row| row.way == *way);
                let point = |row: &Row| Some(((row.sellers + row.buyers) as f64, figure(row).median()?));
                Line { name: (*way).to_owned(), points: rows.filter_map(point).collect() }
            };
            // The first line is the thick one: Ringfence's.
            Panel { title: title.to_owned(), lines: WAYS.iter().rev().map(line).collect() }
        };
        let bought = format!("bought in {} s", self.seconds);
        plot::svg(&[
            panel(&bought, |row| &row.bought),
            panel("purchase retries", |row| &row.retries),
            panel("mean wait for a purchase, ms", |row| &row.wait_ms),
        ])
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let medians = if self.rounds == 1 { "one run".into() } else { format!("medians of {}", self.rounds) };
        for rows in self.rows.chunks(WAYS.len()) {
            let cells = rows.iter().map(|row| {
                vec![
                    row.way.to_owned(),
                    row.listed.text(),
                    row.bought.spread(),
                    row.retries.text(),
                    row.wait_ms.text(),
                    row.rejected.text(),
                ]
            });
            let table = table(&HEADINGS, &cells.collect::<Vec<_>>());
            let load = load_text(rows[0].sellers, rows[0].buyers);
            writeln!(f, "{load}: {} s, {medians}\n{table}", self.seconds)?;
        }
        Ok(())
    }
}

const HEADINGS: [&str; 6] =
    ["", "listed", "bought", "purchase retries", "wait per purchase ms", "rejected as stale"];

fn load_text(sellers: usize, buyers: usize) -> String {
    let ending = |count| if count == 1 { "" } else { "s" };
    format!("{sellers} seller{}, {buyers} buyer{}", ending(sellers), ending(buyers))
}

/// One run on a new Redis and, for leases, a new cluster.
async fn run(plan: &Plan, way: Way, sellers: usize, buyers: usize, row: &mut Row) -> Result<()> {
    let server = RedisServer::builder().line("appendonly yes").line("appendfsync everysec").start().await?;
    let cluster = cluster(&plan.ringfence.path()?, way).await?;
    let leader = match &cluster {
        Some(cluster) => Some(cluster.leader().await?.http()),
        None => None,
    };
    let venue = Venue { way, redis: redis::Client::open(server.url())?, leader };
    let mut redis = venue.redis().await?;
    let mut books = Books::new(sellers, buyers, OFFERED + STOCK * plan.seconds, OFFERED);
    books.write(&mut redis).await?;

    let end = Instant::now() + Duration::from_secs(plan.seconds as u64);
    let (mut selling, mut buying) = (JoinSet::new(), JoinSet::new());
    for seller in 0..sellers {
        let (venue, items) = (venue.clone(), books.to_offer(seller));
        selling.spawn(async move { Ok((seller, sell(&venue, seller, items, end).await?)) });
    }
    for buyer in sellers..sellers + buyers {
        let venue = venue.clone();
        buying.spawn(async move { Ok((buyer, buy(&venue, buyer, end).await?)) });
    }
    let (sold, bought): (Vec<_>, Vec<_>) = tokio::try_join!(all(selling), all(buying))?;

    for (seller, items) in &sold {
        items.iter().try_for_each(|item| books.listed(*seller, *item))?;
    }
    for (buyer, Bought { offers, late, .. }) in &bought {
        offers.iter().chain(late.iter().flatten()).try_for_each(|offer| books.bought(*buyer, *offer))?;
    }
    books.check(&mut redis).await.context("the books do not add up")?;
    row.add(way, &sold, &bought)
}

async fn cluster(program: &Path, way: Way) -> Result<Option<Cluster>> {
    Ok(match way {
        Way::Lease(_) => Some(Cluster::builder(program).start().await?),
        Way::Watch | Way::Lock(_) => None,
    })
}

/// The results of all tasks, or the first error.
async fn all<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut done = Vec::new();
    while let Some(task) = tasks.join_next().await {
        done.push(task??);
    }
    Ok(done)
}

/// Lists one item after another and returns them.
async fn sell(venue: &Venue, seller: User, items: Vec<Item>, end: Instant) -> Result<Vec<Item>> {
    let mut client = venue.client().await?;
    let mut listed = Vec::new();
    for item in items {
        loop {
            if Instant::now() >= end {
                return Ok(listed);
            }
            match client.list(Offer::of(item, seller)).await? {
                Outcome::Done => break,
                Outcome::Refused if venue.way == Way::Watch => {}
                outcome => bail!("item {item} could not be listed: {outcome:?}"),
            }
        }
        listed.push(item);
    }
    bail!("a seller has no items left")
}

/// Buys one item after another.
async fn buy(venue: &Venue, buyer: User, end: Instant) -> Result<Bought> {
    let mut client = venue.client().await?;
    let mut bought = Bought::default();
    let mut late = JoinSet::new();
    while Instant::now() < end {
        let Some(offer) = client.look().await? else {
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        let turn = bought.offers.len() + late.len();
        if venue.way == Way::Lease(Grain::Item) && turn.is_multiple_of(LATE) {
            let venue = venue.clone();
            late.spawn(async move { buy_late(&venue, buyer, offer).await });
            continue;
        }
        let begun = Instant::now();
        // Every listing changes the watched key, so WATCH may never succeed.
        let outcome = loop {
            match client.purchase(buyer, offer).await? {
                Outcome::Refused if venue.way == Way::Watch && Instant::now() < end => bought.retries += 1,
                outcome => break outcome,
            }
        };
        bought.waited += begun.elapsed();
        match outcome {
            Outcome::Done => bought.offers.push(offer),
            Outcome::Gone => bought.retries += 1,
            Outcome::Refused => {
                ensure!(venue.way == Way::Watch, "item {}: a live lease was rejected", offer.item)
            }
        }
    }
    bought.late = all(late).await?;
    Ok(bought)
}

/// A late purchase, by clients of its own: the buyer goes on meanwhile. Returns what the next one bought.
async fn buy_late(venue: &Venue, buyer: User, offer: Offer) -> Result<Option<Offer>> {
    let (mut late, mut next) = (venue.client().await?, venue.client().await?);
    let outcome = late.purchase_late(&mut next, buyer, offer).await?;
    ensure!(outcome != Outcome::Refused, "item {}: a live lease was rejected", offer.item);
    Ok((outcome == Outcome::Done).then_some(offer))
}

impl Row {
    /// A run that exercised nothing fails; but that WATCH lets nobody buy is a result.
    fn add(&mut self, way: Way, sold: &[(User, Vec<Item>)], all: &[(User, Bought)]) -> Result<()> {
        let listed: usize = sold.iter().map(|(_, items)| items.len()).sum();
        let bought: usize = all.iter().map(|(_, bought)| bought.offers.len()).sum();
        let waited: Duration = all.iter().map(|(_, bought)| bought.waited).sum();
        let rejected: usize = all.iter().map(|(_, bought)| bought.late.len()).sum();
        ensure!(listed > 0, "nothing was listed");
        ensure!(bought > 0 || way == Way::Watch, "nothing was bought");
        self.listed.push(listed as f64);
        self.bought.push(bought as f64);
        self.retries.push(all.iter().map(|(_, bought)| bought.retries).sum::<usize>() as f64);
        if bought > 0 {
            self.wait_ms.push(waited.as_secs_f64() * 1e3 / bought as f64);
        }
        if way == Way::Lease(Grain::Item) {
            ensure!(rejected > 0, "no buyer was stale");
            self.rejected.push(rejected as f64);
        }
        Ok(())
    }
}
