//! What all commands that call a cluster have in common.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ringfence_client::Client;

use crate::cli::connection::Connection;
use crate::cli::output::Output;

/// The exit status where a lease was not acquired.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// How long a lease, or a place in the queue, may take to be given back at the end.
pub(crate) const TO_LEAVE: Duration = Duration::from_secs(2);

/// How a cluster is called, and how its answer is shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct Caller {
    #[command(flatten)]
    connection: Connection,
    /// How to show it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

impl Caller {
    /// Does `work` with a client of the cluster.
    pub(crate) fn run(
        &self,
        work: impl AsyncFnOnce(Client, Output) -> anyhow::Result<ExitCode>,
    ) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { work(self.connection.client()?, self.output).await })
    }
}
