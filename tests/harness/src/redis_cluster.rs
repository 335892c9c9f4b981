use std::time::Duration;

use crate::redis_server::{RedisPlace, addresses};
use crate::{Error, RedisBuilder, RedisServer, run, until};

/// How long three servers may take to form a cluster.
const WITHIN: Duration = Duration::from_secs(60);

/// A Redis Cluster of three masters without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    masters: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three servers and waits until they serve all slots together.
    pub async fn start(builder: &RedisBuilder) -> Result<Self, Error> {
        let place = RedisPlace::claim()?;
        // A server that is stopped for some seconds must not be taken for dead.
        let builder = builder.clone().line("cluster-enabled yes").line("cluster-node-timeout 60000");
        let builder = builder.line("appendonly no");
        let mut masters = Vec::new();
        for number in 0..3 {
            masters.push(builder.start_at(&place, number).await?);
        }
        let mut arguments = vec!["--cluster".to_owned(), "create".to_owned()];
        arguments.extend(masters.iter().map(|master| master.address().to_string()));
        arguments.push("--cluster-yes".to_owned());
        let ended = run("redis-cli", &arguments, WITHIN).await?;
        if !ended.status.success() {
            return Err(Error::Unavailable(format!("no Redis Cluster was created: {}", ended.output)));
        }
        let cluster = Self { masters };
        cluster.ready().await?;
        Ok(cluster)
    }

    /// Its masters, each with a third of the slots.
    pub fn masters(&self) -> &[RedisServer] {
        &self.masters
    }

    /// Waits until every master reports that all slots are served.
    pub async fn ready(&self) -> Result<(), Error> {
        for master in &self.masters {
            let look = async || {
                let info = master.command(["cluster", "info"]).await.ok()?;
                info.contains("cluster_state:ok").then_some(())
            };
            until(WITHIN, format!("the Redis Cluster is ready, by {}", master.address()), look).await?;
        }
        Ok(())
    }

    /// `redis+cluster://` with the addresses of all masters.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", addresses(&self.masters))
    }
}
