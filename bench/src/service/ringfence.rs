//! Three nodes of Ringfence. Clients talk to the leader, as do those of other services that can.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_access::Credential;
use ringfence_client::Tls;
use ringfence_harness::{Certificates, Cluster, HttpConnection, Node};
use ringfence_wire::LeaseId;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::calls::{self, Times};
use crate::job::{Assignment, Cycle, Job, Locker};
use crate::load::{Work, Worker};
use crate::service::{Handing, Held, Loss, Service};

pub(super) const TIMES: Times = Times { ttl_ms: 60_000, wait_ms: 60_000 };

/// What nodes encrypt and check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    None,
    /// Connections between nodes.
    Peers,
    /// Connections of clients.
    Clients,
    /// Connections of clients, who have credentials.
    Rules,
}

/// How clients connect to a node that encrypts.
struct Access {
    tls: ringfence_tls::Client,
    credential: Option<String>,
    greedy: String,
    _files: TempDir,
}

/// Makes connections to the leader.
#[derive(Clone)]
pub(crate) struct Connector {
    leader: SocketAddr,
    /// `None`: connections are plain.
    tls: Option<TlsConnector>,
    credential: Option<String>,
}

/// The limit of a principal that only [`Ringfence::greedy`] uses.
pub(crate) const GREEDY_REQUESTS_PER_S: u32 = 500;

pub(crate) struct Ringfence {
    cluster: Cluster,
    leader: SocketAddr,
    /// `None`: connections are plain.
    access: Option<Access>,
    /// The Rust client, for tasks.
    client: ringfence_client::Client,
}

impl Security {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "ringfence",
            Self::Peers => "ringfence, peer TLS",
            Self::Clients => "ringfence, TLS",
            Self::Rules => "ringfence, TLS and rules",
        }
    }
}

pub(crate) async fn start(program: &Path, security: Security) -> Result<Ringfence> {
    if security == Security::None {
        return Ringfence::of(Cluster::builder(program).start().await?).await;
    }
    let cluster = Cluster::builder(program).lay_out().await?;
    let dir = tempfile::tempdir()?;
    let names = [1, 2, 3].map(|id| format!("URI:ringfence:node:{id}")).join(",");
    let files = Certificates::new(dir.path(), &format!("IP:{},{names}", cluster.node(1).http().ip()))?;
    let credential = Credential::generate()?;
    let rules = dir.path().join("access.toml");
    let all = "allow = [{ keys = \"*\", may = [\"acquire\", \"read\"] }]\ncluster = [\"observe\"]";
    let greedy = Credential::generate()?;
    let named = |name, credential: &Credential| {
        format!("[principals.{name}]\ncredentials = [\"{}\"]\n{all}\n", credential.digest())
    };
    let limits = format!("limits = {{ leases = 1_000, requests-per-s = {GREEDY_REQUESTS_PER_S} }}");
    let anonymous = "[anonymous]\ncluster = [\"metrics\"]\n";
    let principals = [named("bench", &credential), named("greedy", &greedy) + &limits, anonymous.to_owned()];
    fs::write(&rules, principals.join("\n"))?;
    let mut arguments = Vec::new();
    match security {
        Security::None | Security::Peers => arguments.extend(files.peer_arguments()),
        Security::Clients | Security::Rules => {
            arguments.push(format!("--tls-certificate={}", files.certificate().display()));
            arguments.push(format!("--tls-key={}", files.key().display()));
        }
    }
    if security == Security::Rules {
        arguments.push(format!("--access={}", rules.display()));
    }
    for node in cluster.nodes() {
        node.start_with(|command| {
            command.args(&arguments);
        })?;
    }
    if security == Security::Peers {
        cluster.ready().await?;
        return Ringfence::of(cluster).await;
    }
    let secret = (security == Security::Rules).then(|| credential.reveal().to_owned());
    let as_principal = secret.as_deref().map(ringfence_client::Credential::new).transpose()?;
    let authority = files.authority().to_owned();
    let tls = Tls { authority: Some(authority.clone()), credential: as_principal, ..Tls::default() };
    let urls = cluster.nodes().iter().map(|node| format!("https://{}", node.http()));
    let client = ringfence_client::Client::connect_with(urls, &tls)?;
    // The first grant shows that there is a leader.
    let leader = loop {
        let Ok(lease) = client.lock("ready").acquire().await else { continue };
        lease.release().await?;
        let status = client.cluster().await?;
        if let Some(leader) = status.leader {
            break cluster.node(leader).http();
        }
    };
    let tls = ringfence_tls::Client::with_authority(Some(authority))?;
    let access = Some(Access { tls, credential: secret, greedy: greedy.reveal().to_owned(), _files: dir });
    Ok(Ringfence { cluster, leader, access, client })
}

