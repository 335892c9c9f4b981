//! Three servers of NATS, and a bucket of keys that each has a copy of on its disk, synced before the answer. By async-nats:
//! a lock is a key that its holder creates, and deletes at the revision of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::ConnectOptions;
use async_nats::jetstream::kv::{Config, CreateError, CreateErrorKind, Store};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::{Trio, until};
use tokio::sync::OnceCell;
use tokio::time::sleep;

use crate::job::{Assignment, Locker};
use crate::load::Worker;
use crate::service::{Service, backoff};

const CLIENTS: u16 = 4222;
const MONITOR: u16 = 8222;
const PEERS: u16 = 6222;
const BUCKET: &str = "locks";
/// Bounds the making of the bucket.
const MADE: Duration = Duration::from_secs(30);

pub(crate) struct Nats {
    servers: Trio,
    leader: SocketAddr,
    shared: OnceCell<Store>,
}

pub(super) async fn start(program: &Path) -> Result<Nats> {
    let servers = Trio::start(program, |command, id, ip, dir| {
        let routes: Vec<_> = (0..3).map(|id| format!("nats://{ip}:{}", PEERS + id)).collect();
        let config = format!(
            "server_name: n{id}\nlisten: \"{ip}:{}\"\nhttp: \"{ip}:{}\"\n\
             jetstream {{ store_dir: {:?}, sync_interval: always }}\n\
             cluster {{ name: bench, listen: \"{ip}:{}\", routes: {routes:?} }}\n",
            CLIENTS + id,
            MONITOR + id,
            dir.join("data"),
            PEERS + id
        );
        std::fs::write(dir.join("conf"), config)?;
        command.args(["--config", "conf"]);
        Ok(())
    })?;
    let monitors = servers.http(MONITOR);
    let is_healthy = async |id: usize| {
        monitors[id].raw("GET", "/healthz", "").await.is_ok_and(|answer| answer.status == 200)
    };
    servers.ready(is_healthy).await?;
    let [first, ..] = servers.at(CLIENTS);
    let jetstream = async_nats::jetstream::new(connect(first).await?);
    let config = || Config { bucket: BUCKET.to_owned(), history: 1, num_replicas: 3, ..Config::default() };
    // A server is healthy before the cluster has a leader that makes buckets, and a bucket is there before it has one.
    let leader = until(MADE, "NATS has made a bucket", async || {
        let bucket = jetstream.create_or_update_key_value(config()).await.ok()?;
        let leader = bucket.stream.get_info().await.ok()?.cluster?.leader?;
        leader.strip_prefix('n')?.parse::<usize>().ok()
    })
    .await?;
    let leader = *servers.at(CLIENTS).get(leader).context("no server of NATS has this name")?;
    Ok(Nats { servers, leader, shared: OnceCell::new() })
}

async fn connect(address: SocketAddr) -> Result<async_nats::Client> {
    Ok(ConnectOptions::new().ignore_discovered_servers().connect(address.to_string()).await?)
}

impl Nats {
    async fn bucket(&self) -> Result<Store> {
        let jetstream = async_nats::jetstream::new(connect(self.leader).await?);
        Ok(jetstream.get_key_value(BUCKET).await?)
    }
}

impl Service for Nats {
    fn pids(&self) -> Vec<u32> {
        self.servers.pids()
    }

    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>> {
        async move {
            let bucket = match client.is_task {
                true => self.shared.get_or_try_init(|| self.bucket()).await?.clone(),
                false => self.bucket().await?,
            };
            Ok(client.lock(Keys(bucket)))
        }
        .boxed()
    }
}

struct Keys(Store);

/// Whether another has created it first. One of the two codes that the servers have for that is unknown to async-nats.
fn is_held(error: &CreateError) -> bool {
    error.kind() == CreateErrorKind::AlreadyExists || error.to_string().contains("wrong last sequence")
}

impl Locker for Keys {
    /// The key, and the revision that created it.
    type Held = (String, u64);

    async fn acquire(&mut self, key: &str) -> Result<Self::Held> {
        loop {
            match self.0.create(key, "".into()).await {
                Ok(revision) => return Ok((key.to_owned(), revision)),
                // To watch the key would cost a consumer for each wait.
                Err(error) if is_held(&error) => sleep(backoff()).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn release(&mut self, (key, revision): Self::Held) -> Result<()> {
        Ok(self.0.delete_expect_revision(key, Some(revision)).await?)
    }
}
