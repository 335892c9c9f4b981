//! `ringfence backup`: saves the revision of a cluster, for a new cluster that replaces it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::ensure;
use clap::{Args, Subcommand};
use ringfence_raft::StoppedNode;
use ringfence_wire::Backup;

use crate::backup;
use crate::cli::client::Call;
use crate::cli::output::{self, Output};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Save the cluster's revision to a file. With `serve --restore FILE`, a new cluster starts above it
    Save(Save),
    /// Show a backup
    Inspect(Inspect),
}

#[derive(Debug, Args)]
pub(crate) struct Save {
    /// The file to write; - writes it to standard output, and nothing else
    file: PathBuf,
    /// Read this data directory of a stopped node instead of asking the cluster, which has lost its majority for good
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The backup to read; - reads standard input
    file: PathBuf,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Save(Save { file, data: Some(data), call }) => {
            save(&StoppedNode::open(data)?.backup()?, file, call.output)
        }
        Command::Save(Save { file, data: None, call }) => {
            call.run(async |client| save(&client.backup().await?, file, call.output))
        }
        Command::Inspect(Inspect { file, output }) => {
            output.print(&backup::read(file)?, text)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes the backup, and prints what is in it.
fn save(backup: &Backup, file: &Path, output: Output) -> anyhow::Result<ExitCode> {
    if file == Path::new(backup::STANDARD) {
        ensure!(output::print(&backup::text(backup)?)?, "cannot write the backup: standard output is closed");
    } else {
        backup::write(backup, file)?;
        output.print(backup, text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(backup: &Backup) -> String {
    let Backup { format, cluster_id, first_revision, revision } = backup;
    format!(
        "cluster         {cluster_id}\nfirst revision  {first_revision}\nrevision        {revision}\nformat          {format}\n"
    )
}