impl Ringfence {
    pub(crate) async fn of(cluster: Cluster) -> Result<Self> {
        let leader = cluster.leader().await?.http();
        let client = ringfence_client::Client::connect(cluster.nodes().iter().map(Node::url))?;
        Ok(Self { cluster, leader, access: None, client })
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The leader's HTTP address.
    pub(crate) fn leader(&self) -> SocketAddr {
        self.leader
    }

    /// Connects as the principal of all clients.
    fn connector(&self) -> Connector {
        let access = self.access.as_ref();
        Connector {
            leader: self.leader,
            tls: access.map(|access| TlsConnector::from(access.tls.current())),
            credential: access.and_then(|access| access.credential.clone()),
        }
    }

    /// Connects as a principal with limits, of 1,000 leases and [`GREEDY_REQUESTS_PER_S`].
    pub(crate) fn greedy(&self) -> Connector {
        let credential = self.access.as_ref().map(|access| access.greedy.clone());
        Connector { credential, ..self.connector() }
    }

    async fn connect(&self) -> Result<HttpConnection> {
        self.connector().connect().await
    }

    /// Clients that each acquire and release a key of their own.
    pub(crate) async fn cycles(&self, count: usize, key: impl Fn(usize) -> String) -> Result<Vec<Worker>> {
        let mut workers = Vec::new();
        for client in 0..count {
            let locker = Leases(self.connect().await?);
            workers.push(Worker::new(Cycle { locker, key: key(client), place: None }));
        }
        Ok(workers)
    }
}

impl Connector {
    pub(crate) async fn connect(&self) -> Result<HttpConnection> {
        let Some(tls) = &self.tls else { return Ok(HttpConnection::open(self.leader).await?) };
        let stream = TcpStream::connect(self.leader).await?;
        stream.set_nodelay(true)?;
        let stream = tls.connect(ServerName::from(self.leader.ip()), stream).await?;
        Ok(HttpConnection::over(stream, self.leader, self.credential.as_deref()))
    }
}

impl Service for Ringfence {
    fn pids(&self) -> Vec<u32> {
        self.cluster.nodes().iter().filter_map(Node::pid).collect()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        async move {
            let mut all = 0;
            for node in self.cluster.nodes() {
                all += node.metric("ringfence_raft_log_flush_seconds_count").await.ok()?? as u64;
            }
            Some(all)
        }
        .boxed()
    }

    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>> {
        async move {
            if client.is_task {
                return Ok(client.lock(Task(self.client.clone())));
            }
            let mut connection = self.connect().await?;
            let Assignment { job, number, .. } = client;
            let path = match job {
                Job::OwnKey | Job::OneKey => return Ok(client.lock(Leases(connection))),
                Job::Batch(size) => {
                    let keys = (0..*size).map(|place| format!("batch/{number}/{place}")).collect();
                    return Ok(Worker::new(Batch { connection, keys }));
                }
                Job::ReadLocally => "/v1/validate?consistency=local",
                _ => "/v1/validate",
            };
            let key = format!("read/{job:?}/{number}");
            let token = calls::acquire(&mut connection, LeaseId::random(), &[&key], TIMES).await?;
            let request = format!(r#"{{"key":"{key}","token":{token}}}"#);
            Ok(Worker::new(Validate { connection, path, request }))
        }
        .boxed()
    }
}

impl Handing for Ringfence {
    fn hold(&self, key: String, ttl: Duration) -> BoxFuture<'static, Result<Held>> {
        let urls: Vec<_> = self.cluster.nodes().iter().map(Node::url).collect();
        async move {
            let client = ringfence_client::Client::connect(urls)?;
            Ok(Box::new(client.lock(key).ttl(ttl).acquire().await?) as Held)
        }
        .boxed()
    }

    fn lose_leader(&self, loss: Loss) -> BoxFuture<'_, Result<()>> {
        async move {
            let leader = self.cluster.leader().await?;
            match loss {
                Loss::Killed => leader.kill()?,
                Loss::Stopped => leader.stop()?,
            }
            Ok(())
        }
        .boxed()
    }
}

/// Validates the token of a live lease.
struct Validate {
    connection: HttpConnection,
    path: &'static str,
    request: String,
}

impl Work for Validate {
    async fn turn(&mut self) -> Result<Instant> {
        self.connection.expect(200, "POST", self.path, &self.request).await?;
        Ok(Instant::now())
    }
}

/// Acquires and releases many keys, in one call each.
struct Batch {
    connection: HttpConnection,
    keys: Vec<String>,
}

impl Work for Batch {
    async fn turn(&mut self) -> Result<Instant> {
        let leases: Vec<_> = self.keys.iter().map(|key| (LeaseId::random(), key)).collect();
        calls::acquire_many(&mut self.connection, &leases, TIMES.ttl_ms).await?;
        let over = Instant::now();
        let leases: Vec<_> = leases.into_iter().map(|(lease, _)| lease).collect();
        calls::release_many(&mut self.connection, &leases).await?;
        Ok(over)
    }
}

/// Uses the Rust client.
struct Task(ringfence_client::Client);

impl Locker for Task {
    type Held = ringfence_client::Lease;

    async fn acquire(&mut self, key: &str) -> Result<Self::Held> {
        Ok(self.0.lock(key).ttl(Duration::from_millis(TIMES.ttl_ms)).acquire().await?)
    }

    async fn release(&mut self, held: Self::Held) -> Result<()> {
        Ok(held.release().await?)
    }
}

/// Uses a connection of its own.
struct Leases(HttpConnection);

impl Locker for Leases {
    type Held = LeaseId;

    async fn acquire(&mut self, key: &str) -> Result<LeaseId> {
        let lease = LeaseId::random();
        calls::acquire(&mut self.0, lease, &[key], TIMES).await?;
        Ok(lease)
    }

    async fn release(&mut self, held: LeaseId) -> Result<()> {
        calls::release(&mut self.0, held).await
    }
}
