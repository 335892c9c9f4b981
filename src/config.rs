//! The checked configuration of a node.

pub(crate) mod options;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use ringfence_mirror::Settings;
use ringfence_raft::SNAPSHOT_AFTER_BYTES;
use ringfence_wire::{Backup, check_peer_address, is_loopback};

use self::options::{MirrorMode, MirrorOptions, Options, PeerTlsOptions, Plain, TlsOptions};
use crate::{backup, memory};

/// JSON readers that use doubles are exact below 2^53. This leaves room for a cluster that replaces one that began here.
const MAX_FIRST_REVISION: u64 = (1 << 53) - (1 << 46);

/// The most HTTP threads by default, and the most that can be configured.
const HTTP_THREADS: usize = 8;
const MAX_HTTP_THREADS: usize = 64;

const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// The settings of a node, checked and with defaults applied.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) id: u64,
    pub(crate) data: PathBuf,
    pub(crate) http: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// `None`: the node does not speak the Redis protocol.
    pub(crate) resp: Option<SocketAddr>,
    /// The peer addresses of all members, this node included.
    pub(crate) peers: BTreeMap<u64, String>,
    pub(crate) join: bool,
    /// Whether it is to be the only member only because no list names others.
    pub(crate) is_alone: bool,
    /// The node's URL, if it does not follow from `http`.
    pub(crate) advertise_http: Option<String>,
    pub(crate) first_revision: Option<u64>,
    /// The backup of the cluster that a new one replaces, and its file.
    pub(crate) restored: Option<(Backup, PathBuf)>,
    pub(crate) snapshot_after_bytes: u64,
    pub(crate) max_lease_bytes: u64,
    pub(crate) slow_request: Duration,
    /// Host names that requests may use, besides addresses and the members' own. Empty: any.
    pub(crate) hosts: Vec<String>,
    /// `None`: as many as file descriptors allow.
    pub(crate) max_connections: Option<usize>,
    pub(crate) http_threads: usize,
    pub(crate) mirror: Option<Settings>,
    /// `None`: connections of clients are plain.
    pub(crate) tls: Option<Tls>,
    /// The file of the access rules. `None`: everybody may do everything.
    pub(crate) access: Option<PathBuf>,
    /// `None`: connections between nodes are plain.
    pub(crate) peer_tls: Option<PeerTls>,
    /// With `--insecure`: the ports that are not safe without it.
    pub(crate) insecure: Option<Vec<&'static str>>,
}

/// The files for TLS with clients.
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// `None`: clients need no certificate.
    pub(crate) client_authority: Option<PathBuf>,
    /// Whether plain connections are allowed, too.
    pub(crate) plain: bool,
}

/// The files for TLS between nodes.
#[derive(Debug)]
pub(crate) struct PeerTls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) authority: PathBuf,
    /// Whether plain connections are allowed, too.
    pub(crate) plain: bool,
}

