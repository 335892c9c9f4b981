//! `ringfence backup`: how far a cluster came, for the one that takes its place.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence_wire::Backup;

use crate::backup;
use crate::cli::calls::Caller;
use crate::cli::output::{self, Output};

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write how far the cluster has come; `serve --restore FILE` founds a new cluster beyond it
    Save(Save),
    /// Show what a backup says
    Inspect(Inspect),
}

/// Where the backup goes.
#[derive(Debug, Args)]
pub(crate) struct Save {
    file: PathBuf,
    #[command(flatten)]
    caller: Caller,
}

/// Which backup to show.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    file: PathBuf,
    /// How to show it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

/// Does it.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Save(Save { file, caller }) => caller.run(async |client, output| {
            let saved = client.backup().await?;
            backup::write(&saved, file)?;
            output::print(&output.show(&saved, text)?)?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::Inspect(Inspect { file, output }) => {
            output::print(&output.show(&backup::read(file)?, text)?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn text(backup: &Backup) -> String {
    let Backup { format, cluster_id, first_revision, revision } = backup;
    format!(
        "cluster   {cluster_id}\nstarted   at revision {first_revision}\ncame to   revision {revision}\nformat    {format}\n"
    )
}
