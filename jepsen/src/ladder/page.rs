//! What is told of a run: `ladder.json` (all of it), `ladder.md` (the table and why), `index.html` (the table, each cell with
//! a drawing of its steps; one file, which loads nothing).

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::ladder::{Cell, Counts, Fault, Mark, Rung};
use crate::report::as_text_of_a_script;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
const LEAD: &str = "Every kind of lock that people use, from SETNX up, on real servers, under the same faults. What went wrong \
                    is counted at the data that the locks were there to protect.";

/// All that is told.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    lead: &'static str,
    facts: String,
    marks: Vec<MarkKind>,
    faults: Vec<FaultKind>,
    columns: [Fault; 11],
    rungs: Vec<RungKind>,
    cells: &'a [Cell],
}

#[derive(Serialize)]
struct MarkKind {
    mark: Mark,
    shown: String,
    means: &'static str,
    /// How it is coloured.
    kind: &'static str,
    /// 0 is the worst.
    order: usize,
}

#[derive(Serialize)]
struct FaultKind {
    fault: Fault,
    letters: &'static str,
    name: &'static str,
    how: &'static str,
    column: Fault,
}

#[derive(Serialize)]
struct RungKind {
    number: u8,
    name: &'static str,
    plays: &'static str,
}

impl<'a> Report<'a> {
    /// Of these cells; `facts` says when and with what they were played.
    pub(crate) fn new(rungs: &[Rung], cells: &'a [Cell], facts: String) -> Self {
        let marks = Mark::ALL.into_iter().enumerate().map(|(order, (mark, shown))| {
            let (means, kind) = meaning(mark);
            MarkKind { mark, shown: shown.to_owned(), means, kind, order }
        });
        let fault = |fault: Fault| FaultKind {
            fault,
            letters: fault.letters(),
            name: fault.name(),
            how: fault.how(),
            column: fault.column(),
        };
        let faults = [Fault::None, Fault::FailoverToOther, Fault::FailoverBySentinel]
            .into_iter()
            .chain(Fault::COLUMNS)
            .map(fault);
        let rungs = rungs.iter().filter(|rung| cells.iter().any(|cell| cell.rung == rung.number));
        let rungs = rungs.map(|rung| RungKind { number: rung.number, name: rung.name, plays: rung.plays });
        Self {
            lead: LEAD,
            facts,
            marks: marks.collect(),
            faults: faults.collect(),
            columns: Fault::COLUMNS,
            rungs: rungs.collect(),
            cells,
        }
    }

    /// Writes the three files.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let data = as_text_of_a_script(&serde_json::to_string(self)?);
        // The data comes last: it may contain what looks like a place for another part.
        let page = PAGE.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT).replace("/*DATA*/", &data);
        write("ladder.json", serde_json::to_string_pretty(self)?)?;
        write("ladder.md", self.markdown()?)?;
        write("index.html", page)
    }

    fn markdown(&self) -> anyhow::Result<String> {
        let mut text = format!("# The ladder\n\n{LEAD}\n\n{}\n\n", self.facts);
        let letters: Vec<_> = self.columns.iter().map(|fault| fault.letters()).collect();
        writeln!(text, "| lock | {} |\n|---|{}", letters.join(" | "), "---|".repeat(letters.len()))?;
        for rung in &self.rungs {
            write!(text, "| {} {} |", rung.number, rung.name)?;
            for fault in self.columns {
                let of = self.cells.iter().filter(|cell| cell.rung == rung.number);
                let of = of.filter(|cell| cell.fault.column() == fault || cell.fault == Fault::None);
                let shown: Vec<_> = of.map(|cell| cell.measured.to_string()).collect();
                write!(text, " {} |", shown.join("/"))?;
            }
            writeln!(text)?;
        }
        writeln!(text)?;
        for mark in self.marks.iter().filter(|it| self.cells.iter().any(|cell| cell.measured == it.mark)) {
            writeln!(text, "- `{}` {}", mark.shown, mark.means)?;
        }
        writeln!(text, "\n## Why\n")?;
        for cell in self.cells {
            if let Some(reason) = cell.reason {
                writeln!(text, "- {} under {}: {reason}", cell.rung, cell.fault.letters())?;
            }
        }
        writeln!(text, "\n## Counted, over all rounds\n\n{COUNTED}")?;
        for rung in &self.rungs {
            let of = self.cells.iter().filter(|cell| cell.rung == rung.number).flat_map(|cell| &cell.rounds);
            let all = of.fold(Counts::default(), |all, round| all.and(&round.counts));
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                rung.number,
                all.lost_updates,
                all.stale_writes,
                all.fenced,
                all.overlap_ms,
                all.lost_while_renewed,
                all.live_rejected
            )?;
        }
        writeln!(text, "\n## The faults\n")?;
        for fault in self.faults.iter().filter(|it| it.fault == it.column && it.fault != Fault::None) {
            writeln!(text, "- {} {}. {}", fault.letters, fault.name, fault.how)?;
        }
        writeln!(text, "\n## The locks\n")?;
        for rung in &self.rungs {
            writeln!(text, "- {} {}. {}", rung.number, rung.name, rung.plays)?;
        }
        Ok(text)
    }
}

const COUNTED: &str = "\
| lock | lost updates | stale writes accepted | accesses fenced off | ms with two holders | locks lost while renewed \
| accesses of the live holder rejected |
|---|---|---|---|---|---|---|";

/// What a mark says, and how it is coloured.
fn meaning(mark: Mark) -> (&'static str, &'static str) {
    match mark {
        Mark::Unknown => ("not known: the fault was not observed", "none"),
        Mark::Lost => ("a stale write was accepted, or an update lost", "lost"),
        Mark::LostAndRejected => ("a stale write was accepted, and the live holder rejected", "lost"),
        Mark::Rejected => ("the live holder was rejected by the storage", "fenced"),
        Mark::StuckForEver => ("stuck for an hour, or for ever", "stuck"),
        Mark::Fenced => ("the storage rejected the stale write: well", "fenced"),
        Mark::Stuck => ("stuck for a time to live, or for as long as the pause", "stuck"),
        Mark::Refused => ("the client gave the lock up: safe", "well"),
        Mark::Well => ("well", "well"),
        Mark::NotApplicable => ("does not apply", "none"),
    }
}
