//! The table of a node's settings: each is a flag, a `RINGFENCE_*` variable and a key of the file that --config names. Flags
//! take precedence over variables, variables over the file, and the file over defaults.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use serde::{Deserialize, Deserializer, de};
use toml::{Table, Value};
use uuid::Uuid;

use crate::logging::LogFormat;

#[derive(Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Options {
    /// This node's id, from 1
    #[arg(long, env = "RINGFENCE_ID", value_name = "N")]
    pub(crate) id: Option<u64>,
    /// Data directory, created if missing
    #[arg(long, env = "RINGFENCE_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Address to listen on for clients [default: 127.0.0.1:7400]
    #[arg(long, env = "RINGFENCE_HTTP", value_name = "ADDR")]
    pub(crate) http: Option<SocketAddr>,
    /// Address to listen on for other nodes [default: 127.0.0.1:7500]
    #[arg(long, env = "RINGFENCE_PEER", value_name = "ADDR")]
    pub(crate) peer: Option<SocketAddr>,
    /// Address to listen on for Redis lock libraries. --tls-certificate and --access apply to it, too
    /// [default: no such port]
    #[arg(long, env = "RINGFENCE_RESP", value_name = "ADDR")]
    pub(crate) resp: Option<SocketAddr>,
    /// Peer addresses of all members, this node included: 1=HOST:PORT,2=HOST:PORT,… [default: this node alone]
    #[arg(long, env = "RINGFENCE_PEERS", value_name = "LIST")]
    pub(crate) peers: Option<String>,
    /// Wait until `cluster add` adds this node to a running cluster, instead of founding one with --peers
    #[arg(long, env = "RINGFENCE_JOIN", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) join: Option<bool>,
    /// URL at which clients and other nodes reach this node, if it differs from --http: http://HOST:PORT
    #[arg(long, env = "RINGFENCE_ADVERTISE_HTTP", value_name = "URL")]
    pub(crate) advertise_http: Option<String>,
    /// Address at which other nodes reach this node, if it differs from its entry in --peers
    #[arg(long, env = "RINGFENCE_ADVERTISE_PEER", value_name = "HOST:PORT")]
    pub(crate) advertise_peer: Option<String>,
    /// First revision of a new cluster; made odd if it is ahead of the clock [default: Unix time in milliseconds × 1024]
    #[arg(long, env = "RINGFENCE_FIRST_REVISION", value_name = "N")]
    pub(crate) first_revision: Option<u64>,
    /// Backup of the cluster that a new one replaces. The new cluster does not start at or below the backup's revision. Requires
    /// --peers
    #[arg(long, env = "RINGFENCE_RESTORE", value_name = "FILE")]
    pub(crate) restore: Option<PathBuf>,
    /// Take a snapshot, and truncate the log, after this many bytes of log [default: 33554432, 32 MiB]
    #[arg(long, env = "RINGFENCE_SNAPSHOT_AFTER_BYTES", value_name = "N")]
    pub(crate) snapshot_after_bytes: Option<u64>,
    /// Refuse new leases when all of the cluster's take about this many bytes of memory on each node. The limit of the node
    /// that leads counts [default: 1 GiB, or a quarter of the memory if that is less]
    #[arg(long, env = "RINGFENCE_MAX_LEASE_BYTES", value_name = "N")]
    pub(crate) max_lease_bytes: Option<u64>,
    /// Log requests that take at least this long, not counting the wait that they ask for [default: 1s]
    #[arg(long, env = "RINGFENCE_SLOW_REQUEST", value_name = "TIME")]
    #[serde(deserialize_with = "time")]
    pub(crate) slow_request: Option<humantime::Duration>,
    /// Host names that requests may use, besides IP addresses, localhost and the hosts of the members: NAME,… [default: none
    /// for browsers, all for other programs]
    #[arg(long, env = "RINGFENCE_HOSTS", value_name = "LIST")]
    pub(crate) hosts: Option<String>,
    /// TOML file of the access rules: who may do what [default: everybody may do everything]
    #[arg(long, env = "RINGFENCE_ACCESS", value_name = "FILE")]
    pub(crate) access: Option<PathBuf>,
    /// Allow addresses that other machines can reach without TLS and --access for --http and --resp, or without TLS for --peer. Anybody
    /// who can reach the port then has full control
    #[arg(long, env = "RINGFENCE_INSECURE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) insecure: Option<bool>,
    /// Maximum number of client connections [default: what the limit of file descriptors and an eighth of the memory allow, at most 16384]
    #[arg(long, env = "RINGFENCE_MAX_CONNECTIONS", value_name = "N")]
    pub(crate) max_connections: Option<usize>,
    /// Number of threads that serve clients [default: the number of cores minus one, at most 8]
    #[arg(long, env = "RINGFENCE_HTTP_THREADS", value_name = "N")]
    pub(crate) http_threads: Option<usize>,
    #[command(flatten)]
    pub(crate) tls: TlsOptions,
    #[command(flatten)]
    pub(crate) peer_tls: PeerTlsOptions,
    /// Redis to publish fences to: redis://HOST:PORT, redis+cluster://HOST:PORT,… or redis+sentinel://HOST:PORT,…/NAME. For
    /// TLS, use rediss instead of redis. USER:PASSWORD@ goes before the hosts
    #[arg(long, env = "RINGFENCE_REDIS", value_name = "URL", hide_env_values = true)]
    pub(crate) redis: Option<String>,
    #[command(flatten)]
    pub(crate) mirror: MirrorOptions,
    /// Log filter: a level (error, warn, info, debug, trace, off), or target=level,… [default: info,openraft=error]
    #[arg(long, env = "RINGFENCE_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Log format [default: text]
    #[arg(long, env = "RINGFENCE_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// URLs of the nodes, for commands that call the cluster.
    #[arg(skip)]
    pub(crate) urls: Vec<String>,
}

