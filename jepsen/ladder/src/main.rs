//! The command line of the ladder.

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ringfence_ladder::{Options, Setting, climb, hold};

/// Puts the locks that people use under the same faults, on real servers, and counts what goes wrong.
///
/// Exit status: 0 as expected, 1 not as expected, 2 unknown (a fault was not observed), 3 the run itself failed.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A lock holder, which reads its steps from standard input
    #[command(hide = true)]
    Holder(Setting),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            // By itself clap says 2, which is taken for a run of which not all could be told.
            return if error.use_stderr() { 3.into() } else { ExitCode::SUCCESS };
        }
    };
    match perform(arguments) {
        Ok(code) => code.into(),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "ringfence-ladder: {error:#}");
            3.into()
        }
    }
}

fn perform(arguments: Arguments) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(Command::Holder(setting)) = arguments.command {
        return runtime.block_on(hold(&setting)).map(|()| 0);
    }
    runtime.block_on(climb(&arguments.options, &mut stdout()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_the_debate_are_accepted() {
        let debate = include_str!("../../../docs/debate.md");
        let commands: Vec<_> = debate.lines().filter(|line| line.starts_with("ladder ")).collect();
        assert!(commands.len() >= 10, "{commands:?}");
        for command in commands {
            let parsed = Arguments::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "{command}: {parsed:?}");
        }
    }
}
