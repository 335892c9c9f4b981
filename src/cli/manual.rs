//! `ringfence completions` and `ringfence man`, both made from the same words as `--help`.

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::cli;
use crate::cli::output;

/// For which shell.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    shell: Shell,
}

/// Which page.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Of this command, as in `man cluster add` [default: of the program]
    command: Vec<String>,
}

/// To be read by the shell: `source <(ringfence completions bash)`.
pub(crate) fn completions(arguments: &Completions) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut for_users(), "ringfence", &mut text);
    output::print(&String::from_utf8(text)?).map(drop)
}

/// To be read by man: `ringfence man lock | man -l -`.
pub(crate) fn man(arguments: &Man) -> anyhow::Result<()> {
    let mut command = for_users();
    // Names as they are typed, and a page for each.
    command.build();
    for name in &arguments.command {
        command =
            command.find_subcommand(name).with_context(|| format!("there is no command {name}"))?.clone();
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    output::print(&String::from_utf8(page)?).map(drop)
}

/// The program without its hidden commands.
fn for_users() -> Command {
    let all = cli::Arguments::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let about = all.get_about().cloned().unwrap_or_default();
    Command::new("ringfence")
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown.collect::<Vec<_>>())
}