/// The table `tls` of the file.
#[derive(Debug, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct TlsOptions {
    /// PEM file of this node's certificate for clients. Encrypts the connections of clients
    #[arg(id = "tls-certificate", long, env = "RINGFENCE_TLS_CERTIFICATE", value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
    /// PEM file of the private key of --tls-certificate
    #[arg(id = "tls-key", long, env = "RINGFENCE_TLS_KEY", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// PEM file of the authorities that sign the certificates of clients. Without --access, refuses clients without one
    /// [default: clients need no certificate]
    #[arg(id = "tls-client-authority", long, env = "RINGFENCE_TLS_CLIENT_AUTHORITY", value_name = "FILE")]
    pub(crate) client_authority: Option<PathBuf>,
    /// Whether connections of clients may be plain, while they change to encryption [default: refuse]
    #[arg(id = "plain", long, env = "RINGFENCE_PLAIN", value_name = "ANSWER")]
    pub(crate) plain: Option<Plain>,
}

/// The table `peer-tls` of the file.
#[derive(Debug, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct PeerTlsOptions {
    /// PEM file of this node's certificate for other nodes: for the URI ringfence:node:ID, or for the host of its peer
    /// address. Encrypts the connections between nodes
    #[arg(id = "peer-certificate", long, env = "RINGFENCE_PEER_CERTIFICATE", value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
    /// PEM file of the private key of --peer-certificate
    #[arg(id = "peer-key", long, env = "RINGFENCE_PEER_KEY", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// PEM file of the authorities that sign the certificates of nodes, and nothing else
    #[arg(id = "peer-authority", long, env = "RINGFENCE_PEER_AUTHORITY", value_name = "FILE")]
    pub(crate) authority: Option<PathBuf>,
    /// Whether connections between nodes may be plain, while a cluster changes to encryption. If so, they are also opened to
    /// nodes that refuse TLS [default: refuse]
    #[arg(id = "peer-plain", long, env = "RINGFENCE_PEER_PLAIN", value_name = "ANSWER")]
    pub(crate) plain: Option<Plain>,
}

/// What to do with connections without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Plain {
    /// Refuse them
    Refuse,
    /// Accept them
    Accept,
}

