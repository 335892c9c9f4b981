use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::redis_server::{RedisPlace, addresses};
use crate::{Error, RedisBuilder, RedisServer, until};

/// How long a group may take to be in order, or to fail over.
const WITHIN: Duration = Duration::from_secs(60);
/// The name of the group.
const NAME: &str = "leases";

/// A master, a replica, and three Sentinels that fail over half a second after the master is lost.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisSentinel {
    /// Starts them, and waits until the replica is in sync and the Sentinels know it and each other.
    pub async fn start(builder: &RedisBuilder) -> Result<Self, Error> {
        let place = RedisPlace::claim()?;
        let master = builder.start_at(&place, 0).await?;
        let at = master.address();
        let replica = builder.clone().line(format!("replicaof {} {}", at.ip(), at.port()));
        let replica = replica.line("repl-diskless-sync-delay 0").start_at(&place, 1).await?;
        let mut sentinels = Vec::new();
        for number in 2..5 {
            let lines = ["down-after-milliseconds leases 500", "failover-timeout leases 3000"];
            sentinels.push(sentinel(&place, number, at, &lines).await?);
        }
        let group = Self { servers: vec![master, replica], sentinels };
        group.ready().await?;
        Ok(group)
    }

    /// The two servers; the first was the first master.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The Sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// One more Sentinel, which takes the replica for the master, and never learns better.
    pub async fn misled(&self) -> Result<RedisServer, Error> {
        sentinel(self.servers[0].place(), 5, self.servers[1].address(), &[]).await
    }

    /// The master, by the first Sentinel.
    pub async fn master(&self) -> Result<SocketAddr, Error> {
        let answer = self.sentinels[0].command(["sentinel", "get-master-addr-by-name", NAME]).await?;
        let address = answer.lines().collect::<Vec<_>>().join(":");
        address.parse().map_err(|_| Error::Failed(format!("Sentinel answered no address: {answer}")))
    }

    /// Waits until the Sentinels have another master than `former`, and returns it.
    pub async fn fails_over(&self, former: SocketAddr) -> Result<SocketAddr, Error> {
        let look = async || self.master().await.ok().filter(|master| *master != former);
        until(WITHIN, format!("another master than {former}"), look).await
    }

    /// `redis+sentinel://` with the addresses of all Sentinels, and the name of the group.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}", addresses(&self.sentinels))
    }

    async fn ready(&self) -> Result<(), Error> {
        let says = async |server: &RedisServer, section: &str, what: &'static str| {
            let look = async || {
                let info = server.command(["info", section]).await.ok()?;
                info.contains(what).then_some(())
            };
            until(WITHIN, format!("Redis at {} says {what}", server.address()), look).await
        };
        says(&self.servers[0], "replication", "state=online").await?;
        for server in &self.sentinels {
            says(server, "sentinel", "slaves=1,sentinels=3").await?;
        }
        Ok(())
    }
}

/// A Sentinel that watches the master at `at`.
async fn sentinel(
    place: &Arc<RedisPlace>,
    number: u16,
    at: SocketAddr,
    settings: &[&str],
) -> Result<RedisServer, Error> {
    let mut lines = vec![format!("sentinel monitor {NAME} {} {} 2", at.ip(), at.port())];
    lines.extend(settings.iter().map(|setting| format!("sentinel {setting}")));
    RedisServer::start_new(place, number, "redis-sentinel", lines, None).await
}
