use std::time::Duration;

use crate::redis_server::RedisPlace;
use crate::{Error, RedisBuilder, RedisServer, run, until};

/// How long three servers may take to make a cluster.
const WITHIN: Duration = Duration::from_secs(60);

/// A Redis Cluster of three masters without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    masters: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three servers, and waits until they serve all slots together.
    pub async fn start(builder: &RedisBuilder) -> Result<Self, Error> {
        let place = RedisPlace::claim()?;
        // A server that was stopped for some seconds is not to be taken for lost.
        let builder = builder
            .clone()
            .line("cluster-enabled yes")
            .line("cluster-node-timeout 60000")
            .line("appendonly no");
        let mut masters = Vec::new();
        for number in 0..3 {
            let server = builder.server(&place, number)?;
            server.start().await?;
            masters.push(server);
        }
        let mut arguments = vec!["--cluster".to_owned(), "create".to_owned()];
        arguments.extend(masters.iter().map(|master| master.address().to_string()));
        arguments.push("--cluster-yes".to_owned());
        let ended = run("redis-cli", &arguments, WITHIN).await?;
        if !ended.status.success() {
            return Err(Error::Unavailable(format!("no Redis Cluster was made: {}", ended.output)));
        }
        let cluster = Self { masters };
        cluster.ready().await?;
        Ok(cluster)
    }

    /// Its masters, each with a third of the slots.
    pub fn masters(&self) -> &[RedisServer] {
        &self.masters
    }

    /// Waits until every master says that all slots are served.
    pub async fn ready(&self) -> Result<(), Error> {
        for master in &self.masters {
            let look = async || {
                let info = master.command(["cluster", "info"]).await.ok()?;
                info.contains("cluster_state:ok").then_some(())
            };
            until(WITHIN, format!("the Redis Cluster is well for {}", master.address()), look).await?;
        }
        Ok(())
    }

    /// `redis+cluster://` with the addresses of all masters.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.masters.iter().map(|master| master.address().to_string()).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }
}
