//! The Redis that three nodes publish their fences in. Only reading it is measured.

use std::path::Path;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use ringfence_guard::{MirrorReader, MirrorVerdict};
use ringfence_harness::{Cluster, HttpConnection, RedisServer, until};
use ringfence_wire::{Key, LeaseId, Token};
use tokio::time::{Duration, Instant};

use crate::calls;
use crate::job::Assignment;
use crate::load::{Work, Worker};
use crate::service::Service;
use crate::service::redis::connect;
use crate::service::ringfence::TIMES;

/// Bounds how long a fence takes to reach Redis.
const SOON: Duration = Duration::from_secs(20);

pub(crate) struct Mirror {
    cluster: Cluster,
    redis: RedisServer,
}

pub(super) async fn start(program: &Path) -> Result<Mirror> {
    let redis = RedisServer::builder().start().await?;
    let cluster = Cluster::builder(program).argument(format!("--redis={}", redis.url())).start().await?;
    Ok(Mirror { cluster, redis })
}

impl Service for Mirror {
    fn pids(&self) -> Vec<u32> {
        self.redis.pid().into_iter().collect()
    }

    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>> {
        async move {
            let mut leader = HttpConnection::open(self.cluster.leader().await?.http()).await?;
            let key: Key = format!("read/{}/{}", client.number, LeaseId::random()).parse()?;
            let token = calls::acquire(&mut leader, LeaseId::random(), &[key.as_str()], TIMES).await?;
            let connection = connect(&self.redis.url()).await?;
            let reader = MirrorReader::default();
            let stale = Token(token.0 - 1);
            let is_published = async || {
                let verdict = reader.check(&mut connection.clone(), &key, stale).await.ok()?;
                (verdict == MirrorVerdict::Stale { fence: token }).then_some(())
            };
            until(SOON, "the fence is in Redis", is_published).await?;
            Ok(Worker::new(Check { connection, reader, key, token }))
        }
        .boxed()
    }
}

struct Check {
    connection: MultiplexedConnection,
    reader: MirrorReader,
    key: Key,
    token: Token,
}

impl Work for Check {
    async fn turn(&mut self) -> Result<Instant> {
        self.reader.check(&mut self.connection, &self.key, self.token).await?;
        Ok(Instant::now())
    }
}
