//! TLS between nodes: who forms a cluster, and who is refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd,
};
use ringfence_raft::{Node, NodeId, Settings, Tcp, Tls, Transport};
use ringfence_tls::{Look, Peer, Reload, Unrelated};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::copies::copy;
use crate::support::stranger::{self, Name, Stranger};
use crate::support::{SOON, grant, settings, until};

/// In this time each connection that is used tries more than once to be replaced.
const ATTEMPTS: Duration = Duration::from_secs(5);

/// Where certificates are, and whose authority signs them.
struct Issuer(CertifiedIssuer<'static, KeyPair>);

impl Issuer {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes what a node needs that shows this URI, or is at this host, and trusts `authority`.
    fn write(&self, dir: &Path, name: &SanType, authority: &Self, is_expired: bool) -> PathBuf {
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(name.clone());
        if is_expired {
            (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("node.pem"), certificate.pem()).unwrap();
        fs::write(dir.join("node.key"), key.serialize_pem()).unwrap();
        fs::write(dir.join("authority.pem"), authority.0.pem()).unwrap();
        dir.to_owned()
    }
}

fn of(id: NodeId) -> SanType {
    SanType::URI(format!("ringfence:node:{id}").try_into().unwrap())
}

fn at(host: &str) -> SanType {
    SanType::IpAddress(host.parse().unwrap())
}

fn load(dir: &Path) -> Arc<Peer> {
    let [certificate, key, authority] = ["node.pem", "node.key", "authority.pem"].map(|name| dir.join(name));
    Arc::new(Peer::load(certificate, key, authority, &Unrelated::default(), |_| true).unwrap())
}

/// How a node talks to others.
#[derive(Clone)]
enum Way {
    Plain,
    Both(Arc<Peer>),
    Tls(Arc<Peer>),
}

impl Way {
    fn transport(&self, listener: TcpListener) -> Arc<dyn Transport> {
        let (peer, plain) = match self {
            Self::Plain => return Arc::new(Tcp(listener)),
            Self::Both(peer) => (peer, true),
            Self::Tls(peer) => (peer, false),
        };
        Arc::new(Tls::new(listener, Arc::clone(peer), plain, Handle::current))
    }
}

struct Cluster {
    dir: TempDir,
    peers: BTreeMap<NodeId, String>,
    nodes: BTreeMap<NodeId, Node>,
}

impl Cluster {
    /// Nodes on this machine, each of which talks its own way.
    async fn start(ways: &[Way]) -> Self {
        let mut listeners = BTreeMap::new();
        for id in 1..=ways.len() as NodeId {
            listeners.insert(id, TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let address =
            |(id, listener): (&NodeId, &TcpListener)| (*id, listener.local_addr().unwrap().to_string());
        let peers = listeners.iter().map(address).collect();
        let mut cluster = Self { dir: TempDir::new().unwrap(), peers, nodes: BTreeMap::new() };
        let starts = listeners.into_iter().zip(ways).map(|((id, listener), way)| {
            let settings = cluster.settings(id, way.transport(listener));
            async move { (id, Node::start(settings).await.unwrap()) }
        });
        let starts = futures_util::future::join_all(starts);
        let nodes = timeout(SOON, starts).await.expect("the nodes find each other");
        cluster.nodes = nodes.into_iter().collect();
        cluster
    }

    fn settings(&self, id: NodeId, transport: Arc<dyn Transport>) -> Settings {
        let data = self.data(id);
        Settings { peers: self.peers.clone(), ..settings(id, data, transport, self.peers.len() as NodeId) }
    }

    fn data(&self, id: NodeId) -> PathBuf {
        self.dir.path().join(id.to_string())
    }

    /// Starts a node again, which then talks another way.
    async fn restart(&mut self, id: NodeId, way: &Way) {
        self.nodes.remove(&id).unwrap().stop().await;
        let listener = TcpListener::bind(&self.peers[&id]).await.unwrap();
        let settings = self.settings(id, way.transport(listener));
        self.nodes.insert(id, timeout(SOON, Node::start(settings)).await.unwrap().unwrap());
    }

    /// Each node grants a lease, or has the leader do it.
    async fn works(&self, round: u128) {
        for (id, node) in &self.nodes {
            let lease = round * 100 + u128::from(*id);
            let granted = grant_soon(node, lease);
            timeout(SOON, granted)
                .await
                .unwrap_or_else(|_| panic!("node {id} grants nothing in round {round}"));
        }
    }

    /// What the node 1 says to a caller by `way` that says it is `from`.
    async fn call(&self, way: &Way, from: NodeId) -> Option<Stranger> {
        let transport = way.transport(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let connection = transport.connect(&self.peers[&1]).await.ok()?;
        Stranger::call_over(connection, 1, stranger::VOTES, &Name::of(&self.data(from), from)).await
    }
}

async fn grant_soon(node: &Node, lease: u128) {
    grant(&node.handle(), lease, &format!("k{lease}")).await;
}

/// One more handshake once ended the oldest of all, which was that of a member over a slow link.
#[tokio::test]
async fn a_host_that_begins_many_handshakes_ends_only_its_own() {
    let dir = TempDir::new().unwrap();
    let nodes = Issuer::new("nodes");
    let transport = async |id: NodeId| {
        let peer = load(&nodes.write(&dir.path().join(id.to_string()), &of(id), &nodes, false));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Way::Tls(peer).transport(listener), address)
    };
    let ((server, address), (member, _)) = (transport(1).await, transport(2).await);
    let accepted = tokio::spawn(async move { server.accept().await.is_ok() });
    // Nothing of the member's handshake has arrived yet.
    let link = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow = link.local_addr().unwrap().to_string();
    let connected = tokio::spawn(async move { member.connect(&slow).await.is_ok() });
    let (mut from, _) = link.accept().await.unwrap();
    let mut to = TcpStream::connect(address).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..100 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        idle.push(socket.connect(address).await.unwrap());
    }
    let ended = timeout(SOON, idle[0].read(&mut [0])).await.expect("it ended for a later one");
    assert_eq!(ended.unwrap_or(0), 0);
    tokio::spawn(async move { copy_bidirectional(&mut from, &mut to).await });
    assert!(timeout(SOON, connected).await.unwrap().unwrap());
    assert!(timeout(SOON, accepted).await.unwrap().unwrap());
}

#[tokio::test]
async fn only_a_node_with_its_own_certificate_is_let_in() {
    let dir = TempDir::new().unwrap();
    let (nodes, others) = (Issuer::new("nodes"), Issuer::new("others"));
    let write = |name: &str, issuer: &Issuer, san: &SanType, is_expired| {
        load(&issuer.write(&dir.path().join(name), san, &nodes, is_expired))
    };
    let ways = [1, 2, 3].map(|id| Way::Tls(write(&id.to_string(), &nodes, &of(id), false)));
    let cluster = Cluster::start(&ways).await;
    cluster.works(1).await;

    assert!(cluster.call(&ways[1], 2).await.is_some(), "node 2 as itself");
    assert!(cluster.call(&ways[2], 2).await.is_none(), "node 3 as node 2");
    assert!(cluster.call(&Way::Plain, 2).await.is_none(), "without a certificate");
    for (name, issuer, san, is_expired) in [
        ("of another authority", &others, of(2), false),
        ("that has ended", &nodes, of(2), true),
        ("of another host", &nodes, at("127.0.0.2"), false),
        ("of another node", &nodes, of(22), false),
    ] {
        let way = Way::Tls(write(name, issuer, &san, is_expired));
        assert!(cluster.call(&way, 2).await.is_none(), "a certificate {name}");
    }
    let host = Way::Tls(write("of its host", &nodes, &at("127.0.0.1"), false));
    assert!(cluster.call(&host, 2).await.is_some(), "a certificate of the host of node 2");
    cluster.works(2).await;
}

#[tokio::test]
async fn a_caller_talks_to_no_node_but_the_one_it_means() {
    let dir = TempDir::new().unwrap();
    let nodes = Issuer::new("nodes");
    // Node 3 has the certificate of another: it reaches nobody, and nobody reaches it.
    let way = |id, shown| {
        Way::Tls(load(&nodes.write(&dir.path().join(format!("{id}")), &of(shown), &nodes, false)))
    };
    let cluster = Cluster::start(&[way(1, 1), way(2, 2)]).await;
    cluster.works(1).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let joins = Settings { join: true, ..cluster.settings(3, way(3, 2).transport(listener)) };
    let mut start = Box::pin(Node::start(Settings { peers: [(3, address.clone())].into(), ..joins }));
    let first = cluster.nodes[&1].handle();
    let added = async {
        tokio::select! {
            _ = &mut start => panic!("it belongs to a cluster"),
            added = first.add_member(3, address) => added,
        }
    };
    let error = timeout(SOON, added).await.unwrap().unwrap_err();
    assert!(format!("{error:?} {error}").contains("certificate"), "{error:?}");
}

/// Once, what such a copy said of itself was recorded as soon as the member was restarted, and the member was refused as a copy.
#[tokio::test]
async fn who_has_a_certificate_of_its_new_host_alone_is_recorded_there_if_an_operator_says_so() {
    let dir = TempDir::new().unwrap();
    let nodes = Issuer::new("nodes");
    let way = |name: &str, san| Way::Tls(load(&nodes.write(&dir.path().join(name), &san, &nodes, false)));
    let (old_host, new_host) = (way("3", at("127.0.0.1")), way("3, elsewhere", at("127.0.0.2")));
    let mut cluster = Cluster::start(&[way("1", of(1)), way("2", of(2)), old_host.clone()]).await;
    cluster.works(1).await;
    cluster.nodes.remove(&3).unwrap().stop().await;
    copy(&cluster.data(3), &cluster.data(33));
    let elsewhere = async |cluster: &Cluster, data: NodeId| {
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let settings = cluster.settings(3, new_host.transport(listener));
        let peers = settings.peers.iter().map(|(id, at)| (*id, at.clone())).chain([(3, address.clone())]);
        let settings = Settings { data: cluster.data(data), peers: peers.collect(), ..settings };
        (timeout(SOON, Node::start(settings)).await.unwrap().unwrap(), address)
    };
    let (copied, _) = elsewhere(&cluster, 33).await;
    // Far longer than a member is silent before the others believe that it has moved.
    let silent = |cluster: &Cluster, at: &NodeId| cluster.nodes[at].handle().status().members[&3].silent_ms;
    let is_away = |cluster: &Cluster| [1, 2].iter().all(|at| silent(cluster, at) > Some(15_000));
    until("the member is away", || is_away(&cluster)).await;
    let listener = TcpListener::bind(&cluster.peers[&3]).await.unwrap();
    let settings = cluster.settings(3, old_host.transport(listener));
    cluster.nodes.insert(3, timeout(SOON, Node::start(settings)).await.unwrap().unwrap());
    cluster.works(2).await;
    for node in cluster.nodes.values() {
        assert_eq!(node.handle().status().members[&3].peer, cluster.peers[&3]);
    }
    assert!(!copied.handle().is_ready().await);

    copied.stop().await;
    cluster.nodes.remove(&3).unwrap().stop().await;
    let (moved, address) = elsewhere(&cluster, 3).await;
    cluster.nodes[&1].handle().add_member(3, address).await.unwrap();
    cluster.nodes.insert(3, moved);
    cluster.works(3).await;
}

#[tokio::test]
async fn connections_of_an_authority_that_was_removed_end() {
    let dir = TempDir::new().unwrap();
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let at = |id: NodeId| dir.path().join(id.to_string());
    let peers = [1, 2].map(|id| load(&old.write(&at(id), &of(id), &old, false)));
    let ways = peers.each_ref().map(|peer| Way::Tls(Arc::clone(peer)));
    let cluster = Cluster::start(&ways).await;
    cluster.works(1).await;
    let stolen = Way::Tls(load(&old.write(&dir.path().join("stolen"), &of(2), &old, false)));
    let mut caller = cluster.call(&stolen, 2).await.unwrap();
    caller.ask(&stranger::confirm(0, 2, true), 1).await;
    assert_eq!(caller.answer().await.unwrap(), [stranger::CONFIRMED, 0]);

    // First all trust both, then all have a certificate of the new one, and then nobody trusts the old one.
    let look = || assert!(peers.iter().all(|peer| peer.look(true) == Look::Loaded));
    let both = [old.0.pem(), new.0.pem()].concat();
    let trust = |pem: &str| {
        for id in [1, 2] {
            fs::write(at(id).join("authority.pem"), pem).unwrap();
        }
    };
    trust(&both);
    look();
    cluster.works(2).await;
    for id in [1, 2] {
        new.write(&at(id), &of(id), &new, false);
    }
    trust(&both);
    look();
    cluster.works(3).await;
    caller.ask(&stranger::confirm(0, 2, true), 1).await;
    assert_eq!(caller.answer().await.unwrap(), [stranger::CONFIRMED, 0]);
    trust(&new.0.pem());
    look();
    let closed = async {
        loop {
            caller.ask(&stranger::confirm(0, 2, true), 1).await;
            if caller.answer().await.is_none() {
                break;
            }
        }
    };
    timeout(SOON, closed).await.expect("it is closed");
    assert!(cluster.call(&stolen, 2).await.is_none());
    cluster.works(4).await;
}

/// All connections of a leader once ended at once, and nobody took another.
#[tokio::test]
async fn connections_go_on_if_nobody_takes_what_would_replace_them() {
    let dir = TempDir::new().unwrap();
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let at = |id: NodeId| dir.path().join(id.to_string());
    let peers = [1, 2, 3].map(|id| load(&old.write(&at(id), &of(id), &old, false)));
    let cluster = Cluster::start(&peers.each_ref().map(|peer| Way::Tls(Arc::clone(peer)))).await;
    let mut round = 1;
    // Until each has connections to all that it calls.
    let works = async |round: &mut u128| {
        let begun = Instant::now();
        while begun.elapsed() < ATTEMPTS {
            cluster.works(*round).await;
            *round += 1;
        }
    };
    works(&mut round).await;
    for id in [1, 2, 3] {
        new.write(&at(id), &of(id), &old, false);
    }
    assert!(peers.iter().all(|peer| peer.look(true) == Look::Loaded));
    works(&mut round).await;
    for id in [1, 2, 3] {
        old.write(&at(id), &of(id), &old, false);
    }
    assert!(peers.iter().all(|peer| peer.look(true) == Look::Loaded));
    cluster.works(round).await;
}

#[tokio::test]
async fn a_cluster_changes_to_tls_node_by_node() {
    let dir = TempDir::new().unwrap();
    let nodes = Issuer::new("nodes");
    let peer = |id: NodeId| load(&nodes.write(&dir.path().join(id.to_string()), &of(id), &nodes, false));
    let peers = [1, 2, 3].map(peer);
    let mut cluster = Cluster::start(&[Way::Plain, Way::Plain, Way::Plain]).await;
    let mut round = 1;
    cluster.works(round).await;
    for way in [Way::Both, Way::Tls] {
        for (id, peer) in (1..).zip(&peers) {
            cluster.restart(id, &way(Arc::clone(peer))).await;
            round += 1;
            cluster.works(round).await;
        }
    }
    assert!(cluster.call(&Way::Plain, 2).await.is_none());
}
