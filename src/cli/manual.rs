//! `ringfence completions` and `ringfence man`, generated from the same definitions as `--help`.

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::cli::output;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell to print completions for: `source <(ringfence completions bash)`
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Command to describe: `ringfence man cluster add | man -l -` [default: ringfence itself]
    command: Vec<String>,
}

pub(crate) fn completions(program: &Command, arguments: &Completions) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut without_hidden(program), "ringfence", &mut text);
    output::print(&String::from_utf8(text)?).map(drop)
}

pub(crate) fn man(program: &Command, arguments: &Man) -> anyhow::Result<()> {
    let mut command = without_hidden(program);
    // Gives every subcommand its full name and a page of its own.
    command.build();
    for name in &arguments.command {
        command = command.find_subcommand(name).with_context(|| format!("no such command: {name}"))?.clone();
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    output::print(&with_usual_sections(&String::from_utf8(page)?)).map(drop)
}

/// Names the text after the options as manual pages do: exit statuses have a section of their own.
fn with_usual_sections(page: &str) -> String {
    let (statuses, notes) = (".SH \"EXIT STATUS\"\n", ".SH NOTES\n");
    let Some((before, after)) = page.split_once(".SH EXTRA\n") else { return page.to_owned() };
    let (text, of_statuses) = match after.split_once("Exit status:") {
        Some((text, of_statuses)) => (text, Some(of_statuses.trim_start_matches([' ', '\n']))),
        None => (after, None),
    };
    let notes = if text.is_empty() { String::new() } else { format!("{notes}{text}") };
    before.to_owned() + &notes + &of_statuses.map(|text| format!("{statuses}{text}")).unwrap_or_default()
}

/// `clap` completes hidden commands too, and has no way to remove one.
fn without_hidden(program: &Command) -> Command {
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("ringfence")
        .about(program.get_about().cloned().unwrap_or_default())
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown.collect::<Vec<_>>())
}
