//! The reports: a table to be read, and all of it for programs.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::figure::{Figure, Promise};
use super::play::Played;
use super::table::Row;

/// The figures with a column of their own; others share the last one.
const COLUMNS: [Figure; 4] = [Figure::NoGrant, Figure::NoRenewal, Figure::NextHolder, Figure::Memory];

/// How the rows were played.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    pub(super) program: String,
    pub(super) version: String,
    pub(super) command: String,
    pub(super) date: String,
    pub(super) seconds: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    run: &'a Run,
    rows: Vec<Told<'a>>,
}

#[derive(Serialize)]
struct Told<'a> {
    name: &'a str,
    broken: &'a str,
    made: &'a str,
    promise: &'a Promise,
    #[serde(flatten)]
    played: &'a Played,
}

/// Writes `grey.md` and `grey.json`.
pub(super) fn write(folder: &Path, run: &Run, rows: &[(Row, Played)]) -> anyhow::Result<()> {
    let told = rows.iter().map(|(row, played)| Told {
        name: row.name,
        broken: row.broken,
        made: row.made,
        promise: &row.promise,
        played,
    });
    let report = Report { run, rows: told.collect() };
    std::fs::write(folder.join("grey.json"), serde_json::to_string_pretty(&report)?)?;
    Ok(std::fs::write(folder.join("grey.md"), markdown(run, rows))?)
}

/// One line: as soon as a row is played.
pub(super) fn line(row: &Row, played: &Played) -> String {
    let mut figures: Vec<String> =
        row.promise.figures().map(|figure| cell(row, played, figure, true)).collect();
    figures.retain(|figure| !figure.is_empty());
    let ends = played.failed.as_ref().or(played.observed.as_ref()).cloned().unwrap_or_default();
    format!("{:<18} {:<8} {} ({ends}; {} s)", row.name, played.verdict, figures.join(", "), played.seconds)
}

fn markdown(run: &Run, rows: &[(Row, Played)]) -> String {
    let mut text = String::from(
        "# Half-broken environments\n\nMeasured / promised at most. What is more than promised is **bold**.\n\n",
    );
    let titles: Vec<&str> = COLUMNS.iter().map(|figure| figure.title()).collect();
    let _ =
        writeln!(text, "| environment | what is half broken | verdict | {} | others |", titles.join(" | "));
    let _ = writeln!(text, "|---|---|---|{}---|", "---|".repeat(COLUMNS.len()));
    for (row, played) in rows {
        let of_its_own = row.promise.figures().filter(|figure| !COLUMNS.contains(figure));
        let others: Vec<String> = of_its_own.map(|figure| cell(row, played, figure, true)).collect();
        let cells: Vec<String> = COLUMNS.iter().map(|figure| cell(row, played, *figure, false)).collect();
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            row.name,
            row.broken,
            played.verdict,
            cells.join(" | "),
            others.join("; ")
        );
    }
    text.push_str("\n## How each is made, and what was observed\n\n");
    for (row, played) in rows {
        let seen = played.failed.as_ref().or(played.observed.as_ref()).cloned().unwrap_or_default();
        let _ = writeln!(text, "- `{}`: {}. {seen}.", row.name, row.made);
    }
    let Run { program, version, command, date, seconds } = run;
    let _ = writeln!(text, "\n{date}, {version} ({program}), {seconds} s:\n\n    {command}");
    text
}

/// What was measured of a figure, and promised.
fn cell(row: &Row, played: &Played, figure: Figure, is_named: bool) -> String {
    let title = if is_named { format!("{} ", figure.title()) } else { String::new() };
    let measured = played.measured.get(&figure).map_or("?".to_owned(), |it| figure.show(*it));
    match row.promise.most(figure) {
        None if is_named || !played.measured.contains_key(&figure) => String::new(),
        None => format!("{measured} / –"),
        Some(most) if played.broken.contains(&figure) => {
            format!("{title}**{measured}** / {}", figure.show(most))
        }
        Some(most) => format!("{title}{measured} / {}", figure.show(most)),
    }
}
