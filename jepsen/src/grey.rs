//! Half-broken environments: nothing is dead, and something does not live. What is promised in each, and what is measured.
//!
//! ```text
//!  row ──▶ setup ──▶ stage     three nodes behind relays, in namespaces, with libraries, or a shell
//!   │                  │
//!   ├──▶ fault ── inflict, go on, heal
//!   │                  ▼
//!   │     probe     grants through each node, a lease that is renewed, memory      the same in all rows,
//!   │     queue     a holder that dies, a waiter by way of the broken node, one    so that they can be compared
//!   ▼               who comes later
//!  promise ──▶ verdict
//! ```
//! A **row** ([`table`](rows)) is an environment: what is half broken, how that is made, and the most that each *figure* may
//! be. It is *broken* if one of them is more, and *unknown* if the fault was not observed to act or a figure could not be
//! measured: a run that exercised nothing is no success.
//!
//! **The probe** begins requests at a fixed rate, whether or not earlier ones are answered, so it measures how long nothing
//! works. The **waiter** and the one who comes later are processes of `ringfence lock`, so they measure the Rust client.

mod bent;
mod fault;
mod figure;
mod flood;
mod locker;
mod page;
mod play;
mod probe;
mod queue;
mod relay;
mod stage;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Instant, SystemTime};

use anyhow::ensure;
use ringfence_patched::program;

pub use figure::{Figure, Verdict};
use table::{Row, rows};

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only these environments, such as slow-disk-1,leader-hangs
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<String>,
    /// The program under test [default: built from this workspace]
    #[arg(long)]
    pub program: Option<PathBuf>,
    /// Only a few environments
    #[arg(long)]
    pub quick: bool,
    /// Folder for the reports, and the logs of the nodes
    #[arg(long, default_value = "store/grey")]
    pub folder: PathBuf,
}

/// Plays all rows one after the other, and writes the reports. Returns the exit code: 0 if all promises hold, 1 if one is
/// broken, 2 if none is, but something is not known.
pub async fn measure(options: &Options, out: &mut impl Write) -> anyhow::Result<u8> {
    let rows = options.rows()?;
    let program = match &options.program {
        Some(program) => program.canonicalize()?,
        None => program::build(!cfg!(debug_assertions))?,
    };
    let began = Instant::now();
    std::fs::create_dir_all(&options.folder)?;
    let folder = options.folder.canonicalize()?;
    let mut played = Vec::new();
    for mut row in rows {
        let of_row = folder.join(row.name);
        if of_row.exists() {
            std::fs::remove_dir_all(&of_row)?;
        }
        let it = row.play(program.clone(), of_row).await;
        writeln!(out, "{}", page::line(&row, &it))?;
        played.push((row, it));
    }
    let version = Command::new(&program).arg("--version").output()?;
    let run = page::Run {
        program: program.display().to_string(),
        version: String::from_utf8_lossy(&version.stdout).trim().to_owned(),
        command: options.command(),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        seconds: began.elapsed().as_secs(),
    };
    page::write(&folder, &run, &played)?;
    writeln!(out, "\n{}", folder.join("grey.md").display())?;
    let verdicts: Vec<Verdict> = played.iter().map(|(_, played)| played.verdict).collect();
    Ok(figure::exit_code(&verdicts))
}

impl Options {
    /// The rows to play. An error if one does not exist.
    fn rows(&self) -> anyhow::Result<Vec<Row>> {
        let mut rows = rows();
        for name in &self.only {
            ensure!(rows.iter().any(|row| row.name == name), "there is no row {name}");
        }
        rows.retain(|row| self.only.is_empty() || self.only.iter().any(|name| name == row.name));
        rows.retain(|row| !self.quick || row.is_quick);
        Ok(rows)
    }

    /// The command that plays the same.
    fn command(&self) -> String {
        let only =
            if self.only.is_empty() { String::new() } else { format!(" --only {}", self.only.join(",")) };
        let quick = if self.quick { " --quick" } else { "" };
        format!("cargo run --release -p ringfence-jepsen -- grey{only}{quick}")
    }
}