impl Config {
    /// Checks `options` and applies the defaults.
    pub(crate) fn from_options(options: Options) -> anyhow::Result<Self> {
        let id = options.id.context("--id is missing: every node needs a number of its own, from 1")?;
        ensure!(id > 0, "--id must be at least 1");
        let data = options.data.context("--data is missing: every node needs a directory of its own")?;
        let http = options.http.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 7400).into());
        let peer = options.peer.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 7500).into());
        let join = options.join.unwrap_or(false);
        let is_alone = !join && options.peers.is_none();
        let mut peers = options.peers.as_deref().map(parse_peers).transpose()?.unwrap_or_default();
        // One that joins needs no list, and may have that of the founders.
        if !join && !peers.is_empty() && !peers.contains_key(&id) {
            bail!("--peers does not list this node, {id}: it must list all members");
        }
        // Without a list, this node would found a second cluster, of its own.
        if is_alone && options.restore.is_some() {
            bail!(
                "--restore requires --peers: list all members of the new cluster, even if this node is the only one"
            );
        }
        if let Some(address) = options.advertise_peer {
            check_peer_address(&address).map_err(|reason| anyhow!("--advertise-peer: {address} {reason}"))?;
            peers.insert(id, address);
        }
        peers.entry(id).or_insert_with(|| peer.to_string());
        let loopback = peers.values().filter(|address| is_loopback(address)).count();
        ensure!(
            loopback == 0 || loopback == peers.len(),
            "--peers mixes loopback addresses, which are reached from one machine only, and others. If tunnels connect the \
             nodes, list loopback addresses only, also for this node"
        );
        let tls = tls(options.tls, options.access.is_some())?;
        if let Some(url) = &options.advertise_http {
            ensure!(
                url.starts_with("https://") || tls.as_ref().is_none_or(|tls| tls.plain),
                "--advertise-http must begin with https://, as --tls-certificate is given, and --plain is not accept"
            );
            ensure!(
                url.starts_with("http://") || url.starts_with("https://"),
                "--advertise-http must be a URL, such as http://db1.example:7400"
            );
        }
        if let Some(revision) = options.first_revision {
            ensure!(
                (1..=MAX_FIRST_REVISION).contains(&revision),
                "--first-revision must be from 1 to {MAX_FIRST_REVISION}, 2^53 - 2^46"
            );
        }
        let peer_tls = peer_tls(options.peer_tls)?;
        let is_restricted = tls.is_some() && options.access.is_some();
        let of_clients = [("--http", Some(http)), ("--resp", options.resp)];
        let of_clients = of_clients.into_iter().filter_map(|(flag, address)| Some((flag, address?)));
        let open: Vec<_> =
            of_clients.filter(|(_, address)| !is_restricted && !is_of_this_machine(*address)).collect();
        let is_peer_safe = is_of_this_machine(peer) || peer_tls.as_ref().is_some_and(|tls| !tls.plain);
        if options.insecure != Some(true) {
            if let Some((flag, address)) = open.first() {
                bail!(
                    "anybody who can reach {flag} {address} could do everything: use --tls-certificate and --access, or \
                     --insecure if the network keeps others out"
                );
            }
            ensure!(
                is_peer_safe,
                "anybody who can reach --peer {peer} could act as a node: use --peer-certificate without --peer-plain, or \
                 --insecure if the network keeps others out"
            );
        }
        let unsafe_ports = open.into_iter().map(|(flag, _)| flag).chain((!is_peer_safe).then_some("--peer"));
        let restored = options.restore.map(|path| Ok::<_, anyhow::Error>((backup::read(&path)?, path)));
        let advertise_http = options.advertise_http.map(|url| url.trim_end_matches('/').to_owned());
        Ok(Self {
            id,
            data,
            http,
            peer,
            resp: options.resp,
            peers,
            join,
            is_alone,
            advertise_http,
            first_revision: options.first_revision,
            restored: restored.transpose().context("--restore")?,
            snapshot_after_bytes: options.snapshot_after_bytes.unwrap_or(SNAPSHOT_AFTER_BYTES),
            max_lease_bytes: options.max_lease_bytes.unwrap_or_else(memory::lease_bytes),
            slow_request: options.slow_request.map_or(SLOW_REQUEST, Into::into),
            hosts: options.hosts.as_deref().map(hosts).transpose()?.unwrap_or_default(),
            max_connections: options.max_connections,
            http_threads: http_threads(options.http_threads)?,
            mirror: mirror(options.redis, options.mirror)?,
            tls,
            access: options.access,
            peer_tls,
            insecure: (options.insecure == Some(true)).then(|| unsafe_ports.collect()),
        })
    }

    /// The node's URL, given the address its HTTP listener is bound to. If that is unspecified (0.0.0.0), the host is the
    /// one in the node's peer address. All clients can use a URL for plain connections as long as they are allowed.
    pub(crate) fn url(&self, bound: SocketAddr) -> String {
        if let Some(url) = &self.advertise_http {
            return url.clone();
        }
        let scheme = if self.tls.as_ref().is_some_and(|tls| !tls.plain) { "https" } else { "http" };
        if !bound.ip().is_unspecified() {
            return format!("{scheme}://{bound}");
        }
        let host = self.peers[&self.id].rsplit_once(':').map_or("localhost", |(host, _)| host);
        format!("{scheme}://{host}:{}", bound.port())
    }
}

