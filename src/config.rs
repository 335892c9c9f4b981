//! What a node is told, from flags, variables, file and defaults.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use ringfence_mirror::Settings;
use ringfence_raft::SNAPSHOT_AFTER_BYTES;
use ringfence_wire::Backup;

use crate::backup;
use crate::cli::serve::{MirrorMode, MirrorOptions, Options};

/// Revisions stay below this, so that every JSON reader keeps them exact.
const MAX_REVISION: u64 = 1 << 53;

/// How many threads serve connections at most: unless more are asked for, and ever.
const DOOR_THREADS: usize = 8;
const MAX_DOOR_THREADS: usize = 64;

/// How long a request takes that is logged for it.
const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// A checked configuration of a node.
#[derive(Debug)]
pub(crate) struct Config {
    /// The node's id.
    pub(crate) id: u64,
    /// The data directory.
    pub(crate) data: PathBuf,
    /// Where clients connect.
    pub(crate) http: SocketAddr,
    /// Where peers connect.
    pub(crate) peer: SocketAddr,
    /// The peer addresses of all members, this one included.
    pub(crate) peers: BTreeMap<u64, String>,
    /// Whether it waits to be added to a cluster.
    pub(crate) join: bool,
    /// The node's HTTP URL, if it is not to be made from `http`.
    pub(crate) advertise_http: Option<String>,
    /// What a new cluster counts from.
    pub(crate) first_revision: Option<u64>,
    /// What a new cluster takes the place of, and the file that says so.
    pub(crate) restored: Option<(Backup, PathBuf)>,
    /// After how much log a snapshot is taken.
    pub(crate) snapshot_after_bytes: u64,
    /// How long a request takes that is logged for it.
    pub(crate) slow_request: Duration,
    /// The host names that requests may name, besides addresses and the members' own; empty: any.
    pub(crate) hosts: Vec<String>,
    /// How many connections of clients there may be, if not as many as there is room for.
    pub(crate) max_connections: Option<usize>,
    /// How many threads serve connections of clients.
    pub(crate) door_threads: usize,
    /// The mirror, if there is to be one.
    pub(crate) mirror: Option<Settings>,
}

/// What the file says: the one at `path`, or `./ringfence.toml` if there is one.
pub(crate) fn file(path: Option<&Path>) -> anyhow::Result<Options> {
    let default = Path::new("ringfence.toml");
    let path = match path {
        Some(path) => path,
        None if default.exists() => default,
        None => return Ok(Options::default()),
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    // Without the line itself, in which a password may stand.
    toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        anyhow!("{} is not valid: line {line}: {}", path.display(), error.message())
    })
}

/// `options`, and where they say nothing, what the [file] says.
pub(crate) fn with_file(options: Options, path: Option<&Path>) -> anyhow::Result<Options> {
    let file = file(path)?;
    Ok(Options {
        id: options.id.or(file.id),
        data: options.data.or(file.data),
        http: options.http.or(file.http),
        peer: options.peer.or(file.peer),
        peers: options.peers.or(file.peers),
        join: options.join.or(file.join),
        advertise_http: options.advertise_http.or(file.advertise_http),
        advertise_peer: options.advertise_peer.or(file.advertise_peer),
        first_revision: options.first_revision.or(file.first_revision),
        restore: options.restore.or(file.restore),
        snapshot_after_bytes: options.snapshot_after_bytes.or(file.snapshot_after_bytes),
        slow_request: options.slow_request.or(file.slow_request),
        hosts: options.hosts.or(file.hosts),
        max_connections: options.max_connections.or(file.max_connections),
        door_threads: options.door_threads.or(file.door_threads),
        redis: options.redis.or(file.redis),
        mirror: MirrorOptions {
            mode: options.mirror.mode.or(file.mirror.mode),
            timeout: options.mirror.timeout.or(file.mirror.timeout),
            prefix: options.mirror.prefix.or(file.mirror.prefix),
            retention: options.mirror.retention.or(file.mirror.retention),
            sweep_keys_per_s: options.mirror.sweep_keys_per_s.or(file.mirror.sweep_keys_per_s),
            tls_ca: options.mirror.tls_ca.or(file.mirror.tls_ca),
            take_over: options.mirror.take_over.or(file.mirror.take_over),
        },
        log: options.log.or(file.log),
        log_format: options.log_format.or(file.log_format),
        urls: file.urls,
    })
}

