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
    /// With `--insecure`: whether `http` and `peer` are safe without it.
    pub(crate) insecure: Option<[bool; 2]>,
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
        let is_safe = [
            is_of_this_machine(http) || tls.is_some() && options.access.is_some(),
            is_of_this_machine(peer) || peer_tls.as_ref().is_some_and(|tls| !tls.plain),
        ];
        if options.insecure != Some(true) {
            ensure!(
                is_safe[0],
                "anybody who can reach --http {http} could do everything: use --tls-certificate and --access, or --insecure if \
                 the network keeps others out"
            );
            ensure!(
                is_safe[1],
                "anybody who can reach --peer {peer} could act as a node: use --peer-certificate without --peer-plain, or \
                 --insecure if the network keeps others out"
            );
        }
        let restored = options.restore.map(|path| Ok::<_, anyhow::Error>((backup::read(&path)?, path)));
        let advertise_http = options.advertise_http.map(|url| url.trim_end_matches('/').to_owned());
        Ok(Self {
            id,
            data,
            http,
            peer,
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
            insecure: (options.insecure == Some(true)).then_some(is_safe),
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
mod tests {
    use clap::{Args, FromArgMatches};

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
    fn an_invalid_list_of_peers_is_named() {
        let peers = |list: &str| Options { peers: Some(list.to_owned()), ..options() };
        assert_eq!(Config::from_options(peers("1=a:1, 2=b:2")).unwrap().peers.len(), 2);
        assert!(error(peers("1=a:1")).contains("does not list this node"));
        let peer = "10.0.0.2:7500".parse().ok();
        let joining = Options { join: Some(true), peer, insecure: Some(true), ..peers("1=a:1") };
        assert!(Config::from_options(joining).is_ok());
        assert!(error(peers("2=b:2,2=c:3")).contains("twice"));
        for empty in ["", " ", ",", " , "] {
            assert!(error(peers(empty)).contains("--peers is empty"), "{empty:?}");
            assert!(error(Options { join: Some(true), ..peers(empty) }).contains("--peers is empty"));
            let hosts = Some(empty.to_owned());
            assert!(error(Options { hosts, ..options() }).contains("--hosts is empty"), "{empty:?}");
        }
        for wrong in ["2", "b:2", "2=b", "2=:1", "2=b:99999", "2=0.0.0.0:1", "x=b:1", "0=b:1"] {
            assert!(error(peers(wrong)).contains(wrong), "{wrong}");
        }
    }

    /// The membership would record an address that no other node can use.
    #[test]
    fn an_address_that_other_nodes_cannot_reach_is_refused() {
        let peers = |list: &str| Options { peers: Some(list.to_owned()), ..options() };
        assert!(Config::from_options(peers("1=db1:1,2=db2:1")).is_ok());
        assert!(Config::from_options(peers("1=127.0.0.1:1,2=localhost:1")).is_ok());
        assert!(error(peers("1=db1:1,2=127.0.0.1:1")).contains("--peers mixes"));
        let advertised = Some("[::]:1".to_owned());
        assert!(error(Options { advertise_peer: advertised, ..options() }).contains("--advertise-peer"));
    }

    /// The others would be a second cluster, above the same backup.
    #[test]
    fn a_replacement_is_not_founded_by_a_node_alone_by_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup.json");
        let cluster = "5c0f3c60-4f0e-4d0b-9a53-0f8f0c1b7e55";
        let text = format!(r#"{{"format":1,"cluster_id":"{cluster}","first_revision":5,"revision":7}}"#);
        std::fs::write(&path, text).unwrap();
        let restoring = || Options { restore: Some(path.clone()), ..options() };
        assert!(error(restoring()).contains("--restore requires --peers"));
        assert!(Config::from_options(Options { peers: Some("2=b:2".to_owned()), ..restoring() }).is_ok());
    }

    #[test]
    fn an_unspecified_address_is_advertised_as_the_peer_host() {
        let config = Config::from_options(Options { peers: Some("2=db2:7500".into()), ..options() }).unwrap();
        assert_eq!(config.url("0.0.0.0:7400".parse().unwrap()), "http://db2:7400");
    }

    #[test]
    fn flags_take_precedence_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.toml");
        let merged = |text: &str| -> anyhow::Result<Options> {
            std::fs::write(&path, text)?;
            let flags = Options::augment_args(clap::Command::new("serve"));
            let mut options = options::file(Some(&path))?;
            options.update_from_arg_matches(&flags.get_matches_from(["serve", "--id=2", "--data=d"]))?;
            Ok(options)
        };
        let read = merged("id = 7\nhttp = \"127.0.0.1:1\"\nlog-format = \"json\"\n").unwrap();
        assert_eq!((read.id, read.http.map(|http| http.port())), (Some(2), Some(1)));
        let read = merged(
            "redis = \"redis://db\"\n[mirror]\nmode = \"before-answer\"\ntimeout = \"250ms\"\n\
             take-over = \"00000000-0000-4000-8000-000000000001\"\n",
        );
        let mirror = Config::from_options(read.unwrap()).unwrap().mirror.unwrap();
        assert_eq!((mirror.url.as_str(), mirror.timeout), ("redis://db", Duration::from_millis(250)));
        assert_eq!(mirror.mode, ringfence_mirror::MirrorMode::BeforeAnswer);
        assert_eq!(mirror.take_over.map(|id| id.as_u128() & 0xff), Some(1));
        assert!(format!("{:#}", merged("idd = 7\n").unwrap_err()).contains("idd"));
        let refused = format!("{:#}", merged("id = 7\nredis = redis://:secret@db\n").unwrap_err());
        assert!(refused.contains("line 2") && !refused.contains("secret"), "{refused}");
    }

    #[test]
    fn other_machines_reach_no_port_that_anybody_may_use() {
        let listening = |http: &str, peer: &str| Options {
            http: Some(http.parse().unwrap()),
            peer: Some(peer.parse().unwrap()),
            ..options()
        };
        let access = Some("access.toml".into());
        let file = |name: &str| Some(PathBuf::from(name));
        let tls = || TlsOptions { certificate: file("c"), key: file("k"), ..TlsOptions::default() };
        let peer_tls =
            |plain| PeerTlsOptions { certificate: file("c"), key: file("k"), authority: file("a"), plain };
        for local in ["127.0.0.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(Config::from_options(listening(local, local)).is_ok(), "{local}");
        }
        for remote in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[fe80::1]:1"] {
            let (http, peer) = (|| listening(remote, "127.0.0.1:2"), || listening("127.0.0.1:1", remote));
            assert!(error(http()).contains("--http"), "{remote}");
            assert!(error(Options { tls: tls(), ..http() }).contains("--http"), "{remote}");
            assert!(error(Options { access: access.clone(), ..http() }).contains("--http"), "{remote}");
            assert!(Config::from_options(Options { tls: tls(), access: access.clone(), ..http() }).is_ok());
            assert!(error(peer()).contains("--peer"), "{remote}");
            let changing = Options { peer_tls: peer_tls(Some(Plain::Accept)), ..peer() };
            assert!(error(changing).contains("--peer-plain"), "{remote}");
            assert!(Config::from_options(Options { peer_tls: peer_tls(None), ..peer() }).is_ok());
            let insecure =
                Config::from_options(Options { insecure: Some(true), ..listening(remote, remote) });
            assert_eq!(insecure.unwrap().insecure, Some([false, false]));
        }
    }

    #[test]
    fn invalid_settings_are_named() {
        let mirror = MirrorOptions { prefix: Some("p".to_owned()), ..MirrorOptions::default() };
        assert!(error(Options { mirror, ..options() }).contains("--redis"));
        assert!(error(Options { first_revision: Some(0), ..options() }).contains("--first-revision"));
        for threads in [0, 65] {
            assert!(error(Options { http_threads: Some(threads), ..options() }).contains("--http-threads"));
        }
    }
}
