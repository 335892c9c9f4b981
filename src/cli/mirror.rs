//! `ringfence mirror`: maintenance of the mirror in Redis.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ringfence_mirror::Settings;
use uuid::Uuid;

use crate::cli::output;
use crate::runtime;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Remove everything that a lost cluster left in Redis. A cluster that still runs publishes it again
    Purge(Purge),
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// URL of Redis, as in `ringfence serve --redis`
    #[arg(long, env = "RINGFENCE_REDIS", value_name = "URL", hide_env_values = true)]
    redis: String,
    /// Id of the lost cluster. If another cluster published there last, nothing is removed
    #[arg(long, value_name = "UUID")]
    cluster: Uuid,
    /// Prefix of all keys in Redis
    #[arg(
        long = "mirror-prefix",
        env = "RINGFENCE_MIRROR_PREFIX",
        value_name = "TEXT",
        default_value = "ringfence"
    )]
    prefix: String,
    /// PEM file of certificate authorities for Redis, instead of the system's
    #[arg(long = "mirror-tls-ca", env = "RINGFENCE_MIRROR_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    let Command::Purge(Purge { redis, cluster, prefix, tls_ca }) = command;
    let settings = Settings { prefix, tls_ca, ..Settings::new(redis) };
    let removed = runtime::block_on(ringfence_mirror::purge(settings, cluster))??;
    output::print(&format!("removed {removed} keys of cluster {cluster}\n")).map(drop)
}
