//! Redis as the guarded resource: one script checks, raises the number and runs the command, atomically.
//!
//! The script is the file `guard/lua/guard.lua` ([`SCRIPT`]), for any language; its head explains the names, the slots and
//! its answers. This is a thin wrapper.
//!
//! **The guard forgets what its Redis forgets.** The number is as durable as the data beside it. A failover to a replica
//! that lacks acknowledged writes, or a restart from an older file, restores an older number with the older
//! data; then a stale token may be admitted until the live holder shows its own again. Where that is unacceptable, wait
//! for the replicas (`WAIT`, `min-replicas-to-write`, `appendfsync always`), or use a store that does not forget.

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{
    Arg, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, ToRedisArgs, Value,
};
use ringfence_wire::{Key, Token};

use crate::{Admission, Claim, High};

/// The script.
pub const SCRIPT: &str = include_str!("../lua/guard.lua");

static DIGEST: LazyLock<String> = LazyLock::new(|| redis::Script::new(SCRIPT).get_hash().to_owned());

const NO_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);

/// The guard of the data in Redis under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisGuard {
    number: String,
}

/// The key contains a brace, so names beside it may be in another slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "key: `{0}` has a brace in it, which ends or begins a hash tag: choose where the number stands (RedisGuard::at)"
)]
pub struct BraceInKey(Key);

impl RedisGuard {
    /// The guard whose number is at `guard:{key}`, for everything named `key`, or with `{key}` in its name.
    ///
    /// A key with a brace is an error: the number and the data would be in different slots of a Redis Cluster.
    pub fn new(key: &Key) -> Result<Self, BraceInKey> {
        if key.as_str().contains(['{', '}']) {
            return Err(BraceInKey(key.clone()));
        }
        Ok(Self::at(format!("guard:{{{key}}}")))
    }

    /// The guard whose number is at `number`: in a Redis Cluster, in the slot of all that it guards.
    pub fn at(number: impl Into<String>) -> Self {
        Self { number: number.into() }
    }

    /// The name of the number.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// Shuts out every holder below the claim's fence. Call it before the first read.
    pub async fn touch(&self, connection: &mut impl ConnectionLike, claim: Claim) -> RedisResult<Admission> {
        self.run(connection, claim, &[], &Cmd::new()).await
    }

    /// `SET name value`
    pub async fn set(
        &self,
        connection: &mut impl ConnectionLike,
        claim: Claim,
        name: &str,
        value: impl ToRedisArgs,
    ) -> RedisResult<Admission> {
        let command = redis::cmd("SET").arg(name).arg(value).take();
        self.run(connection, claim, &[name], &command).await
    }

    /// `HSET name field value …`, for at most 3,499 fields.
    pub async fn hset<F: ToRedisArgs, V: ToRedisArgs>(
        &self,
        connection: &mut impl ConnectionLike,
        claim: Claim,
        name: &str,
        fields: &[(F, V)],
    ) -> RedisResult<Admission> {
        let mut command = redis::cmd("HSET");
        command.arg(name);
        for (field, value) in fields {
            command.arg(field).arg(value);
        }
        self.run(connection, claim, &[name], &command).await
    }

    /// `DEL name`. The number stays.
    pub async fn del(
        &self,
        connection: &mut impl ConnectionLike,
        claim: Claim,
        name: &str,
    ) -> RedisResult<Admission> {
        self.run(connection, claim, &[name], &redis::cmd("DEL").arg(name).take()).await
    }

    /// Any command of at most 7,000 words, with its options and its answer: `SET name value EX 60 NX`, `INCR`, `LPUSH` …
    /// `names` are those that it uses: at least one, and never the number. An empty command is a touch.
    pub async fn run<T: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        claim: Claim,
        names: &[&str],
        command: &Cmd,
    ) -> RedisResult<Admission<T>> {
        let invoke = |by: &str, script: &str| {
            let mut invocation = redis::cmd(by);
            invocation.arg(script).arg(names.len() + 1).arg(&self.number).arg(names);
            invocation.arg(claim.token().0).arg(claim.fence().0);
            for argument in command.args_iter() {
                invocation.arg(match argument {
                    Arg::Simple(argument) => argument,
                    // A cursor, at its start: a single call has no other.
                    _ => b"0",
                });
            }
            invocation
        };
        let mut answer = invoke("EVALSHA", &DIGEST).query_async(connection).await;
        // The server is new, or its scripts were flushed. Nothing was done.
        if answer.as_ref().is_err_and(|error: &RedisError| error.kind() == NO_SCRIPT) {
            answer = invoke("EVAL", SCRIPT).query_async(connection).await;
        }
        let (accepted, high, reply): (bool, u64, Value) = answer?;
        if !accepted {
            return Ok(Admission::Stale { high: Token(high) });
        }
        Ok(Admission::Accepted(redis::from_redis_value(reply)?))
    }

    /// The number; [`High::NEW`] if nobody has shown a token yet.
    pub async fn high(&self, connection: &mut impl ConnectionLike) -> RedisResult<High> {
        let high: Option<u64> = redis::cmd("GET").arg(&self.number).query_async(connection).await?;
        let Some(high) = high else { return Ok(High::NEW) };
        High::new(Token(high))
            .map_err(|why| (ErrorKind::UnexpectedReturnType, "no token", why.to_string()).into())
    }

    /// Sets the number, to one made by [`High::reset`].
    pub async fn reset(&self, connection: &mut impl ConnectionLike, high: High) -> RedisResult<()> {
        redis::cmd("SET").arg(&self.number).arg(high.token().0).exec_async(connection).await
    }
}
