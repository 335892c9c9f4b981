//! What a run leaves: `ladder.json` (everything), `ladder.md` (the table and the reasons), `ladder.svg` (the table as a
//! picture) and `index.html` (the table, where each cell opens a drawing of its steps; one file, which loads nothing).

mod markdown;
pub mod picture;
mod why;

use std::path::Path;

use anyhow::Context;
use ringfence_laws::report::as_text_of_a_script;
use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::fault::Fault;
use crate::judge::Mark;
use crate::rung::Rung;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: [&str; 3] =
    [include_str!("page/grid.js"), include_str!("page/lanes.js"), include_str!("page/page.js")];
const LEAD: &str = "The locks that people use, from SETNX up, on real servers, under the same faults. Every lock guards one \
                    stock count, and what went wrong is counted there.";
/// The servers of the rungs, each with its first rung.
const FAMILIES: [(u8, &str); 5] =
    [(0, "Redis"), (12, "PostgreSQL"), (14, "ZooKeeper"), (16, "etcd"), (18, "Ringfence")];
/// The rungs whose storage can reject a write: it is shown a token or a name, or holds the lock itself.
const CHECKED: [u8; 8] = [10, 11, 13, 15, 17, 19, 21, 22];

/// How the cells were played.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// As in `Redis 7.0.15`.
    pub(crate) versions: Vec<String>,
    /// The command that repeats it.
    pub(crate) command: String,
    pub(crate) date: String,
    pub(crate) rounds: u32,
    pub(crate) seconds: u64,
}

/// Everything about a run.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    lead: &'static str,
    run: Run,
    headline: Vec<Tally>,
    finding: Option<String>,
    marks: Vec<MarkKind>,
    faults: Vec<FaultKind>,
    columns: [Fault; 11],
    rungs: Vec<RungKind>,
    cells: &'a [Cell],
    /// Why a cell of a column comes to a mark, unless the cell has a reason of its own.
    whys: Vec<(Fault, Mark, &'static str)>,
}

/// What can be read back from `ladder.json`.
#[derive(Debug, Deserialize)]
pub struct Results {
    run: Run,
    cells: Vec<Cell>,
}

/// How many cells came to the same.
#[derive(Serialize)]
struct Tally {
    count: usize,
    what: &'static str,
    kind: &'static str,
}

#[derive(Serialize)]
struct MarkKind {
    mark: Mark,
    shown: &'static str,
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
    family: &'static str,
    /// Whether the storage can reject its writes.
    checked: bool,
    /// What its holders send.
    sends: &'static str,
}

impl<'a> Report<'a> {
    /// A report on these cells.
    pub(crate) fn new(rungs: &[Rung], cells: &'a [Cell], run: Run) -> Self {
        let marks = Mark::ALL.into_iter().enumerate().map(|(order, (mark, shown))| {
            let (means, kind) = meaning(mark);
            MarkKind { mark, shown, means, kind, order }
        });
        let mut faults: Vec<_> = cells.iter().map(|cell| cell.fault).chain(Fault::COLUMNS).collect();
        faults.sort();
        faults.dedup();
        let mut rungs: Vec<_> =
            rungs.iter().filter(|rung| cells.iter().any(|cell| cell.rung == rung.number)).collect();
        rungs.sort_by_key(|rung| rung.number);
        Self {
            lead: LEAD,
            run,
            headline: headline(cells),
            finding: finding(cells),
            marks: marks.collect(),
            faults: faults.into_iter().map(FaultKind::of).collect(),
            columns: Fault::COLUMNS,
            rungs: rungs.into_iter().map(RungKind::of).collect(),
            cells,
            whys: why::whys(),
        }
    }

    /// Writes the four files.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let data = as_text_of_a_script(&serde_json::to_string(self)?);
        // The data comes last: it may contain what looks like a place for another part.
        let page = PAGE
            .replace("/*STYLE*/", STYLE)
            .replace("/*SCRIPT*/", &SCRIPT.concat())
            .replace("/*DATA*/", &data);
        write("ladder.json", serde_json::to_string_pretty(self)?)?;
        write("ladder.md", self.markdown())?;
        write("ladder.svg", self.picture())?;
        write("index.html", page)
    }

    /// The rungs, each family with its name.
    fn families(&self) -> impl Iterator<Item = (&'static str, &[RungKind])> {
        self.rungs.chunk_by(|one, other| one.family == other.family).map(|rungs| (rungs[0].family, rungs))
    }

    /// The faults that are shown in the column of another one.
    fn variants(&self) -> impl Iterator<Item = &FaultKind> {
        self.faults.iter().filter(|it| it.fault != it.column)
    }

    /// The marks of some cells in one: `ref/L`.
    fn shown(cells: &[&Cell]) -> String {
        let mut shown: Vec<_> = cells.iter().map(|cell| cell.measured.to_string()).collect();
        shown.dedup();
        shown.join("/")
    }

    /// `Redis 7.0.15. 154 cells of 3 rounds each, 2026-11-23, in 300 s.`
    fn facts(&self) -> String {
        let Run { versions, date, rounds, seconds, .. } = &self.run;
        let played = self.cells.iter().filter(|cell| !cell.rounds.is_empty()).count();
        let rounds = if *rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds each") };
        format!("{}. {played} cells of {rounds}, {date}, in {seconds} s.", versions.join(", "))
    }
}

