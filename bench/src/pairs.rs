//! Two programs under the same load, in alternation: a machine drifts by more than most changes gain, so only neighbouring
//! turns can be compared.

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::args::{Output, absolute};
use crate::figures::{Figure, table};
use crate::job::Job;
use crate::service::{Contender, Security};
use crate::turn::{Extent, Row};

#[derive(Args)]
pub(crate) struct Plan {
    /// The program that the other is compared to
    a: PathBuf,
    /// The other: a ratio is its figure divided by that of the first
    b: PathBuf,
    #[command(flatten)]
    extent: Extent,
    /// Over the Redis protocol instead of HTTP
    #[arg(long)]
    resp: bool,
    /// Run the clients as tasks of one program that share its connections
    #[arg(long)]
    tasks: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The ratios of all rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pairs(Vec<Ratios>);

#[derive(Clone, Debug, Serialize)]
struct Ratios {
    clients: usize,
    figure: &'static str,
    ratios: Figure,
}

type Of = fn(&Row) -> &Figure;
const FIGURES: [(&str, Of); 4] = [
    ("cycles/s", |row| &row.per_s),
    ("CPU a cycle of all nodes", |row| &row.cpu_s),
    ("p50", |row| &row.p50_ms),
    ("p99", |row| &row.p99_ms),
];

/// Measures both in each round, in alternating order, each with a cluster that is new in its turn.
pub(crate) async fn pairs(plan: &Plan) -> Result<Pairs> {
    let programs = [absolute(&plan.a)?, absolute(&plan.b)?].map(|program| match plan.resp {
        true => Contender::Resp(program),
        false => Contender::Ringfence(program, Security::None),
    });
    let clients = plan.extent.clients(&[1, 64, 256]);
    let each = clients.iter().flat_map(|&clients| FIGURES.map(|figure| (clients, figure.0)));
    let mut all: Vec<Ratios> =
        each.map(|(clients, figure)| Ratios { clients, figure, ratios: Figure::default() }).collect();
    for round in 0..plan.extent.repeats.rounds {
        let mut rows = [const { Vec::new() }; 2];
        for turn in 0..2 {
            let place = (turn + round) % 2;
            eprintln!("round {} of {}: {}", round + 1, plan.extent.repeats.rounds, ["A", "B"][place]);
            let service = programs[place].start().await?;
            for &clients in clients {
                let mut row = Row { clients, ..Row::default() };
                plan.extent.measure(&*service, Job::OwnKey, plan.tasks, &mut row).await?;
                rows[place].push(row);
            }
        }
        let [a, b] = &rows;
        let ratios =
            a.iter().zip(b).flat_map(|(a, b)| FIGURES.map(|(_, of)| of(b).median().zip(of(a).median())));
        for (ratios, one) in all.iter_mut().zip(ratios) {
            // There is none where a turn was so short that no CPU was seen.
            one.filter(|(_, a)| *a > 0.0).into_iter().for_each(|(b, a)| ratios.ratios.push(b / a));
        }
    }
    Ok(Pairs(all))
}

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = self.0.iter().map(|Ratios { clients, figure, ratios }| {
            let name = format!("{clients} clients: {figure}");
            [vec![name], ratios.quartiles().to_vec()].concat()
        });
        f.write_str(&table(&["B to A", "median", "quartiles", "least to most"], &cells.collect::<Vec<_>>()))
    }
}
