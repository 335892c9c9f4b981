//! What a lock gives and what it loses, side by side: what `compare`, `handover` and the ladder measured, in one table.

mod picture;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ringfence_ladder::{Fault, Results};
use serde::de::DeserializeOwned;

use crate::args::count;
use crate::figures::{Figure, digits, ratio};
use crate::handover::{Handover, LOSSES};
use crate::job::Job;
use crate::measure::Comparison;
use crate::turn;

#[derive(Args)]
pub(crate) struct Plan {
    /// What `compare --json` wrote
    #[arg(long)]
    compare: PathBuf,
    /// What `handover --json` wrote
    #[arg(long)]
    handover: PathBuf,
    /// The ladder's `ladder.json`
    #[arg(long)]
    ladder: PathBuf,
    /// The number of clients in `compare`
    #[arg(long, default_value_t = 64, value_parser = count())]
    clients: usize,
    /// Also draw it, as SVG, to this file
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// The rows: a rung of the ladder, the service of `compare` that makes the same calls, and what the rung does beside. Not 21: it asks
/// for the token with a call of its own, which `compare` does not make.
const LOCKS: [(u8, &str, &str); 10] = [
    (19, "ringfence", "guard"),
    (18, "ringfence", "no check"),
    (20, "ringfence, RESP", "no check"),
    (17, "etcd lock", "create_revision"),
    (16, "etcd lock", "no check"),
    (15, "zookeeper", "czxid"),
    (14, "zookeeper", "no check"),
    (4, "redis", "SET NX PX"),
    (6, "redis", "watchdog"),
    (7, "redlock of 5", "no check"),
];

/// A lock that was both measured and played.
struct Row {
    rung: u8,
    name: String,
    per_s: Figure,
    /// In the order of [`LOSSES`].
    beyond_s: [Option<f64>; 3],
    /// The faults under which data was lost, and of how many.
    lost: (Vec<Fault>, usize),
}

struct Beside {
    clients: usize,
    job: String,
    ttl_s: usize,
    ladder: Results,
    rows: Vec<Row>,
}

/// Prints the table, and draws it if the plan says so.
pub(crate) fn beside(plan: &Plan) -> Result<()> {
    let (handover, ladder) = (read(&plan.handover)?, read(&plan.ladder)?);
    let (beside, left_out) = Beside::of(&read(&plan.compare)?, &handover, ladder, plan.clients)?;
    for left_out in left_out {
        eprintln!("left out: {left_out}");
    }
    println!("{beside}");
    let Some(path) = &plan.svg else { return Ok(()) };
    fs::write(path, beside.picture()).with_context(|| path.display().to_string())
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let named = || path.display().to_string();
    serde_json::from_slice(&fs::read(path).with_context(named)?).with_context(named)
}

impl Beside {
    /// The table, and what is left out of it.
    fn of(
        comparison: &Comparison,
        handover: &Handover,
        ladder: Results,
        clients: usize,
    ) -> Result<(Self, Vec<String>)> {
        let is_of =
            |row: &&turn::Row| row.clients == clients && row.job.starts_with(&Job::OwnKey.to_string());
        let measured: Vec<_> = comparison.rows.iter().filter(is_of).collect();
        let first = measured
            .first()
            .with_context(|| format!("compare: no row of {clients} clients with own keys"))?;
        let job = first.job.clone();
        let (mut rows, mut left_out) = (Vec::new(), Vec::new());
        for (rung, service, adds) in LOCKS {
            let found: Vec<_> =
                measured.iter().filter(|row| without_version(&row.service) == service).collect();
            if found.is_empty() {
                left_out.push(format!("{service}: {adds}: not in compare"));
                continue;
            }
            let Some(lost) = ladder.lost(rung) else {
                left_out.push(format!("{service}: {adds}: no rung {rung} in the ladder"));
                continue;
            };
            rows.extend(found.into_iter().map(|row| Row {
                rung,
                name: format!("{}: {adds}", row.service),
                per_s: row.per_s.clone(),
                beyond_s: handover.medians(&row.service),
                lost: lost.clone(),
            }));
        }
        let is_unknown =
            |row: &&&turn::Row| LOCKS.iter().all(|(_, service, _)| *service != without_version(&row.service));
        left_out.extend(measured.iter().filter(is_unknown).map(|row| format!("{}: in no row", row.service)));
        ensure!(!rows.is_empty(), "no lock is both in compare and in the ladder");
        Ok((Self { clients, job, ttl_s: handover.ttl_s, ladder, rows }, left_out))
    }
}

/// `etcd lock` of `etcd 3.7.3 lock`.
fn without_version(service: &str) -> String {
    let is_version = |word: &&str| {
        word.contains('.') && word.chars().all(|it| it.is_ascii_alphanumeric() || ".-+".contains(it))
    };
    service.split(' ').filter(|word| !is_version(word)).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, job, ttl_s, ladder, rows } = self;
        let losses = LOSSES.map(|(loss, _)| loss).join(" | ");
        writeln!(f, "| lock | cycles/s | ratio | {losses} | faults that lost data |")?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        let mut faults = BTreeSet::<Fault>::new();
        for Row { rung, name, per_s, beyond_s, lost: (lost, of) } in rows {
            faults.extend(lost);
            let (speed, ratio) = (per_s.text(), ratio(&rows[0].per_s, per_s));
            let (beyond, count, colon) =
                (beyond_s.map(shown).join(" | "), lost.len(), if lost.is_empty() { "" } else { ":" });
            let letters: String = lost.iter().map(|fault| format!(" {}", fault.letters())).collect();
            writeln!(
                f,
                "| {rung} {name} | {speed} | {ratio} | {beyond} | {count} of {of}{colon}{letters} |"
            )?;
        }
        let faults: String =
            faults.iter().map(|it| format!("; **{}**: {}", it.letters(), it.name())).collect();
        let versions = ladder.versions().join(", ");
        write!(
            f,
            "\n*Cycles*: {clients} clients {job}; what a check at the storage costs comes on top. *Ratio*: the cycles/s of the first row divided by \
             those of the row. *Gone*: seconds beyond the time to live of {ttl_s} s until the next client holds. Numbers and \
             letters are the ladder's ({versions}){faults}."
        )
    }
}