/// Whether no other machine can reach `address`.
fn is_of_this_machine(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn tls(options: TlsOptions, has_rules: bool) -> anyhow::Result<Option<Tls>> {
    let TlsOptions { certificate, key, client_authority, plain } = options;
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let plain = plain == Some(Plain::Accept);
            ensure!(
                !plain || has_rules || client_authority.is_none(),
                "--plain accept lets in clients without certificates, which --tls-client-authority refuses without --access"
            );
            Ok(Some(Tls { certificate, key, client_authority, plain }))
        }
        (None, None) => {
            ensure!(client_authority.is_none(), "--tls-client-authority requires --tls-certificate");
            ensure!(plain != Some(Plain::Refuse), "--plain refuse requires --tls-certificate");
            Ok(None)
        }
        _ => bail!("--tls-certificate and --tls-key require each other"),
    }
}

fn peer_tls(options: PeerTlsOptions) -> anyhow::Result<Option<PeerTls>> {
    let PeerTlsOptions { certificate, key, authority, plain } = options;
    match (certificate, key, authority) {
        (Some(certificate), Some(key), Some(authority)) => {
            Ok(Some(PeerTls { certificate, key, authority, plain: plain == Some(Plain::Accept) }))
        }
        (None, None, None) => {
            ensure!(plain != Some(Plain::Refuse), "--peer-plain refuse requires --peer-certificate");
            Ok(None)
        }
        _ => bail!("--peer-certificate, --peer-key and --peer-authority require each other"),
    }
}

fn mirror(redis: Option<String>, options: MirrorOptions) -> anyhow::Result<Option<Settings>> {
    let Some(url) = redis else {
        ensure!(options == MirrorOptions::default(), "mirror options require --redis, which is missing");
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
        let wrong = || format!("--peers: `{item}` is not ID=HOST:PORT");
        let (id, address) = item.split_once('=').with_context(wrong)?;
        let id: u64 = id.parse().with_context(wrong)?;
        ensure!(id > 0, "--peers: `{item}`: ids must be at least 1");
        check_peer_address(address).map_err(|reason| anyhow!("--peers: `{item}`: the address {reason}"))?;
        ensure!(peers.insert(id, address.to_owned()).is_none(), "--peers lists node {id} twice");
    }
    // One that was forgotten would let each node found a cluster of its own.
    ensure!(
        !peers.is_empty(),
        "--peers is empty: list all members, or leave it out if this node is the only one"
    );
    Ok(peers)
}

fn http_threads(configured: Option<usize>) -> anyhow::Result<usize> {
    // One core is for Raft: with two cores, one thread answers more requests than two that compete with it.
    let default =
        || std::thread::available_parallelism().map_or(1, |cores| cores.get() - 1).clamp(1, HTTP_THREADS);
    let threads = configured.unwrap_or_else(default);
    ensure!((1..=MAX_HTTP_THREADS).contains(&threads), "--http-threads must be from 1 to {MAX_HTTP_THREADS}");
    Ok(threads)
}

fn hosts(list: &str) -> anyhow::Result<Vec<String>> {
    let hosts: Vec<_> = list.split(',').map(str::trim).filter(|host| !host.is_empty()).collect();
    ensure!(!hosts.is_empty(), "--hosts is empty: list host names, or leave it out");
    for host in &hosts {
        ensure!(!host.contains(['/', ':']), "--hosts: `{host}` is not a host name: remove scheme and port");
    }
    Ok(hosts.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests;