impl Config {
    /// Checks `options`, and fills in the defaults.
    pub(crate) fn from_options(options: Options) -> anyhow::Result<Self> {
        let id = options.id.context("--id is missing: give each node its own number, from 1")?;
        ensure!(id > 0, "--id is at least 1");
        let data = options.data.context("--data is missing: give the node a directory of its own")?;
        let http = options.http.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 7400).into());
        let peer = options.peer.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 7500).into());
        let mut peers = parse_peers(options.peers.as_deref().unwrap_or_default())?;
        if !peers.is_empty() && !peers.contains_key(&id) {
            bail!("--peers does not list this node, {id}: it names all members");
        }
        if let Some(address) = options.advertise_peer {
            check_address(&address).context("--advertise-peer")?;
            peers.insert(id, address);
        }
        peers.entry(id).or_insert_with(|| peer.to_string());
        if let Some(url) = &options.advertise_http {
            ensure!(
                url.starts_with("http://") || url.starts_with("https://"),
                "--advertise-http is a URL, as http://db1.example:7400"
            );
        }
        if let Some(revision) = options.first_revision {
            ensure!((1..MAX_REVISION).contains(&revision), "--first-revision is at least 1, and below 2^53");
        }
        let restored = options.restore.map(|path| Ok::<_, anyhow::Error>((backup::read(&path)?, path)));
        let advertise_http = options.advertise_http.map(|url| url.trim_end_matches('/').to_owned());
        Ok(Self {
            id,
            data,
            http,
            peer,
            peers,
            join: options.join.unwrap_or(false),
            advertise_http,
            first_revision: options.first_revision,
            restored: restored.transpose().context("--restore")?,
            snapshot_after_bytes: options.snapshot_after_bytes.unwrap_or(SNAPSHOT_AFTER_BYTES),
            slow_request: options.slow_request.map_or(SLOW_REQUEST, Into::into),
            hosts: hosts(options.hosts.as_deref().unwrap_or_default())?,
            max_connections: options.max_connections,
            door_threads: door_threads(options.door_threads)?,
            mirror: mirror(options.redis, options.mirror)?,
        })
    }

    /// The node's URL, given the port that its HTTP listener got. A listener on all addresses is told as the host by
    /// which the peers know the node.
    pub(crate) fn url(&self, bound: SocketAddr) -> String {
        if let Some(url) = &self.advertise_http {
            return url.clone();
        }
        if !bound.ip().is_unspecified() {
            return format!("http://{bound}");
        }
        let host = self.peers[&self.id].rsplit_once(':').map_or("localhost", |(host, _)| host);
        format!("http://{host}:{}", bound.port())
    }
}

fn mirror(redis: Option<String>, options: MirrorOptions) -> anyhow::Result<Option<Settings>> {
    let Some(url) = redis else {
        ensure!(options == MirrorOptions::default(), "there is no mirror without --redis, which is missing");
        return Ok(None);
    };
    let default = Settings::new(url);
    Ok(Some(Settings {
        mode: match options.mode {
            Some(MirrorMode::BeforeAnswer) => ringfence_mirror::MirrorMode::BeforeAnswer,
            Some(MirrorMode::Async) | None => ringfence_mirror::MirrorMode::Async,
        },
        timeout: options.timeout.map_or(default.timeout, Into::into),
        prefix: options.prefix.unwrap_or_else(|| default.prefix.clone()),
        retention: options.retention.map_or(default.retention, Into::into),
        sweep_keys_per_s: options.sweep_keys_per_s.unwrap_or(default.sweep_keys_per_s),
        tls_ca: options.tls_ca,
        take_over: options.take_over,
        ..default
    }))
}

fn parse_peers(list: &str) -> anyhow::Result<BTreeMap<u64, String>> {
    let mut peers = BTreeMap::new();
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let wrong = || format!("--peers: `{item}` is not of the form ID=HOST:PORT");
        let (id, address) = item.split_once('=').with_context(wrong)?;
        let id: u64 = id.parse().with_context(wrong)?;
        ensure!(id > 0, "--peers: `{item}`: ids are at least 1");
        check_address(address).with_context(wrong)?;
        ensure!(peers.insert(id, address.to_owned()).is_none(), "--peers lists node {id} twice");
    }
    Ok(peers)
}

