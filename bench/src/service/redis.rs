//! One Redis server: `SET key value NX PX ttl`, and a script that deletes the key if the value is still the client's own.

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Script};
use ringfence_guard::Claim;
use ringfence_guard::redis::RedisGuard;
use ringfence_harness::RedisServer;
use ringfence_wire::{Key, Token};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::job::Job;
use crate::load::Work;
use crate::service::{Locker, Service};

/// For how long a lock is taken, ms.
pub(super) const TTL_MS: u64 = 60_000;
/// As the documentation of `SET` has it.
pub(crate) const DELETE_IF_OWN: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub(crate) struct Redis {
    server: RedisServer,
    shared: OnceCell<MultiplexedConnection>,
}

/// Flushes its log after every command if `always`, else once a second.
pub(super) async fn start(always: bool) -> Result<Redis> {
    let fsync = if always { "appendfsync always" } else { "appendfsync everysec" };
    let server = RedisServer::builder().line("appendonly yes").line(fsync).start().await?;
    Ok(Redis { server, shared: OnceCell::new() })
}

impl Redis {
    async fn connect(&self) -> Result<MultiplexedConnection> {
        Ok(redis::Client::open(self.server.url())?.get_multiplexed_async_connection().await?)
    }
}

impl Service for Redis {
    fn pids(&self) -> Vec<u32> {
        self.server.pid().into_iter().collect()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        std::future::ready(None).boxed()
    }

    fn locker(&self) -> BoxFuture<'_, Result<Box<dyn Locker>>> {
        async move {
            let connection = self.connect().await?;
            Ok(Box::new(Values::over(connection)) as Box<dyn Locker>)
        }
        .boxed()
    }

    fn task(&self) -> BoxFuture<'_, Result<Option<Box<dyn Locker>>>> {
        async move {
            let connection = self.shared.get_or_try_init(|| self.connect()).await?.clone();
            Ok(Some(Box::new(Values::over(connection)) as Box<dyn Locker>))
        }
        .boxed()
    }

    fn worker(&self, job: Job, number: usize) -> BoxFuture<'_, Result<Option<Box<dyn Work>>>> {
        async move {
            let mut connection = self.connect().await?;
            let key: Key = format!("value/{job:?}/{number}/{}", Uuid::new_v4()).parse()?;
            connection.set::<_, _, ()>(key.as_str(), 0).await?;
            let guard = RedisGuard::new(&key)?;
            Ok(Some(Box::new(Value { connection, job, key, guard, written: 0 }) as Box<dyn Work>))
        }
        .boxed()
    }
}

/// Reads or writes a value of its own.
struct Value {
    connection: MultiplexedConnection,
    job: Job,
    key: Key,
    guard: RedisGuard,
    written: u64,
}

impl Work for Value {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        async move {
            self.written += 1;
            match self.job {
                Job::Write => self.connection.set::<_, _, ()>(self.key.as_str(), self.written).await?,
                Job::GuardedWrite => {
                    let claim = Claim::exclusive(Token(self.written))?;
                    let name = format!("{{{}}}", self.key);
                    let admission = self.guard.set(&mut self.connection, claim, &name, self.written).await?;
                    ensure!(admission.is_accepted(), "a rising token was rejected");
                }
                _ => drop(self.connection.get::<_, Option<String>>(self.key.as_str()).await?),
            }
            Ok(Instant::now())
        }
        .boxed()
    }
}

struct Values {
    connection: MultiplexedConnection,
    release: Script,
    held: Option<(String, String)>,
}

impl Values {
    fn over(connection: MultiplexedConnection) -> Self {
        Self { connection, release: Script::new(DELETE_IF_OWN), held: None }
    }
}

impl Locker for Values {
    fn acquire<'a>(&'a mut self, key: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            let value = Uuid::new_v4().to_string();
            while !set(&mut self.connection, key, &value).await? {
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
            Ok(self.release.key(key).arg(value).invoke_async(&mut self.connection).await?)
        }
        .boxed()
    }
}

/// Whether the key was free, and has this value now.
pub(super) async fn set(connection: &mut MultiplexedConnection, key: &str, value: &str) -> Result<bool> {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(value).arg("NX").arg("PX").arg(TTL_MS);
    Ok(command.query_async::<Option<String>>(connection).await?.is_some())
}

/// Nobody is told that a lock is free: each asks again, after some ms.
pub(super) fn backoff() -> std::time::Duration {
    std::time::Duration::from_micros(fastrand::u64(1_000..5_000))
}
