//! Three servers of etcd. Each client has one lease for all its locks, like a session of etcd's own client.

mod calls;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::EtcdCluster;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use crate::job::{Assignment, Job, Locker};
use crate::load::{Work, Worker};
use crate::service::{Handing, Held, Loss, Service, backoff, lose, printed};
use calls::Client;

/// The time to live of a client's lease, s.
const TTL_S: i64 = 600;

/// How a lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// By `Lock` and `Unlock` of its lock service.
    Lock,
    /// By one transaction that creates the key, and a call that deletes it. Nobody can wait for such a lock.
    Transaction,
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "lock",
            Self::Transaction => "txn",
        })
    }
}

/// As in "3.5.1".
pub(super) fn version(program: &Path) -> Result<String> {
    let text = printed(program, "--version")?;
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    version.map(str::to_owned).with_context(|| format!("{} prints no version", program.display()))
}

pub(crate) struct Etcd {
    cluster: EtcdCluster,
    /// Its number.
    leader: usize,
    calls: Calls,
    shared: OnceCell<Client>,
}

pub(super) async fn start(program: &Path, calls: Calls) -> Result<Etcd> {
    let cluster = EtcdCluster::start(program).await?;
    let leader = cluster.leader().await.context("no server of etcd leads")?;
    Ok(Etcd { cluster, leader, calls, shared: OnceCell::new() })
}

impl Service for Etcd {
    fn pids(&self) -> Vec<u32> {
        self.cluster.servers().pids()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        async move {
            let mut all = 0;
            for server in self.cluster.clients() {
                all += server.metric("etcd_disk_wal_fsync_duration_seconds_count").await.ok()?? as u64;
            }
            Some(all)
        }
        .boxed()
    }

    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>> {
        async move {
            let leader = self.cluster.addresses()[self.leader];
            let mut connection = match client.is_task {
                true => self.shared.get_or_try_init(|| Client::connect(leader)).await?.clone(),
                false => Client::connect(leader).await?,
            };
            let lease = connection.grant_lease(TTL_S).await?;
            let Assignment { job, number, .. } = client;
            if let Job::OwnKey | Job::OneKey = job {
                return Ok(client.lock(Session { client: connection, lease, calls: self.calls }));
            }
            let key = format!("read/{job:?}/{number}");
            ensure!(connection.create(&key, lease).await?, "{key} is held");
            Ok(Worker::new(Get { client: connection, key, linearizable: *job == Job::Read }))
        }
        .boxed()
    }
}

impl Handing for Etcd {
    fn hold(&self, key: String, ttl: Duration) -> BoxFuture<'static, Result<Held>> {
        let follower = self.cluster.addresses()[(self.leader + 1) % 3];
        async move {
            let mut client = Client::connect(follower).await?;
            let lease = client.grant_lease(ttl.as_secs() as i64).await?;
            // The key of this lease keeps its place, so a call that failed with the leader is repeated.
            while client.lock(&key, lease).await.is_err() {
                sleep(backoff()).await;
            }
            Ok(Box::new(client) as Held)
        }
        .boxed()
    }

    fn lose_leader(&self, loss: Loss) -> BoxFuture<'_, Result<()>> {
        async move {
            let leads = self.cluster.leader().await == Some(self.leader);
            ensure!(leads, "another server leads by now");
            lose(self.cluster.servers(), self.leader, loss).await
        }
        .boxed()
    }
}

/// Reads a key that exists.
struct Get {
    client: Client,
    key: String,
    linearizable: bool,
}

impl Work for Get {
    async fn turn(&mut self) -> Result<Instant> {
        let found = self.client.get(&self.key, self.linearizable).await?;
        ensure!(found == 1, "{} is missing", self.key);
        Ok(Instant::now())
    }
}

struct Session {
    client: Client,
    lease: i64,
    calls: Calls,
}

impl Locker for Session {
    /// The key that the lock is held by.
    type Held = Vec<u8>;

    async fn acquire(&mut self, key: &str) -> Result<Vec<u8>> {
        match self.calls {
            Calls::Lock => self.client.lock(key, self.lease).await,
            Calls::Transaction => {
                ensure!(self.client.create(key, self.lease).await?, "{key} is held");
                Ok(key.as_bytes().to_owned())
            }
        }
    }

    async fn release(&mut self, key: Vec<u8>) -> Result<()> {
        match self.calls {
            Calls::Lock => self.client.unlock(key).await,
            Calls::Transaction => self.client.delete(key).await,
        }
    }
}
