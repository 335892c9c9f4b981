//! Three servers of etcd. Each client has a lease of its own for all its locks, as a session of etcd's own client has.

mod calls;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::EtcdCluster;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::job::Job;
use crate::load::Work;
use crate::service::{Locker, Service, printed};
use calls::Client;

/// For how long a client's lease lasts, s.
const TTL_S: i64 = 600;

/// How a lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// By `Lock` and `Unlock` of its lock service.
    Lock,
    /// By one transaction that makes the key, and one call that deletes it: nobody can wait for that.
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
    version.map(str::to_owned).with_context(|| format!("{} does not tell its version", program.display()))
}

pub(crate) struct Etcd {
    cluster: EtcdCluster,
    leader: SocketAddr,
    calls: Calls,
    shared: OnceCell<Client>,
}

pub(super) async fn start(program: &Path, calls: Calls) -> Result<Etcd> {
    let cluster = EtcdCluster::start(program).await?;
    for address in cluster.addresses() {
        if Client::connect(address).await?.leads().await? {
            return Ok(Etcd { cluster, leader: address, calls, shared: OnceCell::new() });
        }
    }
    anyhow::bail!("no server of etcd leads")
}

impl Service for Etcd {
    fn pids(&self) -> Vec<u32> {
        self.cluster.pids()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        async move {
            let mut all = 0;
            for address in self.cluster.addresses() {
                let metrics =
                    ringfence_harness::Client::new(address).raw("GET", "/metrics", "").await.ok()?;
                let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
                let count = |line: &str| {
                    line.strip_prefix("etcd_disk_wal_fsync_duration_seconds_count ")?.parse::<u64>().ok()
                };
                all += metrics.lines().find_map(count)?;
            }
            Some(all)
        }
        .boxed()
    }

    fn locker(&self) -> BoxFuture<'_, Result<Box<dyn Locker>>> {
        async move {
            let session = Session::begin(Client::connect(self.leader).await?, self.calls).await?;
            Ok(Box::new(session) as Box<dyn Locker>)
        }
        .boxed()
    }

    fn task(&self) -> BoxFuture<'_, Result<Option<Box<dyn Locker>>>> {
        async move {
            let client = self.shared.get_or_try_init(|| Client::connect(self.leader)).await?.clone();
            Ok(Some(Box::new(Session::begin(client, self.calls).await?) as Box<dyn Locker>))
        }
        .boxed()
    }

    fn worker(&self, job: Job, number: usize) -> BoxFuture<'_, Result<Option<Box<dyn Work>>>> {
        async move {
            let mut client = Client::connect(self.leader).await?;
            let lease = client.grant_lease(TTL_S).await?;
            let key = format!("read/{job:?}/{number}");
            ensure!(client.create(&key, lease).await?, "{key} is held");
            let linearizable = job == Job::Read;
            Ok(Some(Box::new(Get { client, key, linearizable }) as Box<dyn Work>))
        }
        .boxed()
    }
}

/// Reads a key that there is.
struct Get {
    client: Client,
    key: String,
    linearizable: bool,
}

impl Work for Get {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        async move {
            let found = self.client.get(&self.key, self.linearizable).await?;
            ensure!(found == 1, "{} is missing", self.key);
            Ok(Instant::now())
        }
        .boxed()
    }
}

struct Session {
    client: Client,
    lease: i64,
    calls: Calls,
    held: Option<Vec<u8>>,
}

impl Session {
    async fn begin(mut client: Client, calls: Calls) -> Result<Self> {
        let lease = client.grant_lease(TTL_S).await?;
        Ok(Self { client, lease, calls, held: None })
    }
}

impl Locker for Session {
    fn acquire<'a>(&'a mut self, key: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            self.held = Some(match self.calls {
                Calls::Lock => self.client.lock(key, self.lease).await?,
                Calls::Transaction => {
                    ensure!(self.client.create(key, self.lease).await?, "{key} is held");
                    key.as_bytes().to_owned()
                }
            });
            Ok(())
        }
        .boxed()
    }

    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        async move {
            let key = self.held.take().context("nothing is held")?;
            match self.calls {
                Calls::Lock => self.client.unlock(key).await,
                Calls::Transaction => self.client.delete(key).await,
            }
        }
        .boxed()
    }
}
