//! The Redis that three nodes publish their fences in: only reading it is measured.

use std::path::Path;

use anyhow::{Result, bail};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use ringfence_guard::{MirrorReader, MirrorVerdict};
use ringfence_harness::{Cluster, RedisServer, until};
use ringfence_wire::{Key, LeaseId, Token};
use tokio::time::{Duration, Instant};

use crate::calls;
use crate::http::Connection;
use crate::job::Job;
use crate::load::Work;
use crate::service::ringfence::WISH;
use crate::service::{Locker, Service};

/// How long a fence may take to stand in Redis.
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

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        std::future::ready(None).boxed()
    }

    fn locker(&self) -> BoxFuture<'_, Result<Box<dyn Locker>>> {
        async { bail!("nobody locks by the mirror") }.boxed()
    }

    fn worker(&self, _: Job, number: usize) -> BoxFuture<'_, Result<Option<Box<dyn Work>>>> {
        async move {
            let mut leader = Connection::open(self.cluster.leader().await?.http()).await?;
            let key: Key = format!("read/{number}/{}", LeaseId::random()).parse()?;
            let token = calls::acquire(&mut leader, LeaseId::random(), &[key.as_str()], WISH).await?;
            let connection =
                redis::Client::open(self.redis.url())?.get_multiplexed_async_connection().await?;
            let reader = MirrorReader::default();
            let stale = Token(token.0 - 1);
            let stands = async || {
                let verdict = reader.check(&mut connection.clone(), &key, stale).await.ok()?;
                (verdict == MirrorVerdict::Stale { fence: token }).then_some(())
            };
            until(SOON, "the fence stands in Redis", stands).await?;
            Ok(Some(Box::new(Check { connection, reader, key, token }) as Box<dyn Work>))
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
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        async move {
            self.reader.check(&mut self.connection, &self.key, self.token).await?;
            Ok(Instant::now())
        }
        .boxed()
    }
}
