//! Redlock over five Redis servers: the lock is held by whoever set the key on three of them, all asked at once.

use anyhow::{Context, Result};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use redis::Script;
use redis::aio::MultiplexedConnection;
use ringfence_harness::RedisServer;
use tokio::time::sleep;
use uuid::Uuid;

use crate::service::redis::{DELETE_IF_OWN, backoff, set};
use crate::service::{Locker, Service};

const SERVERS: usize = 5;
const QUORUM: usize = 3;

pub(crate) struct Redlock(Vec<RedisServer>);

/// Each flushes once a second, as nobody who uses it flushes more often.
pub(super) async fn start() -> Result<Redlock> {
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        let server = RedisServer::builder().line("appendonly yes").line("appendfsync everysec");
        servers.push(server.start().await?);
    }
    Ok(Redlock(servers))
}

impl Service for Redlock {
    fn pids(&self) -> Vec<u32> {
        self.0.iter().filter_map(RedisServer::pid).collect()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        std::future::ready(None).boxed()
    }

    fn locker(&self) -> BoxFuture<'_, Result<Box<dyn Locker>>> {
        async move {
            let mut connections = Vec::new();
            for server in &self.0 {
                let client = redis::Client::open(server.url())?;
                connections.push(client.get_multiplexed_async_connection().await?);
            }
            let release = Script::new(DELETE_IF_OWN);
            Ok(Box::new(Majority { connections, release, held: None }) as Box<dyn Locker>)
        }
        .boxed()
    }
}

struct Majority {
    connections: Vec<MultiplexedConnection>,
    release: Script,
    held: Option<(String, String)>,
}

impl Majority {
    async fn delete(&mut self, key: &str, value: &str) -> Result<()> {
        let release = &self.release;
        let all = self
            .connections
            .iter_mut()
            .map(async |connection| release.key(key).arg(value).invoke_async::<()>(connection).await);
        join_all(all).await.into_iter().collect::<Result<(), _>>()?;
        Ok(())
    }
}

impl Locker for Majority {
    fn acquire<'a>(&'a mut self, key: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            let value = Uuid::new_v4().to_string();
            loop {
                let all = self.connections.iter_mut().map(|connection| set(connection, key, &value));
                let set = join_all(all).await.into_iter().collect::<Result<Vec<bool>>>()?;
                if set.iter().filter(|set| **set).count() >= QUORUM {
                    break;
                }
                self.delete(key, &value).await?;
                sleep(backoff()).await;
            }
            self.held = Some((key.to_owned(), value));
            Ok(())
        }
        .boxed()
    }

    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        async move {
            let (key, value) = self.held.take().context("nothing is held")?;
            self.delete(&key, &value).await
        }
        .boxed()
    }
}
