//! Three nodes of Ringfence. Clients talk to the leader, as those of the peers do.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::{Client, Cluster, Node, Reply};
use ringfence_wire::LeaseId;
use tokio::time::Instant;

use crate::calls::{self, Wish};
use crate::http::Connection;
use crate::job::Job;
use crate::load::Work;
use crate::service::{Locker, Service};

/// For how long a lease is taken, and how long it may be waited for.
pub(super) const WISH: Wish = Wish { ttl_ms: 60_000, wait_ms: 60_000 };

pub(crate) struct Ringfence {
    cluster: Cluster,
    leader: SocketAddr,
    /// As programs in Rust have it.
    client: ringfence_client::Client,
}

pub(super) async fn start(program: &Path) -> Result<Ringfence> {
    Ringfence::of(Cluster::builder(program).start().await?).await
}

impl Ringfence {
    pub(crate) async fn of(cluster: Cluster) -> Result<Self> {
        let leader = cluster.leader().await?.http();
        let client = ringfence_client::Client::connect(cluster.nodes().iter().map(Node::url))?;
        Ok(Self { cluster, leader, client })
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Where the HTTP of the leader is.
    pub(crate) fn leader(&self) -> SocketAddr {
        self.leader
    }
}

impl Service for Ringfence {
    fn pids(&self) -> Vec<u32> {
        self.cluster.nodes().iter().filter_map(Node::pid).collect()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        let clients = self.cluster.nodes().iter().map(Node::client);
        async move {
            let mut all = 0;
            for client in clients {
                all += metric(&client, "ringfence_raft_log_flush_seconds_count").await?;
            }
            Some(all)
        }
        .boxed()
    }

    fn locker(&self) -> BoxFuture<'_, Result<Box<dyn Locker>>> {
        async move {
            let connection = Connection::open(self.leader).await?;
            Ok(Box::new(Leases { connection, held: None }) as Box<dyn Locker>)
        }
        .boxed()
    }

    fn task(&self) -> BoxFuture<'_, Result<Option<Box<dyn Locker>>>> {
        let task = Task { client: self.client.clone(), held: None };
        std::future::ready(Ok(Some(Box::new(task) as Box<dyn Locker>))).boxed()
    }

    fn worker(&self, job: Job, number: usize) -> BoxFuture<'_, Result<Option<Box<dyn Work>>>> {
        async move {
            let mut connection = Connection::open(self.leader).await?;
            Ok(Some(match job {
                Job::Read | Job::ReadLocally => {
                    let key = format!("read/{job:?}/{number}");
                    let token = calls::acquire(&mut connection, LeaseId::random(), &[&key], WISH).await?;
                    let path = match job {
                        Job::Read => "/v1/validate",
                        _ => "/v1/validate?consistency=local",
                    };
                    let wish = format!(r#"{{"key":"{key}","token":{token}}}"#);
                    Box::new(Validate { connection, path, wish }) as Box<dyn Work>
                }
                Job::Batch(size) => {
                    let keys = (0..size).map(|place| format!("batch/{number}/{place}")).collect();
                    Box::new(Batch { connection, keys })
                }
                _ => return Ok(None),
            }))
        }
        .boxed()
    }
}

async fn metric(client: &Client, name: &str) -> Option<u64> {
    let Ok(Reply::Done { body, .. }) = client.metrics().await else { return None };
    body.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Asks about the token of one live lease.
struct Validate {
    connection: Connection,
    path: &'static str,
    wish: String,
}

impl Work for Validate {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        async move {
            let answer = self.connection.call("POST", self.path, &self.wish).await?;
            ensure!(answer.status == 200, "validate: {}", answer.status);
            Ok(Instant::now())
        }
        .boxed()
    }
}

/// Acquires and releases many keys, in one call each.
struct Batch {
    connection: Connection,
    keys: Vec<String>,
}

impl Work for Batch {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        async move {
            let leases: Vec<_> = self.keys.iter().map(|key| (LeaseId::random(), key)).collect();
            calls::acquire_many(&mut self.connection, &leases, WISH.ttl_ms).await?;
            let over = Instant::now();
            let leases: Vec<_> = leases.into_iter().map(|(lease, _)| lease).collect();
            calls::release_many(&mut self.connection, &leases).await?;
            Ok(over)
        }
        .boxed()
    }
}

/// Who uses the client that programs use.
struct Task {
    client: ringfence_client::Client,
    held: Option<ringfence_client::Lease>,
}

impl Locker for Task {
    fn acquire<'a>(&'a mut self, key: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            let ttl = Duration::from_millis(WISH.ttl_ms);
            self.held = Some(self.client.lock(key).ttl(ttl).acquire().await?);
            Ok(())
        }
        .boxed()
    }

    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        async move { Ok(self.held.take().context("nothing is held")?.release().await?) }.boxed()
    }
}

struct Leases {
    connection: Connection,
    held: Option<LeaseId>,
}

impl Locker for Leases {
    fn acquire<'a>(&'a mut self, key: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            let lease = LeaseId::random();
            calls::acquire(&mut self.connection, lease, &[key], WISH).await?;
            self.held = Some(lease);
            Ok(())
        }
        .boxed()
    }

    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        async move {
            let lease = self.held.take().context("nothing is held")?;
            calls::release(&mut self.connection, lease).await
        }
        .boxed()
    }
}
