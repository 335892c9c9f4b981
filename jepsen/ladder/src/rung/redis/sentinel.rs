//! A master and a replica under three real Sentinels. What the holders connect to leads where the Sentinels say.
//!
//! The replica stands still and its connection is cut before the lock is acquired, so that it never receives it; when the
//! master is dead, it goes on, and the Sentinels promote it.

use anyhow::{Context, bail, ensure};
use futures_util::future::BoxFuture;
use ringfence_harness::{RedisSentinel, RedisServer};

use crate::fault::Fault;
use crate::front::Front;
use crate::rung::Stage;

pub(super) struct Sentinels {
    group: RedisSentinel,
    front: Front,
}

impl Sentinels {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let group = RedisSentinel::start(&RedisServer::builder()).await?;
        let front = Front::open(group.master().await?).await?;
        Ok(Self { group, front })
    }

    fn servers(&self) -> anyhow::Result<[&RedisServer; 2]> {
        match self.group.servers() {
            [master, replica] => Ok([master, replica]),
            other => bail!("{} servers instead of a master and a replica", other.len()),
        }
    }
}

impl Stage for Sentinels {
    fn fronts(&self) -> Vec<&Front> {
        vec![&self.front]
    }

    fn prepare(&self, _: Fault) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async {
            let [master, replica] = self.servers()?;
            replica.stop().await?;
            let cut = master.command(["client", "kill", "type", "replica"]).await?;
            ensure!(cut == "1", "{cut} connections of replicas were cut");
            Ok(())
        })
    }

    fn inflict(&self, _: Fault) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async {
            let [master, replica] = self.servers()?;
            master.kill()?;
            replica.resume()?;
            let promoted = self.group.fails_over(master.address()).await?;
            ensure!(promoted == replica.address(), "{promoted} is the master");
            let role = replica.command(["role"]).await?;
            ensure!(role.starts_with("master"), "the replica says that it is {role}");
            self.front.lead_to(promoted);
            Ok("the master was killed; Sentinel has promoted its replica".to_owned())
        })
    }

    fn state(&self, key: &str) -> BoxFuture<'_, anyhow::Result<String>> {
        let key = key.to_owned();
        Box::pin(async move {
            let master = self.group.master().await?;
            let server = self.group.servers().iter().find(|server| server.address() == master);
            let pttl = server.context("the master is unknown")?.command(["pttl", &key]).await?;
            bail!("it is stuck; PTTL is {pttl}")
        })
    }
}
