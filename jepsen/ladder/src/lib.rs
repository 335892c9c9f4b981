//! The ladder: every kind of lock that people use, on real servers, under the same faults, counted.
//!
//! ```text
//!  referee ── steps (JSON) ──▶ holders A, B, C     a process each: `ringfence-ladder holder`
//!    │  │                        │     │
//!    │  └─ register (TCP) ◀──────┘     │ acquire, touch, release
//!    │       the stock count           ▼
//!    └─ faults ───────────────────▶ stage          the rung's servers, behind proxies
//!
//!  moves ──▶ judge ──▶ counts ──▶ mark ──▶ beside the mark that is expected
//! ```
//! A **cell** is a rung under a fault. It is played in some rounds, each with a key of its own; a fault that changes the
//! servers gets new servers in each round. A round is a fixed script of about ten steps (`script`): each waits for an
//! observed condition, and the only wait for time is that for the end of a lock. All that happens is noted as *moves*;
//! `judge` counts them.
//!
//! **A rung** (`rung`, a file for each family) provides its entries of `rungs`, and two parts:
//!
//! - a `Lock`: what a holder's client sends to acquire, renew and release; it lives in the holder's process. Its grant
//!   carries what the storage is to be shown (`Pass`): nothing, a token, or a random name. Clients of other people are
//!   played by the same commands in the same order as their sources send.
//! - a `Stage`: its servers, and how to make the faults that concern servers. Each of these returns what was *observed*: a
//!   fault that was not makes the cell *unknown*, never well.
//!
//! **A fault** (`fault`) needs a script, and a column of the table (`expected`).
//!
//! A deviation from that table, in either direction, makes the run fail: where reality is right, the table is corrected,
//! with the reason.

mod actor;
mod cell;
mod clock;
#[cfg(test)]
mod documents;
mod expected;
mod fault;
mod front;
mod holder;
mod judge;
mod moves;
mod page;
mod register;
mod round;
mod rung;
mod script;
mod step;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use anyhow::ensure;
use futures_util::{StreamExt, stream};
use ringfence_patched::program;

pub use cell::Cell;
pub use fault::Fault;
pub use holder::serve as hold;
pub use judge::{Counts, Mark};
pub use page::{Results, picture};
pub use rung::{Rung, Setting, rungs};

use cell::Played;
use page::{Report, Run};
use round::{Round, Told};
use rung::{Ground, Stage};

/// How many rungs are played side by side.
const AT_ONCE: usize = 5;

/// What to play.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only these locks, by number, such as 4,7
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<u8>,
    /// Only these faults, by letter, such as P,W-
    #[arg(long = "fault", value_name = "FAULT", value_delimiter = ',')]
    pub faults: Vec<String>,
    /// The program under test [default: built from this workspace]
    #[arg(long)]
    pub program: Option<PathBuf>,
    /// Only the most telling cells, once each
    #[arg(long)]
    pub quick: bool,
    /// Rounds per cell [default: 3, or 1 with --quick]
    #[arg(long, default_value_t = 3, default_value_if("quick", "true", "1"), hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Folder for the reports
    #[arg(long, default_value = "store/ladder")]
    pub folder: PathBuf,
}

/// Plays all, and writes the reports. Returns the exit code: 0 as expected, 1 otherwise, 2 if something is unknown.
///
/// Rungs are played side by side: they mostly wait.
pub async fn climb(options: &Options, out: &mut impl Write) -> anyhow::Result<u8> {
    options.check()?;
    let began = Instant::now();
    std::fs::create_dir_all(&options.folder)?;
    let folder = options.folder.canonicalize()?;
    let scratch = tempfile::tempdir()?;
    let program = match &options.program {
        Some(program) => program.canonicalize()?,
        None if rungs().iter().any(|rung| rung.is_ringfence() && options.wants_rung(rung)) => {
            program::build(!cfg!(debug_assertions))?
        }
        None => PathBuf::new(),
    };
    let ground = Ground { folder: scratch.path().to_owned(), program };
    let played = rungs()
        .into_iter()
        .filter(|rung| options.wants_rung(rung))
        .map(|rung| climb_to(rung, options, &ground));
    let mut played = stream::iter(played).buffered(AT_ONCE);
    let mut cells = Vec::new();
    while let Some(of_rung) = played.next().await {
        of_rung.iter().try_for_each(|cell| tell(cell, out))?;
        cells.extend(of_rung);
    }
    let run = Run {
        versions: rung::versions(&ground),
        command: options.command(),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        rounds: options.rounds,
        seconds: began.elapsed().as_secs(),
    };
    Report::new(&rungs(), &cells, run).write(&folder)?;
    writeln!(out, "\n{}", folder.join("index.html").display())?;
    Ok(exit_code(&cells))
}

fn exit_code(cells: &[Cell]) -> u8 {
    if cells.iter().any(Cell::deviates) {
        1
    } else if cells.is_empty() || cells.iter().any(|cell| cell.measured == Mark::Unknown) {
        2
    } else {
        0
    }
}

