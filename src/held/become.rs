//! Between `lock` and COMMAND: what has to be done in the new process before it becomes COMMAND.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Args;

use super::terminal;
use crate::child;

/// As shells say it: found, but it cannot be run; not found.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The terminal is handed over within microseconds.
const TERMINAL_WITHIN: Duration = Duration::from_secs(1);

/// What to become.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    parent: i32,
    /// Whether to wait for the terminal first.
    #[arg(long, action = clap::ArgAction::Set)]
    terminal: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns only if it cannot.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    child::die_with_parent(arguments.parent)?;
    let deadline = Instant::now() + TERMINAL_WITHIN;
    while arguments.terminal && !terminal::is_ours() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(200));
    }
    let (program, rest) = arguments.command.split_first().expect("clap has seen to it that there is one");
    let error = Command::new(program).args(rest).exec();
    let _ = writeln!(io::stderr(), "ringfence: cannot run {}: {error}", program.display());
    Ok(ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN }))
}
