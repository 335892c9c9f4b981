//! `ringfence cluster wait-ready`: for the time between two restarts.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use tokio::time::{Instant, sleep};

use crate::cli::client::Connection;
use crate::cli::output;
use crate::runtime;

/// How long after one look the next one follows.
const PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
pub(crate) struct WaitReady {
    /// How long at most
    #[arg(long, value_name = "TIME", default_value = "60s")]
    within: humantime::Duration,
    #[command(flatten)]
    connection: Connection,
}

/// Waits until all nodes that are named are ready at once. Says on standard error for which it waits, and why.
pub(crate) fn run(arguments: &WaitReady) -> anyhow::Result<ExitCode> {
    let WaitReady { within, connection } = arguments;
    ensure!(connection.names_nodes()?, "no nodes are named: -u or RINGFENCE_URLS has the URL of each");
    runtime::block_on(async {
        let (client, begun) = (connection.client()?, Instant::now());
        let mut told = BTreeSet::new();
        loop {
            let found = client.readiness().await;
            let count = found.len();
            let missing: Vec<_> = found.into_iter().filter_map(|(url, why)| Some((url, why?))).collect();
            if missing.is_empty() {
                output::print(&format!("all {count} are ready\n"))?;
                return Ok(ExitCode::SUCCESS);
            }
            let urls: BTreeSet<String> = missing.iter().map(|(url, _)| url.clone()).collect();
            let is_over = begun.elapsed() >= **within;
            if is_over || urls != told {
                let what = if is_over { "not ready" } else { "waits for" };
                missing.iter().for_each(|(url, why)| eprintln!("ringfence: {what}: {url}: {why}"));
                told = urls;
            }
            if is_over {
                return Ok(ExitCode::FAILURE);
            }
            sleep(PAUSE).await;
        }
    })?
}
