//! Three nodes of Ringfence. Clients talk to the leader, as those of the peers do.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::{Client, Cluster, Node, Reply};
use ringfence_wire::{LeaseId, Token};
use tokio::time::Instant;

use crate::http::Connection;
use crate::job::Job;
use crate::load::Work;
use crate::service::{Locker, Service};

/// For how long a lease is taken, and how long it may be waited for.
const WISH: &str = r#""ttl_ms":60000,"wait_ms":60000"#;

pub(crate) struct Ringfence {
    cluster: Cluster,
    leader: SocketAddr,
}

pub(super) async fn start(program: &Path) -> Result<Ringfence> {
    Ringfence::of(Cluster::builder(program).start().await?).await
}

impl Ringfence {
    pub(crate) async fn of(cluster: Cluster) -> Result<Self> {
        let leader = cluster.leader().await?.http();
        Ok(Self { cluster, leader })
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
                all += metric(&client, "ringfence_log_flush_seconds_count").await?;
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

    fn worker(&self, job: Job, number: usize) -> BoxFuture<'_, Result<Option<Box<dyn Work>>>> {
        async move {
            let mut connection = Connection::open(self.leader).await?;
            Ok(Some(match job {
                Job::Read | Job::ReadLocally => {
                    let key = format!("read/{job:?}/{number}");
                    let token = acquire(&mut connection, LeaseId::random(), &key).await?;
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

/// Acquires a lease of the key; its token.
pub(super) async fn acquire(connection: &mut Connection, lease: LeaseId, key: &str) -> Result<Token> {
    let wish = format!(r#"{{"keys":["{key}"],{WISH}}}"#);
    let answer = connection.call("PUT", &format!("/v1/leases/{lease}"), &wish).await?;
    let told = String::from_utf8_lossy(answer.body);
    ensure!(answer.status == 201, "acquire: {}: {told}", answer.status);
    let token =
        told.split_once(r#""token":"#).and_then(|(_, rest)| rest.split([',', '}']).next()?.parse().ok());
    token.map(Token).with_context(|| format!("a grant has a token: {told}"))
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

impl Batch {
    async fn call(&mut self, operations: &[String], each: u16) -> Result<()> {
        let wish = format!(r#"{{"operations":[{}]}}"#, operations.join(","));
        let answer = self.connection.call("POST", "/v1/batch", &wish).await?;
        let told = String::from_utf8_lossy(answer.body);
        let done = told.matches(&format!(r#"{{"status":{each}"#)).count();
        ensure!(answer.status == 200 && done == operations.len(), "batch: {}: {told}", answer.status);
        Ok(())
    }
}

impl Work for Batch {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        async move {
            let leases: Vec<LeaseId> = self.keys.iter().map(|_| LeaseId::random()).collect();
            let acquire = |(lease, key): (&LeaseId, &String)| {
                format!(r#"{{"acquire":{{"lease_id":"{lease}","keys":["{key}"],"ttl_ms":60000}}}}"#)
            };
            let acquires: Vec<String> = leases.iter().zip(&self.keys).map(acquire).collect();
            self.call(&acquires, 201).await?;
            let over = Instant::now();
            let release = |lease: &LeaseId| format!(r#"{{"release":{{"lease_id":"{lease}"}}}}"#);
            self.call(&leases.iter().map(release).collect::<Vec<_>>(), 204).await?;
            Ok(over)
        }
        .boxed()
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
            acquire(&mut self.connection, lease, key).await?;
            self.held = Some(lease);
            Ok(())
        }
        .boxed()
    }

    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        async move {
            let lease = self.held.take().context("nothing is held")?;
            let answer = self.connection.call("DELETE", &format!("/v1/leases/{lease}"), "").await?;
            ensure!(answer.status == 204, "release: {}", answer.status);
            Ok(())
        }
        .boxed()
    }
}
