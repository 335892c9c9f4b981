//! `ladder.md`, to be read in a terminal as well as on a web page.

use super::{FaultKind, Report, cells_in};
use crate::cell::Cell;
use crate::fault::Fault;
use crate::judge::{Counts, Mark};

/// The longest line, but for tables.
const WIDTH: usize = 110;

impl Report<'_> {
    pub(super) fn markdown(&self) -> String {
        let counts: Vec<_> =
            self.headline.iter().map(|tally| format!("{} {}", tally.count, tally.what)).collect();
        let played = self.cells.iter().filter(|cell| !cell.rounds.is_empty()).count();
        let unexpected: Vec<_> = self.cells.iter().filter_map(unexpected).collect();
        let reasons = self.cells.iter().filter_map(|cell| {
            let rung = self.rungs.iter().find(|rung| rung.number == cell.rung)?;
            Some(format!("**{} {}, {}.** {}", cell.rung, rung.name, cell.fault.letters(), cell.reason?))
        });
        let faults = self.faults.iter().map(|it| format!("**{}**: {}. {}", it.letters, it.name, it.how));
        let rungs = self.rungs.iter().map(|it| format!("**{} {}**: {}", it.number, it.name, it.sends));
        let parts = [
            "# The ladder of locks".to_owned(),
            wrapped("", self.lead),
            wrapped(
                "",
                &format!(
                    "Of {played} cells, {}. {}",
                    counts.join(", "),
                    self.finding.clone().unwrap_or_default()
                ),
            ),
            section("Not as expected", unexpected),
            self.grid(),
            "The marks:".to_owned(),
            list(self.used_marks().map(|it| format!("`{}` {}", it.shown, it.means))),
            "The columns:".to_owned(),
            list(self.faults.iter().filter(|it| it.fault == it.column).map(named)),
            self.variants_list(),
            section("Why", reasons.collect()),
            "## What was counted, over all rounds".to_owned(),
            self.counted(),
            section("How each fault is made", faults.collect()),
            section("What the holders send", rungs.collect()),
            "## How to repeat it".to_owned(),
            format!("    {}", self.run.command),
            wrapped("", &self.facts()),
        ];
        parts
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| format!("{part}\n"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// A row per rung, under the name of its family. A rung that fails with no fault has its mark in a column of its own.
    fn grid(&self) -> String {
        let alone = self.cells.iter().any(|cell| cell.fault == Fault::None).then_some(Fault::None);
        let columns: Vec<_> = alone.into_iter().chain(self.columns).collect();
        let letters = columns.iter().map(|fault| fault.letters().to_owned());
        let mut rows = vec![["lock".to_owned()].into_iter().chain(letters).collect::<Vec<_>>()];
        for (family, rungs) in self.families() {
            rows.push(
                [format!("**{family}**")].into_iter().chain(columns.iter().map(|_| String::new())).collect(),
            );
            for rung in rungs {
                let marks =
                    columns.iter().map(|fault| Self::shown(&cells_in(self.cells, rung.number, *fault)));
                rows.push([format!("{:>2} {}", rung.number, rung.name)].into_iter().chain(marks).collect());
            }
        }
        table(&rows)
    }

    fn used_marks(&self) -> impl Iterator<Item = &super::MarkKind> {
        self.marks.iter().filter(|it| self.cells.iter().any(|cell| cell.measured == it.mark))
    }

    /// The marks of the faults that have no column of their own.
    fn variants_list(&self) -> String {
        let variants = self.variants().map(|variant| {
            let cells = self.cells.iter().filter(|cell| cell.fault == variant.fault);
            let marks: Vec<_> = cells.map(|cell| format!("{} `{}`", cell.rung, cell.measured)).collect();
            format!("{}: {}", named(variant), marks.join(", "))
        });
        let variants: Vec<_> = variants.collect();
        if variants.is_empty() {
            return String::new();
        }
        format!("Variants, after a slash in the table:\n\n{}", list(variants))
    }

    fn counted(&self) -> String {
        let head = [
            "lock",
            "updates lost",
            "stale writes accepted",
            "stale accesses rejected",
            "live holder rejected",
        ];
        let head = head.into_iter().chain(["ms with two holders", "locks lost while renewed"]);
        let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
        for rung in &self.rungs {
            let of = self.cells.iter().filter(|cell| cell.rung == rung.number).flat_map(|cell| &cell.rounds);
            let all = of.fold(Counts::default(), |all, round| all.and(&round.counts));
            let counts =
                [all.stale_writes, all.fenced, all.live_rejected, all.overlap_ms, all.lost_while_renewed];
            let first = [format!("{:>2} {}", rung.number, rung.name), all.lost_updates.to_string()];
            rows.push(first.into_iter().chain(counts.map(|count| count.to_string())).collect());
        }
        table(&rows)
    }
}

fn named(fault: &FaultKind) -> String {
    format!("`{}` {}", fault.letters, fault.name)
}

fn unexpected(cell: &Cell) -> Option<String> {
    let marks: Vec<_> = cell.rounds.iter().map(|round| round.mark.to_string()).collect();
    let whys: Vec<_> = cell.rounds.iter().filter_map(|round| round.unknown.clone()).collect();
    (cell.deviates() || cell.measured == Mark::Unknown).then(|| {
        let (rung, fault, expected) = (cell.rung, cell.fault.letters(), cell.expected);
        format!(
            "**{rung}, {fault}.** Expected `{expected}`, measured `{}`. {}",
            marks.join("`, `"),
            whys.join(" ")
        )
    })
}

/// Nothing without items.
fn section(title: &str, items: Vec<String>) -> String {
    if items.is_empty() { String::new() } else { format!("## {title}\n\n{}", list(items)) }
}

fn list(items: impl IntoIterator<Item = String>) -> String {
    items.into_iter().map(|item| wrapped("- ", &item)).collect::<Vec<_>>().join("\n")
}

/// The text after `lead`, in lines of at most [`WIDTH`]; those after the first are indented by as much.
fn wrapped(lead: &str, text: &str) -> String {
    let (mut lines, mut line) = (String::new(), lead.to_owned());
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += line.trim_end();
            lines.push('\n');
            line = " ".repeat(lead.len());
        }
        if !line.trim_end().is_empty() && !line.ends_with(' ') {
            line.push(' ');
        }
        line += word;
    }
    lines + line.trim_end()
}

/// A table whose columns are aligned in the source, too.
fn table(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3);
    let widths: Vec<_> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
        format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
    };
    let rule: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let (head, body) = rows.split_at(1);
    let lines = [line(&head[0]), line(&rule)].into_iter().chain(body.iter().map(line));
    lines.collect::<Vec<_>>().join("\n")
}
