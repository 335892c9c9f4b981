//! The step between fork and COMMAND: prepares the new process, then becomes COMMAND.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use rustix::process::getpgrp;

use super::deadline::Deadline;
use super::terminal::Terminal;
use crate::child;
use crate::cli::client::LOST;

/// Exit statuses, as in shells.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Arguments of the hidden command `exec`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    parent: i32,
    /// Whether to take the terminal.
    #[arg(long, action = clap::ArgAction::Set)]
    terminal: bool,
    /// When it is too late to start COMMAND.
    #[arg(long)]
    until: Deadline,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes COMMAND, unless that is too late. Returns only on failure, with the status to exit with.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    child::die_with_parent(arguments.parent)?;
    if arguments.terminal
        && let Some(terminal) = Terminal::open()
    {
        terminal.set_foreground(getpgrp());
    }
    let (program, rest) = arguments.command.split_first().expect("clap requires at least one");
    let mut command = Command::new(program);
    command.args(rest);
    // Right before the last step: a pause since the grant may have been of any length.
    if arguments.until.left().is_zero() {
        let _ = writeln!(io::stderr(), "ringfence: not started: the lease may have ended meanwhile");
        return Ok(ExitCode::from(LOST));
    }
    let error = command.exec();
    let is_not_found = error.kind() == io::ErrorKind::NotFound;
    // The user has quoted the whole command, as for `ssh` or `watch`.
    let is_line = is_not_found && program.as_encoded_bytes().contains(&b' ');
    let hint =
        if is_line { "; no shell reads it: -- sh -c 'COMMAND ARGUMENT…' lets one do so" } else { "" };
    let _ = writeln!(io::stderr(), "ringfence: cannot run {}: {error}{hint}", program.display());
    Ok(ExitCode::from(if is_not_found { NOT_FOUND } else { CANNOT_RUN }))
}

/// This program, as it runs: its file may have been replaced since.
pub(super) fn this_program(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ringfence").arg(subcommand);
    command
}
