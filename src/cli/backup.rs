//! `ringfence backup`: saves the revision of a cluster, for a new cluster that replaces it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence_raft::StoppedNode;
use ringfence_wire::Backup;

use crate::backup;
use crate::cli::client::Call;
use crate::cli::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Save the cluster's revision to a file. With `serve --restore FILE`, a new cluster starts above it
    Save(Save),
    /// Show a backup
    Inspect(Inspect),
}

#[derive(Debug, Args)]
pub(crate) struct Save {
    /// The file to write
    file: PathBuf,
    /// Read this data directory of a stopped node instead of asking the cluster, which has lost its majority for good
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The backup to read
    file: PathBuf,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Save(Save { file, data: Some(data), call }) => {
            let saved = StoppedNode::open(data)?.backup()?;
            backup::write(&saved, file)?;
            call.output.print(&saved, text)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Save(Save { file, data: None, call }) => call.print(text, async |client| {
            let saved = client.backup().await?;
            backup::write(&saved, file)?;
            Ok(saved)
        }),
        Command::Inspect(Inspect { file, output }) => {
            output.print(&backup::read(file)?, text)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn text(backup: &Backup) -> String {
    let Backup { format, cluster_id, first_revision, revision } = backup;
    format!(
        "cluster         {cluster_id}\nfirst revision  {first_revision}\nrevision        {revision}\nformat          {format}\n"
    )
}