impl Results {
    /// As in `Redis 7.0.15`.
    pub fn versions(&self) -> &[String] {
        &self.run.versions
    }

    /// The faults under which a rung lost data, one for each column, and the number of columns that came to a mark; `None` if
    /// there is none.
    pub fn lost(&self, rung: u8) -> Option<(Vec<Fault>, usize)> {
        let columns = Fault::COLUMNS.map(|column| cells_in(&self.cells, rung, column));
        let is_known = |cell: &&Cell| !matches!(meaning(cell.measured).1, "unknown" | "none");
        let known = columns.iter().filter(|cells| cells.iter().any(is_known)).count();
        let lost = columns
            .iter()
            .filter_map(|cells| Some(cells.iter().find(|cell| meaning(cell.measured).1 == "lost")?.fault));
        (known > 0).then(|| (lost.collect(), known))
    }

    /// A row of a picture at `y`: the name, and for each column a cell of this width, the first one at `x`.
    pub fn row(&self, rung: u8, name: &str, x: usize, width: usize, y: usize) -> String {
        picture::row(rung, name, &self.cells, (x, width), y)
    }
}

/// The cells of a rung in a column: the fault, then its variants.
fn cells_in(cells: &[Cell], rung: u8, column: Fault) -> Vec<&Cell> {
    cells.iter().filter(|cell| cell.rung == rung && cell.fault.column() == column).collect()
}

impl FaultKind {
    fn of(fault: Fault) -> Self {
        Self { fault, letters: fault.letters(), name: fault.name(), how: fault.how(), column: fault.column() }
    }
}

impl RungKind {
    fn of(rung: &Rung) -> Self {
        let &Rung { number, name, plays: sends, .. } = rung;
        let family = FAMILIES.iter().rev().find(|(first, _)| *first <= number).map_or("", |(_, name)| name);
        Self { number, name, family, checked: CHECKED.contains(&number), sends }
    }
}

/// How the cells that were played are divided.
fn headline(cells: &[Cell]) -> Vec<Tally> {
    let played = || cells.iter().filter(|cell| !cell.rounds.is_empty());
    let of = |kind: &'static str, what: &'static str| {
        let count = played().filter(|cell| meaning(cell.measured).1 == kind).count();
        Tally { count, what, kind }
    };
    let kinds = [
        of("lost", "lost data"),
        of("stuck", "left the lock stuck"),
        of("fenced", "had a write rejected by the storage"),
        of("well", "went well"),
    ];
    let unknown = of("unknown", "are unknown");
    let unexpected = played().filter(|cell| cell.deviates()).count();
    let unexpected = Tally { count: unexpected, what: "are not as expected", kind: "lost" };
    kinds.into_iter().chain([unknown, unexpected].into_iter().filter(|tally| tally.count > 0)).collect()
}

/// What the locks have in common when their holder pauses.
fn finding(cells: &[Cell]) -> Option<String> {
    let count = |is_checked: bool| {
        let paused = cells.iter().filter(|cell| cell.fault == Fault::PauseBeforeWrite);
        let of = paused.filter(|cell| CHECKED.contains(&cell.rung) == is_checked && !cell.rounds.is_empty());
        let marks: Vec<_> = of.map(|cell| meaning(cell.measured).1).collect();
        (marks.iter().filter(|kind| **kind == "lost").count(), marks.len())
    };
    let ((lost, alone), (lost_though, checked)) = (count(false), count(true));
    let some = |count: usize| if count == 0 { "none".to_owned() } else { count.to_string() };
    (alone > 0 && checked > 0).then(|| {
        format!(
            "When the holder pauses before its write, {} of {alone} locks lose data if nothing but the lock protects it, and \
             {} of {checked} if the storage checks each write.",
            some(lost),
            some(lost_though)
        )
    })
}