/// Plays the cells of a rung.
async fn climb_to(rung: Rung, options: &Options, ground: &Ground) -> Vec<Cell> {
    let mut stage = None;
    let mut cells = Vec::new();
    for (fault, expected) in expected::cells(rung.number) {
        if !options.wants(rung.number, fault) {
            continue;
        }
        let reason = expected::reason(rung.number, fault);
        let mut cell =
            Cell { rung: rung.number, fault, expected, measured: expected, reason, rounds: Vec::new() };
        if expected != Mark::NotApplicable {
            for number in 0..options.rounds {
                if fault.spoils_servers() {
                    stage = None;
                }
                cell.rounds.push(play(rung, fault, number, &mut stage, ground).await);
            }
            cell.measured = cell.rounds.iter().map(|round| round.mark).min().unwrap_or(Mark::Unknown);
            if fault.spoils_servers() {
                stage = None;
            }
        }
        cells.push(cell);
    }
    cells
}

impl Options {
    fn wants_rung(&self, rung: &Rung) -> bool {
        self.only.is_empty() || self.only.contains(&rung.number)
    }

    /// The command that plays the same.
    fn command(&self) -> String {
        let mut command = "cargo run --release -p ringfence-ladder --".to_owned();
        let only: Vec<_> = self.only.iter().map(u8::to_string).collect();
        for (option, values) in [(" --only ", only.join(",")), (" --fault ", self.faults.join(","))] {
            if !values.is_empty() {
                command = command + option + &values;
            }
        }
        if self.quick {
            command += " --quick";
        }
        command + &format!(" --rounds {}", self.rounds)
    }

    /// Refuses rungs and faults that do not exist.
    fn check(&self) -> anyhow::Result<()> {
        self.only.iter().try_for_each(|number| Rung::of(*number).map(drop))?;
        let all: Vec<_> = rungs().iter().flat_map(|rung| expected::cells(rung.number)).collect();
        for letters in &self.faults {
            ensure!(all.iter().any(|(fault, _)| fault.is_called(letters)), "there is no fault {letters}");
        }
        Ok(())
    }

    fn wants(&self, rung: u8, fault: Fault) -> bool {
        let is_named = |fault: Fault| self.faults.iter().any(|it| fault.is_called(it));
        (!self.quick || expected::is_quick(rung, fault)) && (self.faults.is_empty() || is_named(fault))
    }
}

/// One round, on the stage that is there, or on a new one.
async fn play(
    rung: Rung,
    fault: Fault,
    number: u32,
    stage: &mut Option<Box<dyn Stage>>,
    ground: &Ground,
) -> Played {
    let played = async {
        let stage = match stage {
            Some(stage) => stage,
            None => stage.insert(rung.stage(fault, ground).await?),
        };
        let mut round = Round::start(rung, fault, stage.as_ref(), number, &ground.folder).await?;
        let result = script::play(&mut round).await;
        let ttl_ms = u64::try_from(round.ttl().as_millis())?;
        let Told { moves, begins, counts } = round.finish().await?;
        let (mark, unknown) = match result {
            Ok(()) => (counts.mark(ttl_ms / 2), None),
            Err(error) => (Mark::Unknown, Some(format!("{error:#}"))),
        };
        Ok(Played { mark, counts, events: moves, before_fault: begins, unknown })
    };
    played.await.unwrap_or_else(|error: anyhow::Error| {
        let unknown = Some(format!("{error:#}"));
        Played {
            mark: Mark::Unknown,
            counts: Counts::default(),
            events: Vec::new(),
            before_fault: 0,
            unknown,
        }
    })
}

/// Prints the cell, and all that happened in it if that is not as expected.
fn tell(cell: &Cell, out: &mut impl Write) -> anyhow::Result<()> {
    let rung = Rung::of(cell.rung)?;
    let marks: Vec<_> = cell.rounds.iter().map(|round| round.mark.to_string()).collect();
    let ends = if cell.deviates() { "  <-- not as expected" } else { "" };
    if cell.rounds.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "{:>2} {:<32} {:<3} expected {:<3} is {}{ends}",
        rung.number,
        rung.name,
        cell.fault.letters(),
        cell.expected,
        marks.join(" ")
    )?;
    for round in &cell.rounds {
        if let Some(why) = &round.unknown {
            writeln!(out, "       {why}")?;
        }
        if cell.deviates() || round.unknown.is_some() {
            writeln!(out, "       {:?}", round.counts)?;
            for it in &round.events {
                writeln!(
                    out,
                    "         {:>6} {:>6} {} {:?}",
                    it.from_us / 1000,
                    it.to_us / 1000,
                    it.who,
                    it.what
                )?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(expected: Mark, rounds: &[Mark]) -> Cell {
        let played = |mark: &Mark| Played {
            mark: *mark,
            counts: Counts::default(),
            events: Vec::new(),
            before_fault: 0,
            unknown: None,
        };
        let measured = rounds.iter().min().copied().unwrap_or(expected);
        let rounds = rounds.iter().map(played).collect();
        Cell { rung: 3, fault: Fault::Crash, expected, measured, reason: None, rounds }
    }

    #[test]
    fn a_deviation_either_way_fails_and_what_is_not_known_is_never_well() {
        let good = || cell(Mark::Stuck, &[Mark::Stuck, Mark::Stuck]);
        assert_eq!(exit_code(&[good(), cell(Mark::NotApplicable, &[])]), 0);
        assert_eq!(exit_code(&[good(), cell(Mark::Stuck, &[Mark::Stuck, Mark::Lost])]), 1);
        assert_eq!(exit_code(&[good(), cell(Mark::Lost, &[Mark::Lost, Mark::Well])]), 1);
        assert_eq!(exit_code(&[good(), cell(Mark::Well, &[Mark::Well, Mark::Unknown])]), 2);
        assert_eq!(exit_code(&[]), 2);
    }
}
