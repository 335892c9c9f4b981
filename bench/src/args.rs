//! Command-line arguments that several commands share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;

/// Accepts 1 to 65,535.
pub(crate) fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=u64::from(u16::MAX))
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Program {
    /// Program under test [default: `ringfence` in the folder of this program]
    #[arg(long)]
    program: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Repeats {
    /// Number of rounds
    #[arg(long, default_value_t = 5, value_parser = count())]
    pub(crate) rounds: usize,
    /// Seconds per measurement
    #[arg(long, default_value_t = 4, value_parser = count())]
    seconds: usize,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Output {
    /// Write all figures to this file as JSON
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

impl Program {
    /// Its absolute path: nodes run in other directories.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let beside = || Ok(std::env::current_exe()?.with_file_name("ringfence"));
        let program = self.program.clone().map_or_else(beside, anyhow::Ok)?;
        absolute(&program).context("build it, or pass --program")
    }
}

/// The absolute path of a program that exists.
pub(crate) fn absolute(program: &Path) -> Result<PathBuf> {
    ensure!(program.exists(), "{} is missing", program.display());
    Ok(std::path::absolute(program)?)
}

impl Repeats {
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds as u64)
    }
}
