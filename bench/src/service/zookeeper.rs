//! Three servers of ZooKeeper, and its lock recipe with Curator's names: an ephemeral sequential node with a guarded name,
//! created and deleted for each hold.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::ZooKeeperCluster;
use tokio::sync::OnceCell;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use crate::job::{Assignment, Locker};
use crate::load::Worker;
use crate::service::{Handing, Held, Loss, Service, lose, printed};

/// Where the package puts it; its manifest names what else it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// The parent of all locks.
const LOCKS: &str = "/locks";

pub(super) fn class_path() -> Result<String> {
    printed("java", "-version")?;
    ensure!(Path::new(JAR).exists(), "{JAR} is not installed");
    Ok(JAR.to_owned())
}

pub(crate) struct ZooKeeper {
    cluster: ZooKeeperCluster,
    /// Its number.
    leader: usize,
    shared: OnceCell<Client>,
}

pub(super) async fn start(class_path: &str) -> Result<ZooKeeper> {
    let cluster = ZooKeeperCluster::start(class_path).await?;
    let leader = cluster.leader().await.context("no server of ZooKeeper leads")?;
    let started = ZooKeeper { cluster, leader, shared: OnceCell::new() };
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    started.connect().await?.create(LOCKS, b"", &options).await?;
    Ok(started)
}

impl ZooKeeper {
    async fn connect(&self) -> Result<Client> {
        Ok(Client::connect(&self.cluster.addresses()[self.leader].to_string()).await?)
    }
}

impl Service for ZooKeeper {
    fn pids(&self) -> Vec<u32> {
        self.cluster.servers().pids()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        async move {
            let count = |answer: Option<String>| {
                let count = |line: &str| line.strip_prefix("zk_cnt_fsynctime")?.trim().parse::<f64>().ok();
                answer?.lines().find_map(count)
            };
            let answers = self.cluster.ask("mntr").await;
            answers.into_iter().map(count).sum::<Option<f64>>().map(|all| all as u64)
        }
        .boxed()
    }

    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>> {
        async move {
            let session = match client.is_task {
                true => self.shared.get_or_try_init(|| self.connect()).await?.clone(),
                false => self.connect().await?,
            };
            Ok(client.lock(Session(session)))
        }
        .boxed()
    }
}

impl Handing for ZooKeeper {
    fn hold(&self, key: String, ttl: Duration) -> BoxFuture<'static, Result<Held>> {
        let followers = [1, 2].map(|next| self.cluster.addresses()[(self.leader + next) % 3].to_string());
        async move {
            let connector = Client::connector().with_session_timeout(ttl);
            let mut session = Session(connector.connect(&followers.join(",")).await?);
            session.acquire(&key).await?;
            Ok(Box::new(session) as Held)
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

struct Session(Client);

impl Locker for Session {
    /// The path of its node.
    type Held = String;

    async fn acquire(&mut self, key: &str) -> Result<String> {
        let dir = format!("{LOCKS}/{}", key.replace('/', "-"));
        let prefix = LockPrefix::new_curator(&dir, "lock-")?;
        let parents = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
        let lock = self.0.lock(prefix, b"", options).await?;
        let node = lock.lock_path().to_owned();
        // Dropping it would delete the node in the background, at an unknown time.
        std::mem::forget(lock);
        Ok(node)
    }

    async fn release(&mut self, node: String) -> Result<()> {
        Ok(self.0.delete(&node, None).await?)
    }
}
