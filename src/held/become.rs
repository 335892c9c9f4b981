//! Between `lock` and COMMAND: what has to be done in the new process before it becomes COMMAND.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use rustix::process::getpgrp;

use super::terminal::Terminal;
use crate::child;

/// As shells say it: found, but it cannot be run; not found.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What to become.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    parent: i32,
    /// Whether to take the terminal.
    #[arg(long, action = clap::ArgAction::Set)]
    terminal: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns only if it cannot.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    child::die_with_parent(arguments.parent)?;
    if arguments.terminal
        && let Some(terminal) = Terminal::open()
    {
        terminal.put_in_front(getpgrp());
    }
    let (program, rest) = arguments.command.split_first().expect("clap has seen to it that there is one");
    let error = Command::new(program).args(rest).exec();
    let _ = writeln!(io::stderr(), "ringfence: cannot run {}: {error}", program.display());
    Ok(ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN }))
}
