//! Locks in Redis: `SET key value NX PX ttl`, and a script that deletes the key if the value is still the client's own. On
//! one server, or as Redlock on five: the lock is held by the client that set the key on a majority, all asked at once.

use anyhow::{Result, ensure};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, Script};
use ringfence_guard::Claim;
use ringfence_guard::redis::RedisGuard;
use ringfence_harness::RedisServer;
use ringfence_wire::{Key, Token};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::job::{Assignment, Job, Locker};
use crate::load::{Work, Worker};
use crate::service::{Service, backoff};

/// The time to live of a lock, ms.
const TTL_MS: u64 = 60_000;
/// As in the documentation of `SET`.
pub(crate) const DELETE_IF_OWN: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub(crate) struct Redis {
    /// Several for Redlock.
    servers: Vec<RedisServer>,
    shared: Shared,
}

/// The connection of tasks that share one.
#[derive(Default)]
pub(super) struct Shared(OnceCell<MultiplexedConnection>);

impl Shared {
    /// The connection for a client of the server at `url`.
    pub(super) async fn connection(&self, url: &str, client: &Assignment) -> Result<MultiplexedConnection> {
        if client.is_task {
            return Ok(self.0.get_or_try_init(|| connect(url)).await?.clone());
        }
        connect(url).await
    }
}

/// Starts servers that flush their logs after every command if `always`, else once a second.
pub(super) async fn start(servers: usize, always: bool) -> Result<Redis> {
    let fsync = if always { "appendfsync always" } else { "appendfsync everysec" };
    let mut started = Vec::new();
    for _ in 0..servers {
        started.push(RedisServer::builder().line("appendonly yes").line(fsync).start().await?);
    }
    Ok(Redis { servers: started, shared: Shared::default() })
}

/// Connects, however long answers take: that is what is measured.
pub(super) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await?)
}

/// A client that locks at one server.
pub(super) fn locks(client: &Assignment, connection: MultiplexedConnection) -> Worker {
    client.lock(Single { connection, release: release() })
}

impl Service for Redis {
    fn pids(&self) -> Vec<u32> {
        self.servers.iter().filter_map(RedisServer::pid).collect()
    }

    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>> {
        async move {
            if let [server] = self.servers.as_slice() {
                let connection = self.shared.connection(&server.url(), client).await?;
                return match client.job {
                    Job::OwnKey | Job::OneKey => Ok(locks(client, connection)),
                    job => Value::worker(connection, job, client.number).await,
                };
            }
            let mut connections = Vec::new();
            for server in &self.servers {
                connections.push(connect(&server.url()).await?);
            }
            Ok(client.lock(Majority { connections, release: release() }))
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

impl Value {
    async fn worker(mut connection: MultiplexedConnection, job: Job, number: usize) -> Result<Worker> {
        let key: Key = format!("value/{job:?}/{number}/{}", Uuid::new_v4()).parse()?;
        connection.set::<_, _, ()>(key.as_str(), 0).await?;
        let guard = RedisGuard::new(&key)?;
        Ok(Worker::new(Self { connection, job, key, guard, written: 0 }))
    }
}

impl Work for Value {
    async fn turn(&mut self) -> Result<Instant> {
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
}

fn release() -> Script {
    Script::new(DELETE_IF_OWN)
}

/// A lock: its key, and the value that only its holder knows.
type Held = (String, String);

fn own(key: &str) -> Held {
    (key.to_owned(), Uuid::new_v4().to_string())
}

/// A lock on one server.
struct Single {
    connection: MultiplexedConnection,
    release: Script,
}

impl Locker for Single {
    type Held = Held;

    async fn acquire(&mut self, key: &str) -> Result<Held> {
        let held = own(key);
        while !set(&mut self.connection, &held).await? {
            sleep(backoff()).await;
        }
        Ok(held)
    }

    async fn release(&mut self, (key, value): Held) -> Result<()> {
        Ok(self.release.key(key).arg(value).invoke_async(&mut self.connection).await?)
    }
}

/// A lock on most of several servers.
struct Majority {
    connections: Vec<MultiplexedConnection>,
    release: Script,
}

impl Majority {
    async fn delete(&mut self, (key, value): &Held) -> Result<()> {
        let mut call = self.release.key(key);
        let call = &*call.arg(value);
        let all = self.connections.iter_mut().map(|connection| call.invoke_async::<()>(connection));
        join_all(all).await.into_iter().collect::<Result<(), _>>()?;
        Ok(())
    }
}

impl Locker for Majority {
    type Held = Held;

    async fn acquire(&mut self, key: &str) -> Result<Held> {
        let held = own(key);
        loop {
            let all = self.connections.iter_mut().map(|connection| set(connection, &held));
            let set = join_all(all).await.into_iter().collect::<Result<Vec<bool>>>()?;
            if set.iter().filter(|set| **set).count() > set.len() / 2 {
                return Ok(held);
            }
            self.delete(&held).await?;
            sleep(backoff()).await;
        }
    }

    async fn release(&mut self, held: Held) -> Result<()> {
        self.delete(&held).await
    }
}

/// Takes the lock on one server; false where somebody else has it.
async fn set(connection: &mut MultiplexedConnection, (key, value): &Held) -> Result<bool> {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(value).arg("NX").arg("PX").arg(TTL_MS);
    Ok(command.query_async::<Option<String>>(connection).await?.is_some())
}
