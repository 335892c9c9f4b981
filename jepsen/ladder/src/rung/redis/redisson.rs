//! `RLock` and `RFencedLock` of Redisson, by what version 4.7.1-SNAPSHOT (commit 6686397, August 2026) sends: the same
//! commands in the same order, in scripts of our own.
//!
//! A lock is a hash: a field for its holder (a client's id and a thread's), whose value counts how often that one has
//! acquired it. With replicas connected, each script is followed by `WAIT` for all of them (`checkLockSyncedSlaves`, on by
//! default): an answer of 0 is an error, one is enough. A watchdog renews the lock each third of its time to live, and tells
//! nobody when it fails. No request is sent again by itself (`…NoRetryAsync`).

use std::time::Duration;

use anyhow::Context;
use futures_util::future::BoxFuture;
use redis::{Cmd, FromRedisValue, cmd};
use uuid::Uuid;

use super::Server;
use crate::rung::{GRANTED, Lock, Setting};
use crate::step::{Answer, Pass};

/// How long a client waits for an answer that is not to be lost.
const PATIENT: Duration = Duration::from_secs(10);
/// `slavesSyncTimeout`, ms.
const SYNC_MS: u64 = 1_000;

/// Returns the token, -1 for one who holds it already; or nothing, where another one does.
const ACQUIRE: &str = "
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  local token = -1
  if KEYS[2] then token = redis.call('incr', KEYS[2]) end
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return token
end
return nil";
const RENEW: &str = "
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('pexpire', KEYS[1], ARGV[1])
return 1";
/// Returns 1 if the lock is free now, 0 if it was acquired more often; nothing to one who does not hold it.
const RELEASE: &str = "
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[2], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', 'redisson_lock__channel:{' .. KEYS[1] .. '}', 0)
return 1";

pub(super) struct Redisson {
    server: Server,
    keys: Vec<String>,
    ttl_ms: u64,
    /// Client and thread.
    holder: String,
    /// The number of replicas, once the server has said it.
    replicas: Option<u64>,
}

impl Redisson {
    /// With a counter for tokens, if it is an `RFencedLock`.
    pub(super) fn new(setting: &Setting, server: Server, is_fenced: bool) -> Self {
        let mut keys = vec![setting.key.clone()];
        if is_fenced {
            keys.push(format!("redisson_lock_token:{{{}}}", setting.key));
        }
        let holder = format!("{}:1", Uuid::new_v4());
        Self { server, keys, ttl_ms: setting.ttl_ms, holder, replicas: None }
    }

    /// Runs a script and, if there are replicas, waits for one of them.
    async fn synced<T: FromRedisValue>(
        &mut self,
        script: &str,
        within: Duration,
    ) -> anyhow::Result<Synced<T>> {
        let replicas = match self.replicas {
            Some(replicas) => replicas,
            None => self.connected_replicas().await?,
        };
        let answer = self.server.call(&self.call(script), within).await?;
        if replicas > 0 {
            let wait = cmd("WAIT").arg(replicas).arg(SYNC_MS).take();
            let synced: u64 = self.server.call(&wait, PATIENT).await?;
            self.replicas = Some(replicas).filter(|_| synced == replicas);
            if synced == 0 {
                return Ok(Synced::ByNone);
            }
        }
        Ok(Synced::Yes(answer))
    }

    async fn connected_replicas(&mut self) -> anyhow::Result<u64> {
        let info: String = self.server.call(&cmd("INFO").arg("replication").take(), PATIENT).await?;
        let count = info.lines().find_map(|line| line.trim().strip_prefix("connected_slaves:"));
        let count = count.context("INFO says nothing of replicas")?.parse()?;
        self.replicas = Some(count);
        Ok(count)
    }

    fn call(&self, script: &str) -> Cmd {
        cmd("EVAL").arg(script).arg(self.keys.len()).arg(&self.keys).arg(self.ttl_ms).arg(&self.holder).take()
    }

    fn is_fenced(&self) -> bool {
        self.keys.len() > 1
    }

    async fn try_acquire(&mut self, within: Duration) -> anyhow::Result<Answer> {
        match self.synced::<Option<i64>>(ACQUIRE, within).await? {
            Synced::Yes(None) => Ok(Answer::Held),
            Synced::Yes(Some(token)) if self.is_fenced() => {
                Ok(Answer::Granted { pass: Pass::Token(u64::try_from(token)?) })
            }
            Synced::Yes(Some(_)) => Ok(GRANTED),
            Synced::ByNone => {
                // `RFencedLock` leaves the lock to its end instead.
                if !self.is_fenced() {
                    self.server.call::<Option<i64>>(&self.call(RELEASE), PATIENT).await?;
                }
                Ok(Answer::Refused { why: "NoSyncedSlavesException, WAIT answered 0".into() })
            }
        }
    }
}

/// Whether a replica has acknowledged.
enum Synced<T> {
    Yes(T),
    ByNone,
}

impl Lock for Redisson {
    fn acquire(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(self.try_acquire(within))
    }

    fn touch(&mut self) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async {
            Ok(match self.synced::<i64>(RENEW, PATIENT).await? {
                Synced::Yes(1) => Answer::Alive,
                Synced::Yes(_) => Answer::Lost,
                Synced::ByNone => Answer::Unsure { why: "NoSyncedSlavesException".into() },
            })
        })
    }

    fn release(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async move {
            Ok(match self.synced::<Option<i64>>(RELEASE, within).await? {
                Synced::Yes(Some(1)) => Answer::Released,
                Synced::Yes(Some(_)) => Answer::Alive,
                Synced::Yes(None) => Answer::Lost,
                Synced::ByNone => Answer::Unsure { why: "NoSyncedSlavesException".into() },
            })
        })
    }

    fn needs_renewing(&self) -> bool {
        true
    }
}
