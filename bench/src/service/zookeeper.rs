//! Three servers of ZooKeeper, and its lock recipe with the names that Curator gives: an ephemeral node with a number
//! and a guarded name, made and deleted for each hold.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::ZooKeeperCluster;
use tokio::sync::OnceCell;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use crate::service::{Locker, Service, printed};

/// Where the package puts it; its manifest names what else it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// Under which all locks are.
const LOCKS: &str = "/locks";

pub(super) fn class_path() -> Result<String> {
    printed("java", "-version")?;
    ensure!(Path::new(JAR).exists(), "{JAR} is not installed");
    Ok(JAR.to_owned())
}

pub(crate) struct ZooKeeper {
    cluster: ZooKeeperCluster,
    leader: SocketAddr,
    shared: OnceCell<Client>,
}

pub(super) async fn start(class_path: &str) -> Result<ZooKeeper> {
    let cluster = ZooKeeperCluster::start(class_path).await?;
    let told = cluster.ask("srvr").await;
    let leads = |told: &Option<String>| told.as_ref().is_some_and(|told| told.contains("Mode: leader"));
    let leader = told.iter().position(leads).context("no server of ZooKeeper leads")?;
    let leader = cluster.addresses()[leader];
    let client = Client::connect(&leader.to_string()).await?;
    client.create(LOCKS, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    Ok(ZooKeeper { cluster, leader, shared: OnceCell::new() })
}

impl ZooKeeper {
    async fn connect(&self) -> Result<Client> {
        Ok(Client::connect(&self.leader.to_string()).await?)
    }
}

impl Service for ZooKeeper {
    fn pids(&self) -> Vec<u32> {
        self.cluster.pids()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        async move {
            let told = self.cluster.ask("mntr").await;
            let count = |told: Option<String>| {
                let count = |line: &str| line.strip_prefix("zk_cnt_fsynctime")?.trim().parse::<f64>().ok();
                told?.lines().find_map(count)
            };
            told.into_iter().map(count).sum::<Option<f64>>().map(|all| all as u64)
        }
        .boxed()
    }

    fn locker(&self) -> BoxFuture<'_, Result<Box<dyn Locker>>> {
        async move {
            let client = self.connect().await?;
            Ok(Box::new(Session { client, held: None }) as Box<dyn Locker>)
        }
        .boxed()
    }

    fn task(&self) -> BoxFuture<'_, Result<Option<Box<dyn Locker>>>> {
        async move {
            let client = self.shared.get_or_try_init(|| self.connect()).await?.clone();
            Ok(Some(Box::new(Session { client, held: None }) as Box<dyn Locker>))
        }
        .boxed()
    }
}

struct Session {
    client: Client,
    /// The path of its node.
    held: Option<String>,
}

impl Locker for Session {
    fn acquire<'a>(&'a mut self, key: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            let dir = format!("{LOCKS}/{}", key.replace('/', "-"));
            let prefix = LockPrefix::new_curator(&dir, "lock-")?;
            let parents = CreateMode::Container.with_acls(Acls::anyone_all());
            let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
            let lock = self.client.lock(prefix, b"", options).await?;
            self.held = Some(lock.lock_path().to_owned());
            // Dropped, it would delete its node as well, and tell nobody when.
            std::mem::forget(lock);
            Ok(())
        }
        .boxed()
    }

    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        async move {
            let node = self.held.take().context("nothing is held")?;
            Ok(self.client.delete(&node, None).await?)
        }
        .boxed()
    }
}
