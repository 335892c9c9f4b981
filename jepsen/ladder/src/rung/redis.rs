//! Locks in Redis. Each holder has a connection to each server, and makes it again after an error or a lost answer.

mod redisson;
mod redlock;
mod sentinel;
mod servers;
mod single;

use std::time::Duration;

use anyhow::{Context, anyhow};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue};
use tokio::time::timeout;

use crate::fault::Fault;
use crate::rung::{Ground, Lock, PLAIN, Rung, Setting, Stage, printed};

/// Bounds a connection attempt.
const CONNECTED: Duration = Duration::from_secs(5);
/// Deletes the key if its value is the holder's own, as the documentation of `SET` says.
const DELETE_IF_OWN: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub(super) const RUNGS: [Rung; 12] = [
    Rung {
        number: 0,
        name: "SET without NX",
        plays: "SET key name; DEL key. As printed in tutorials; etcd's Put is the same.",
        expires: false,
        ..PLAIN
    },
    Rung { number: 1, name: "SETNX, DEL", plays: "SETNX key 1; DEL key.", expires: false, ..PLAIN },
    Rung {
        number: 2,
        name: "SETNX, EXPIRE, DEL",
        plays: "SETNX key 1, then PEXPIRE key ttl; DEL key.",
        two_steps: true,
        ..PLAIN
    },
    Rung { number: 3, name: "SET NX EX, DEL", plays: "SET key 1 NX PX ttl; DEL key.", ..PLAIN },
    Rung {
        number: 4,
        name: "random value, checked delete",
        plays: "SET key random NX PX ttl; a script deletes the key if the value is the holder's own, as the documentation \
                of SET says.",
        ..PLAIN
    },
    Rung {
        number: 5,
        name: "random value, read back",
        plays: "As 4; a client that gets no answer reads the key, and holds the lock if the value is its own.",
        ..PLAIN
    },
    Rung {
        number: 6,
        name: "random value, watchdog",
        plays: "As 5; a script renews the key each third of its time to live if the value is the holder's own.",
        renewed: true,
        ..PLAIN
    },
    Rung {
        number: 7,
        name: "Redlock of 5",
        plays: "As 4, on five servers at once; held if a majority grants it, for the time to live minus the time that took and \
                the drift (redis.io). The client measures that time, and checks it again before its first access.",
        checks_clock: true,
        ..PLAIN
    },
    Rung {
        number: 8,
        name: "random value, WAIT",
        plays: "As 4, then WAIT for one replica; if none acknowledges, the client deletes the key and does not use the lock.",
        ..PLAIN
    },
    Rung {
        number: 9,
        name: "Redisson RLock",
        plays: "The commands of Redisson 4.7.1-SNAPSHOT (commit 6686397): a hash with a count per holder, a watchdog, \
                and WAIT if there are replicas.",
        renewed: true,
        ..PLAIN
    },
    Rung {
        number: 10,
        name: "Redisson RFencedLock + guard",
        plays: "As 9, with INCR of a counter in the same script; the storage rejects a token smaller than one it has \
                seen.",
        renewed: true,
        ..PLAIN
    },
    Rung {
        number: 11,
        name: "random value at the storage",
        plays: "As 4; a holder registers its random value at the storage with its first access, and the storage accepts a \
                write if that value is still registered (antirez.com/news/101).",
        ..PLAIN
    },
];

/// As in "Redis 7.0.15".
pub(super) fn version() -> Option<String> {
    let printed = printed("redis-server", &["--version"])?;
    Some(format!("Redis {}", printed.split_whitespace().find_map(|word| word.strip_prefix("v="))?))
}

/// Servers for the fault.
pub(super) async fn stage(rung: &Rung, fault: Fault, ground: &Ground) -> anyhow::Result<Box<dyn Stage>> {
    Ok(match fault {
        Fault::FailoverBySentinel => Box::new(sentinel::Sentinels::start().await?),
        fault => Box::new(servers::Servers::start(rung, fault, &ground.folder).await?),
    })
}

/// A client for a holder's process.
pub(super) fn lock(setting: &Setting) -> anyhow::Result<Box<dyn Lock>> {
    let servers: Vec<_> = setting.servers.split(',').map(Server::new).collect();
    if setting.rung == 7 {
        return Ok(Box::new(redlock::Redlock::new(setting, servers)));
    }
    let server = servers.into_iter().next().context("there is no server")?;
    Ok(match setting.rung {
        9 | 10 => Box::new(redisson::Redisson::new(setting, server, setting.rung == 10)),
        _ => Box::new(single::Single::new(setting, server)),
    })
}

/// A holder's connection to a server.
struct Server {
    url: String,
    connection: Option<MultiplexedConnection>,
}

impl Server {
    fn new(address: &str) -> Self {
        Self { url: format!("redis://{address}"), connection: None }
    }

    /// Sends a command. After an error, or without an answer in time, the next command gets a new connection.
    async fn call<T: FromRedisValue>(&mut self, command: &Cmd, within: Duration) -> anyhow::Result<T> {
        let answer = timeout(within, command.query_async(self.connect().await?)).await;
        let answer = answer.map_err(|_| anyhow!("no answer within {within:?}")).and_then(|it| Ok(it?));
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    async fn connect(&mut self) -> anyhow::Result<&mut MultiplexedConnection> {
        if self.connection.is_none() {
            let config = AsyncConnectionConfig::new();
            let config = config.set_response_timeout(None).set_connection_timeout(Some(CONNECTED));
            let client = Client::open(self.url.as_str())?;
            self.connection = Some(client.get_multiplexed_async_connection_with_config(&config).await?);
        }
        self.connection.as_mut().context("it was just made")
    }
}
