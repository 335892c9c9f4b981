//! Three nodes of Ringfence over the Redis protocol. Their leader gets the same commands and the same script as Redis.

use std::path::Path;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::Cluster;

use super::redis::{Shared, locks};
use super::ringfence::Ringfence;
use crate::job::Assignment;
use crate::load::Worker;
use crate::service::Service;

pub(crate) struct Resp {
    nodes: Ringfence,
    /// The URL of the leader.
    url: String,
    shared: Shared,
}

pub(super) async fn start(program: &Path) -> Result<Resp> {
    let cluster = Cluster::builder(program).resp().start().await?;
    let url = format!("redis://{}", cluster.leader().await?.resp());
    Ok(Resp { nodes: Ringfence::of(cluster).await?, url, shared: Shared::default() })
}

impl Service for Resp {
    fn pids(&self) -> Vec<u32> {
        self.nodes.pids()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        self.nodes.flushes()
    }

    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>> {
        async move { Ok(locks(client, self.shared.connection(&self.url, client).await?)) }.boxed()
    }
}