/// What a mark says, and how it is coloured.
fn meaning(mark: Mark) -> (&'static str, &'static str) {
    match mark {
        Mark::Unknown => ("unknown: the fault was not observed", "unknown"),
        Mark::Lost => {
            ("data was lost: the storage accepted a stale write, or an update was overwritten", "lost")
        }
        Mark::LostAndRejected => {
            ("the storage accepted a stale write, and rejected the live holder's", "lost")
        }
        Mark::Rejected => ("the storage rejected the live holder", "fenced"),
        Mark::StuckForEver => ("nobody could get the lock for an hour, or ever", "stuck"),
        Mark::Fenced => ("the storage rejected the stale write: safe", "fenced"),
        Mark::Stuck => ("nobody could get the lock until it timed out, or the pause ended", "stuck"),
        Mark::Refused => ("the client did not get the lock: safe", "well"),
        Mark::Well => ("nothing went wrong", "well"),
        Mark::NotApplicable => ("does not apply", "none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counts, Played, expected, rungs};

    /// A run in which each cell came to the mark that is expected.
    fn as_expected(rungs: &[u8]) -> Vec<Cell> {
        let cells =
            rungs.iter().flat_map(|rung| expected::cells(*rung).into_iter().map(|cell| (*rung, cell)));
        let cell = |(rung, (fault, mark))| {
            let played = || Played {
                mark,
                counts: Counts::default(),
                events: Vec::new(),
                before_fault: 0,
                unknown: None,
            };
            let rounds = if mark == Mark::NotApplicable { vec![] } else { vec![played(), played()] };
            Cell {
                rung,
                fault,
                expected: mark,
                measured: mark,
                reason: expected::reason(rung, fault),
                rounds,
            }
        };
        cells.map(cell).collect()
    }

    fn report(cells: &[Cell]) -> Report<'_> {
        let run = Run {
            versions: vec!["Redis 7.0.15".into()],
            command: "ladder".into(),
            date: String::new(),
            rounds: 2,
            seconds: 1,
        };
        Report::new(&rungs(), cells, run)
    }

    #[test]
    fn a_lock_that_fails_without_a_fault_has_one_mark() {
        let cells = as_expected(&[0, 8]);
        let markdown = report(&cells).markdown();
        let row = |start: &str| {
            let line = markdown.lines().find(|line| line.starts_with(start)).unwrap();
            line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
        };
        let marks =
            |row: Vec<String>| row.into_iter().skip(2).filter(|it| !it.is_empty()).collect::<Vec<_>>();
        assert_eq!(marks(row("|  0 ")), ["L"]);
        assert_eq!(marks(row("|  8 ")).len(), 11);
        assert!(row("|  8 ").iter().any(|mark| mark.starts_with("ref/L")), "a variant: {markdown}");
        let width =
            |start: &str| markdown.lines().find(|line| line.starts_with(start)).unwrap().chars().count();
        assert_eq!(width("| lock "), width("|  8 "), "aligned: {markdown}");
    }

    #[test]
    fn what_is_not_as_expected_comes_first() {
        let mut cells = as_expected(&[4]);
        assert!(!report(&cells).markdown().contains("Not as expected"));
        cells[0].rounds[1].mark = Mark::Lost;
        let markdown = report(&cells).markdown();
        let (at, grid) = (markdown.find("## Not as expected"), markdown.find("| lock"));
        assert!(at.is_some() && at < grid, "{markdown}");
        assert!(markdown.contains("Expected `T`, measured `T`, `L`."), "{markdown}");
    }

    #[test]
    fn what_was_written_tells_which_columns_lost_data() {
        let mut cells = as_expected(&[8, 19]);
        for cell in cells.iter_mut().filter(|cell| cell.rung == 8 && cell.fault == Fault::Empty) {
            cell.measured = Mark::Unknown;
        }
        let text = serde_json::to_string(&report(&cells)).unwrap();
        let results: Results = serde_json::from_str(&text).unwrap();
        let letters = |rung| {
            let (lost, of) = results.lost(rung)?;
            Some((lost.into_iter().map(Fault::letters).collect::<Vec<_>>().join(" "), of))
        };
        assert_eq!(
            letters(8),
            Some(("P Q F2 W+ N".to_owned(), 10)),
            "a variant lost data, and one column is unknown"
        );
        assert_eq!(letters(19), Some((String::new(), 11)));
        assert_eq!(letters(4), None);
        assert_eq!(results.versions(), ["Redis 7.0.15"]);
    }

    #[test]
    fn the_headline_counts_cells_and_compares_what_the_storage_checks() {
        let cells = as_expected(&[4, 19]);
        let report = report(&cells);
        let count = |kind: &str| report.headline.iter().find(|tally| tally.kind == kind).unwrap().count;
        let of = |mark: Mark| cells.iter().filter(|cell| cell.measured == mark).count();
        assert_eq!(count("lost"), of(Mark::Lost));
        assert_eq!(count("fenced"), 3);
        let finding = report.finding.unwrap();
        assert!(finding.contains("1 of 1") && finding.contains("none of 1"), "{finding}");
    }
}