/// `-` where it was not measured.
fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), digits)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn measured(service: &str, clients: usize, per_s: &[f64]) -> Value {
        let job = format!("{}, as tasks of one program", Job::OwnKey);
        let row = turn::Row { job, clients, service: service.to_owned(), ..turn::Row::default() };
        let mut row = serde_json::to_value(row).unwrap();
        row["per_s"] = json!(per_s);
        row
    }

    fn beside(rows: &[Value]) -> Result<(Beside, Vec<String>)> {
        let handed = [("holder gone", [0.5, 0.25, 9.0]), ("holder gone, leader stopped", [2.0, 1.0, 3.0])];
        let handed = handed
            .map(|(loss, beyond_s)| json!({"service": "ringfence", "loss": loss, "beyond_s": beyond_s}));
        let cells = [
            (19, "pause-before-write", "fenced"),
            (4, "pause-before-write", "lost"),
            (4, "failover", "stuck"),
            (4, "failover-by-sentinel", "lost"),
            (4, "server-ahead", "unknown"),
            (4, "renewal-dies", "not-applicable"),
            (4, "crash", "stuck"),
        ];
        let cells = cells.map(
            |(rung, fault, mark)| json!({"rung": rung, "fault": fault, "expected": mark, "measured": mark}),
        );
        let run = json!({"versions": ["Redis 7", "etcd <3>"], "command": "", "date": "", "rounds": 1, "seconds": 1});
        let comparison = from_value(json!({"sync_p50_ms": [null], "rows": rows}))?;
        let handover = from_value(json!({"ttl_s": 5, "rows": handed}))?;
        Beside::of(&comparison, &handover, from_value(json!({"run": run, "cells": cells}))?, 64)
    }

    #[test]
    fn a_row_has_what_was_measured_beside_what_was_lost() {
        let rows = [
            measured("ringfence", 1, &[7.0]),
            measured("ringfence", 64, &[300.0, 100.0, 200.0]),
            measured("etcd 3.7.3 lock", 64, &[40.0]),
            measured("redis", 64, &[400.0]),
            measured("(http echo)", 64, &[1_000.0]),
        ];
        let (beside, left_out) = beside(&rows).unwrap();
        let text = beside.to_string();
        let rows: Vec<_> = text.lines().skip(2).take_while(|line| !line.is_empty()).collect();
        let expected = [
            "| 19 ringfence: guard | 200 | 1.00 | 0.500 | - | 2.00 | 0 of 1 |",
            "| 4 redis: SET NX PX | 400 | 0.500 | - | - | - | 2 of 3: P F3 |",
        ];
        assert_eq!(rows, expected);
        for part in
            ["of 5 s until", "(Redis 7, etcd <3>); **P**: holder pauses", "; **F3**: Sentinel fails over."]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(left_out.len(), LOCKS.len() - 2 + 1, "{left_out:?}");
        assert!(left_out.contains(&"etcd lock: no check: no rung 16 in the ladder".to_owned()));
        assert!(left_out.contains(&"zookeeper: no check: not in compare".to_owned()));
        assert!(left_out.contains(&"(http echo): in no row".to_owned()));
        let picture = beside.picture();
        assert_eq!(picture.matches("class=\"bar\"").count(), 2, "{picture}");
        assert!(picture.contains("width=\"110\"") && picture.contains("width=\"55\""), "{picture}");
        assert!(picture.contains("under faults: Redis 7, etcd &lt;3>"), "{picture}");
        assert_eq!(picture.matches("<g id=\"4-").count(), 5, "a cell for each column: {picture}");
    }

    #[test]
    fn what_is_in_no_file_is_an_error() {
        let of = |rows: &[Value]| beside(rows).err().unwrap().to_string();
        assert!(of(&[measured("ringfence", 1, &[7.0])]).contains("no row of 64 clients"));
        assert!(of(&[measured("nats", 64, &[7.0])]).contains("no lock is both"));
    }
}