fn door_threads(asked: Option<usize>) -> anyhow::Result<usize> {
    match asked {
        Some(asked) => {
            ensure!(
                (1..=MAX_DOOR_THREADS).contains(&asked),
                "--door-threads is from 1 to {MAX_DOOR_THREADS}"
            );
            Ok(asked)
        }
        // One core is for Raft: with two, one thread answers more requests than two that take its time.
        None => Ok(std::thread::available_parallelism().map_or(1, |n| n.get() - 1).clamp(1, DOOR_THREADS)),
    }
}

fn hosts(list: &str) -> anyhow::Result<Vec<String>> {
    let hosts: Vec<_> = list.split(',').map(str::trim).filter(|host| !host.is_empty()).collect();
    for host in &hosts {
        ensure!(
            !host.contains(['/', ':']),
            "--hosts: `{host}` is not a name: give it without scheme and port"
        );
    }
    Ok(hosts.into_iter().map(str::to_owned).collect())
}

fn check_address(address: &str) -> anyhow::Result<()> {
    let (host, port) = address.rsplit_once(':').context("it has no port")?;
    ensure!(!host.is_empty(), "it has no host");
    port.parse::<u16>().with_context(|| format!("`{port}` is no port"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { id: Some(2), data: Some("d".into()), ..Options::default() }
    }

    fn error(options: Options) -> String {
        format!("{:#}", Config::from_options(options).unwrap_err())
    }

    #[test]
    fn a_lone_node_needs_an_id_and_a_directory() {
        let config = Config::from_options(options()).unwrap();
        assert_eq!(config.peers, BTreeMap::from([(2, "127.0.0.1:7500".to_owned())]));
        assert_eq!(config.url("127.0.0.1:9".parse().unwrap()), "http://127.0.0.1:9");
        assert!(error(Options { id: None, ..options() }).contains("--id"));
        assert!(error(Options { data: None, ..options() }).contains("--data"));
    }

    #[test]
    fn a_wrong_list_of_peers_is_named() {
        let peers = |list: &str| Options { peers: Some(list.to_owned()), ..options() };
        assert_eq!(Config::from_options(peers("1=a:1, 2=b:2")).unwrap().peers.len(), 2);
        assert!(error(peers("1=a:1")).contains("does not list this node"));
        assert!(error(peers("2=b:2,2=c:3")).contains("twice"));
        for wrong in ["2", "b:2", "2=b", "2=:1", "2=b:99999", "x=b:1", "0=b:1"] {
            assert!(error(peers(wrong)).contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_listener_on_all_addresses_is_told_by_the_name_that_peers_use() {
        let config = Config::from_options(Options { peers: Some("2=db2:7500".into()), ..options() }).unwrap();
        assert_eq!(config.url("0.0.0.0:7400".parse().unwrap()), "http://db2:7400");
    }

    #[test]
    fn flags_go_before_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.toml");
        std::fs::write(&file, "id = 7\nhttp = \"127.0.0.1:1\"\nlog-format = \"json\"\n").unwrap();
        let merged = with_file(options(), Some(&file)).unwrap();
        assert_eq!((merged.id, merged.http.map(|http| http.port())), (Some(2), Some(1)));
        std::fs::write(
            &file,
            "redis = \"redis://db\"\n[mirror]\nmode = \"before-answer\"\ntimeout = \"250ms\"\n\
             take-over = \"00000000-0000-4000-8000-000000000001\"\n",
        )
        .unwrap();
        let merged = with_file(options(), Some(&file)).unwrap();
        let mirror = Config::from_options(merged).unwrap().mirror.unwrap();
        assert_eq!((mirror.url.as_str(), mirror.timeout), ("redis://db", Duration::from_millis(250)));
        assert_eq!(mirror.mode, ringfence_mirror::MirrorMode::BeforeAnswer);
        assert_eq!(mirror.take_over.map(|id| id.as_u128() & 0xff), Some(1));
        let mirror = MirrorOptions { prefix: Some("p".to_owned()), ..MirrorOptions::default() };
        assert!(error(Options { mirror, ..options() }).contains("--redis"));
        std::fs::write(&file, "idd = 7\n").unwrap();
        assert!(format!("{:#}", with_file(options(), Some(&file)).unwrap_err()).contains("idd"));
        std::fs::write(&file, "id = 7\nredis = redis://:secret@db\n").unwrap();
        let refused = format!("{:#}", with_file(options(), Some(&file)).unwrap_err());
        assert!(refused.contains("line 2") && !refused.contains("secret"), "{refused}");
        assert!(error(Options { first_revision: Some(0), ..options() }).contains("--first-revision"));
    }
}
