use std::net::SocketAddr;
use std::time::Duration;

use crate::redis_server::RedisPlace;
use crate::{Error, RedisBuilder, RedisServer, until};

/// How long a group may take to be in order, or to fail over.
const WITHIN: Duration = Duration::from_secs(60);
/// What the group is called.
const NAME: &str = "leases";

/// A master, a replica, and three Sentinels that fail over half a second after the master was lost.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisSentinel {
    /// Starts them, and waits until the replica is in step and the Sentinels know it and each other.
    pub async fn start(builder: &RedisBuilder) -> Result<Self, Error> {
        let place = RedisPlace::claim()?;
        let master = builder.server(&place, 0)?;
        master.start().await?;
        let at = master.address();
        let following = builder
            .clone()
            .line(format!("replicaof {} {}", at.ip(), at.port()))
            .line("repl-diskless-sync-delay 0");
        let replica = following.server(&place, 1)?;
        replica.start().await?;
        let mut sentinels = Vec::new();
        for number in 2..5 {
            let lines = vec![
                "protected-mode no".to_owned(),
                format!("sentinel monitor {NAME} {} {} 2", at.ip(), at.port()),
                format!("sentinel down-after-milliseconds {NAME} 500"),
                format!("sentinel failover-timeout {NAME} 3000"),
            ];
            let sentinel = RedisServer::new(master.place(), number, "redis-sentinel", lines, None)?;
            sentinel.start().await?;
            sentinels.push(sentinel);
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

    /// One more Sentinel, which takes the replica for the master, and never learns that it is not.
    pub async fn misled(&self) -> Result<RedisServer, Error> {
        let at = self.servers[1].address();
        let lines = vec![
            "protected-mode no".to_owned(),
            format!("sentinel monitor {NAME} {} {} 2", at.ip(), at.port()),
        ];
        let sentinel = RedisServer::new(self.servers[0].place(), 5, "redis-sentinel", lines, None)?;
        sentinel.start().await?;
        Ok(sentinel)
    }

    /// Who is the master, as the first Sentinel has it.
    pub async fn master(&self) -> Result<SocketAddr, Error> {
        let answer = self.sentinels[0].command(["sentinel", "get-master-addr-by-name", NAME]).await?;
        let address = answer.lines().collect::<Vec<_>>().join(":");
        address.parse().map_err(|_| Error::Unavailable(format!("Sentinel named no address: {answer}")))
    }

    /// Waits until the Sentinels have another master than `former`, and gives it.
    pub async fn fails_over(&self, former: SocketAddr) -> Result<SocketAddr, Error> {
        let look = async || self.master().await.ok().filter(|master| *master != former);
        until(WITHIN, format!("another master than {former}"), look).await
    }

    /// `redis+sentinel://` with the addresses of all Sentinels, and the name of the group.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(|at| at.address().to_string()).collect();
        format!("redis+sentinel://{}/{NAME}", addresses.join(","))
    }

    async fn ready(&self) -> Result<(), Error> {
        let master = &self.servers[0];
        let replicates = async || {
            let info = master.command(["info", "replication"]).await.ok()?;
            info.contains("state=online").then_some(())
        };
        until(WITHIN, "the replica is in step", replicates).await?;
        for sentinel in &self.sentinels {
            let knows = async || {
                let info = sentinel.command(["info", "sentinel"]).await.ok()?;
                info.contains("slaves=1,sentinels=3").then_some(())
            };
            until(WITHIN, format!("the Sentinel at {} knows all", sentinel.address()), knows).await?;
        }
        Ok(())
    }
}