/// The table `mirror` of the file.
#[derive(Debug, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct MirrorOptions {
    /// When to respond to an acquire that is granted [default: async]
    #[arg(long = "mirror-mode", env = "RINGFENCE_MIRROR_MODE", value_name = "MODE")]
    pub(crate) mode: Option<MirrorMode>,
    /// Longest wait for Redis in the mode before-answer [default: 1s]
    #[arg(long = "mirror-timeout", env = "RINGFENCE_MIRROR_TIMEOUT", value_name = "TIME")]
    #[serde(deserialize_with = "time")]
    pub(crate) timeout: Option<humantime::Duration>,
    /// Prefix of all keys in Redis [default: ringfence]
    #[arg(long = "mirror-prefix", env = "RINGFENCE_MIRROR_PREFIX", value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// How long a key stays in Redis after it becomes free [default: 24h]
    #[arg(long = "mirror-retention", env = "RINGFENCE_MIRROR_RETENTION", value_name = "TIME")]
    #[serde(deserialize_with = "time")]
    pub(crate) retention: Option<humantime::Duration>,
    /// Keys per second to compare with Redis in the background, to repair writes of others; 0 turns this off
    /// [default: 2000]
    #[arg(long = "mirror-sweep-keys-per-s", env = "RINGFENCE_MIRROR_SWEEP_KEYS_PER_S", value_name = "N")]
    pub(crate) sweep_keys_per_s: Option<u32>,
    /// PEM file of certificate authorities for Redis, instead of the system's
    #[arg(long = "mirror-tls-ca", env = "RINGFENCE_MIRROR_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Id of another cluster that publishes to this Redis: take over from it at once, even if it still runs. By default,
    /// take over when it has not written for 16 s
    #[arg(long = "mirror-take-over", env = "RINGFENCE_MIRROR_TAKE_OVER", value_name = "UUID")]
    pub(crate) take_over: Option<Uuid>,
}

/// When an acquire that is granted gets its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MirrorMode {
    /// Without waiting for Redis
    Async,
    /// Once the fence is in Redis, at most --mirror-timeout later, and without waiting while Redis is known to fail
    BeforeAnswer,
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<humantime::Duration>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
}

/// Reads the file at `path`, if one was named. It looks for no other: its author could choose the servers that grant, or open a
/// port.
pub(crate) fn file(path: Option<&Path>) -> anyhow::Result<Options> {
    let Some(path) = path else { return Ok(Options::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    // The error must not quote the line, which may hold a password.
    let invalid = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        anyhow!("{} is not valid: line {line}: {}", path.display(), error.message())
    };
    let options = toml::from_str(&text).map_err(invalid)?;
    if let Some(name) = empty(&toml::from_str(&text).map_err(invalid)?) {
        bail!("{} is not valid: `{name}` is empty: give it a value, or leave it out", path.display());
    }
    Ok(options)
}

/// Whether the URL of Redis, with a password, is among the command's arguments, which everybody on the machine sees.
pub(crate) fn shows_password(matches: &ArgMatches) -> bool {
    let is_argument = matches.ids().any(|id| id == "redis")
        && matches.value_source("redis") == Some(ValueSource::CommandLine);
    let url = is_argument.then(|| matches.get_one::<String>("redis")).flatten();
    url.is_some_and(|url| url.contains('@') || url.contains("sentinel-password="))
}

/// The name of a value that is set and empty: that of a variable which is not set, probably.
fn empty(table: &Table) -> Option<String> {
    table.iter().find_map(|(name, value)| match value {
        Value::String(text) => text.trim().is_empty().then(|| name.clone()),
        Value::Table(table) => empty(table).map(|inner| format!("{name}.{inner}")),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_the_file_that_is_set_and_empty_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ringfence.toml");
        for (text, name) in [
            ("data = ''", "`data`"),
            ("peers = ' '", "`peers`"),
            ("data = 'd'\naccess = ''", "`access`"),
            ("[tls]\nkey = ''", "`tls.key`"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = file(Some(&path)).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("is empty"), "{text}: {error}");
        }
        std::fs::write(&path, "data = 'd'\n[tls]\nkey = 'k'").unwrap();
        assert!(file(Some(&path)).is_ok());
    }
}
