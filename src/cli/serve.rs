//! `ringfence serve`: one node.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Deserializer, de};
use uuid::Uuid;

use crate::child;
use crate::config::{self, Config};
use crate::logging::{self, LogFormat};
use crate::server;

/// Flags go before `RINGFENCE_*` variables, those before the file, that before the defaults.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// TOML file with the same names as these flags [default: ./ringfence.toml, if there is one]
    #[arg(long, env = "RINGFENCE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    /// End when the process with this id ends, which started this one
    #[arg(long, hide = true, value_name = "PID")]
    die_with_parent: Option<i32>,
}

/// What can stand on the command line, in the environment and in the file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Options {
    /// This node's id, from 1
    #[arg(long, env = "RINGFENCE_ID", value_name = "N")]
    pub(crate) id: Option<u64>,
    /// This node's data directory; made if it is not there
    #[arg(long, env = "RINGFENCE_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where clients connect [default: 127.0.0.1:7400]
    #[arg(long, env = "RINGFENCE_HTTP", value_name = "ADDR")]
    pub(crate) http: Option<SocketAddr>,
    /// Where the other nodes connect [default: 127.0.0.1:7500]
    #[arg(long, env = "RINGFENCE_PEER", value_name = "ADDR")]
    pub(crate) peer: Option<SocketAddr>,
    /// The peer addresses of all members, this one included: 1=HOST:PORT,2=HOST:PORT,… Without it: one node, for trials
    #[arg(long, env = "RINGFENCE_PEERS", value_name = "LIST")]
    pub(crate) peers: Option<String>,
    /// Wait to be added to a running cluster, rather than to found one with --peers
    #[arg(long, env = "RINGFENCE_JOIN", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) join: Option<bool>,
    /// Where clients and other nodes are told that this node's HTTP is, where that is not --http: http://HOST:PORT
    #[arg(long, env = "RINGFENCE_ADVERTISE_HTTP", value_name = "URL")]
    pub(crate) advertise_http: Option<String>,
    /// Where the other nodes are told that this node's peer address is, where that is not what --peers says: HOST:PORT
    #[arg(long, env = "RINGFENCE_ADVERTISE_PEER", value_name = "HOST:PORT")]
    pub(crate) advertise_peer: Option<String>,
    /// What a new cluster counts its revisions from [default: unix milliseconds × 1024]
    #[arg(long, env = "RINGFENCE_FIRST_REVISION", value_name = "N")]
    pub(crate) first_revision: Option<u64>,
    /// Found a new cluster in place of the one of this backup: only beyond the revision that it had come to
    #[arg(long, env = "RINGFENCE_RESTORE", value_name = "FILE")]
    pub(crate) restore: Option<PathBuf>,
    /// After how many bytes of log a snapshot is taken and the log cut [default: 33554432, 32 MiB]
    #[arg(long, env = "RINGFENCE_SNAPSHOT_AFTER_BYTES", value_name = "N")]
    pub(crate) snapshot_after_bytes: Option<u64>,
    /// A request that takes so long, not counting what it asked to wait, is logged [default: 1s]
    #[arg(long, env = "RINGFENCE_SLOW_REQUEST", value_name = "TIME")]
    #[serde(deserialize_with = "time")]
    pub(crate) slow_request: Option<humantime::Duration>,
    /// Answer only requests for these host names, IP addresses, localhost and the hosts of the members: NAME,… [default: any
    /// name; but browsers are answered by the members' names only]
    #[arg(long, env = "RINGFENCE_HOSTS", value_name = "LIST")]
    pub(crate) hosts: Option<String>,
    /// How many connections of clients there may be [default: as many as the limit of file descriptors leaves room for, and
    /// no more than 16384]
    #[arg(long, env = "RINGFENCE_MAX_CONNECTIONS", value_name = "N")]
    pub(crate) max_connections: Option<usize>,
    /// How many threads serve connections of clients [default: one for each core but one, at most 8]
    #[arg(long, env = "RINGFENCE_DOOR_THREADS", value_name = "N")]
    pub(crate) door_threads: Option<usize>,
    /// Publish fences in this Redis: redis://HOST:PORT, redis+cluster://HOST:PORT,…, redis+sentinel://HOST:PORT,…/NAME, or
    /// rediss… for TLS, with USER:PASSWORD@ before the hosts
    #[arg(long, env = "RINGFENCE_REDIS", value_name = "URL", hide_env_values = true)]
    pub(crate) redis: Option<String>,
    #[command(flatten)]
    pub(crate) mirror: MirrorOptions,
    /// What to log: a level (error, warn, info, debug, trace), or target=level,… [default: info,openraft=error]
    #[arg(long, env = "RINGFENCE_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// How to log [default: text]
    #[arg(long, env = "RINGFENCE_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// The cluster's nodes, for the commands that call one; `serve` does not need it
    #[arg(skip)]
    pub(crate) urls: Vec<String>,
}

/// How the mirror in Redis is kept; the table `mirror` of the file.
#[derive(Debug, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct MirrorOptions {
    /// Whether a grant is answered without waiting for Redis, or when its fence stands there [default: async]
    #[arg(long = "mirror-mode", env = "RINGFENCE_MIRROR_MODE", value_name = "MODE")]
    pub(crate) mode: Option<MirrorMode>,
    /// How long an answer waits at most, with before-answer [default: 1s]
    #[arg(long = "mirror-timeout", env = "RINGFENCE_MIRROR_TIMEOUT", value_name = "TIME")]
    #[serde(deserialize_with = "time")]
    pub(crate) timeout: Option<humantime::Duration>,
    /// What the names of all keys in Redis begin with [default: ringfence]
    #[arg(long = "mirror-prefix", env = "RINGFENCE_MIRROR_PREFIX", value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// How long Redis remembers a key that was freed [default: 24h]
    #[arg(long = "mirror-retention", env = "RINGFENCE_MIRROR_RETENTION", value_name = "TIME")]
    #[serde(deserialize_with = "time")]
    pub(crate) retention: Option<humantime::Duration>,
    /// How many keys a second are compared with Redis all the time, to find what others did to it [default: 2000]; 0: none
    #[arg(long = "mirror-sweep-keys-per-s", env = "RINGFENCE_MIRROR_SWEEP_KEYS_PER_S", value_name = "N")]
    pub(crate) sweep_keys_per_s: Option<u32>,
    /// PEM file of the authorities that Redis's certificate is checked with, in place of the system's
    #[arg(long = "mirror-tls-ca", env = "RINGFENCE_MIRROR_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Take Redis over from this cluster even if that is alive. Without it a new cluster waits until the old one has been
    /// silent for 16 s
    #[arg(long = "mirror-take-over", env = "RINGFENCE_MIRROR_TAKE_OVER", value_name = "UUID")]
    pub(crate) take_over: Option<Uuid>,
}

/// When a grant is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MirrorMode {
    /// Without waiting for Redis
    Async,
    /// When its fence stands in Redis, or the time is over
    BeforeAnswer,
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<humantime::Duration>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
}

/// Runs a node until it is told to stop, or cannot go on.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let options = config::with_file(arguments.options, arguments.config.as_deref())?;
    logging::start(options.log.as_deref(), options.log_format.unwrap_or_default())?;
    let config = Config::from_options(options)?;
    if let Some(parent) = arguments.die_with_parent {
        child::die_with_parent(parent)?;
    }
    // One thread for Raft, the table and the peers: commands batch by themselves. The door has its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(server::run(config))
}
