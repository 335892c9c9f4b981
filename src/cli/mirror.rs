//! `ringfence mirror`: looking after the mirror in Redis.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ringfence_mirror::Settings;
use uuid::Uuid;

/// What to do with the mirror.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Remove all keys of a cluster that is no more. One that still runs puts its keys back
    Purge(Purge),
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// Where they are, as for `ringfence serve`
    #[arg(long, env = "RINGFENCE_REDIS", value_name = "URL", hide_env_values = true)]
    redis: String,
    /// The cluster's id. If another published there last, nothing is removed and that one is named
    #[arg(long, value_name = "UUID")]
    cluster: Uuid,
    /// What the names of all keys begin with
    #[arg(
        long = "mirror-prefix",
        env = "RINGFENCE_MIRROR_PREFIX",
        value_name = "TEXT",
        default_value = "ringfence"
    )]
    prefix: String,
    /// PEM file of the authorities that Redis's certificate is checked with, in place of the system's
    #[arg(long = "mirror-tls-ca", env = "RINGFENCE_MIRROR_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

/// Does it, and prints what was done.
pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    let Command::Purge(Purge { redis, cluster, prefix, tls_ca }) = command;
    let settings = Settings { prefix, tls_ca, ..Settings::new(redis) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let removed = runtime.block_on(ringfence_mirror::purge(settings, cluster))?;
    print(&format!("removed {removed} keys of cluster {cluster}"));
    Ok(())
}

#[allow(clippy::print_stdout, reason = "this is what the command is for")]
fn print(line: &str) {
    println!("{line}");
}
