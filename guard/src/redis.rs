//! Redis as the guarded resource: a script compares, raises and runs the command, and nothing comes between.
//!
//! The script is the file `guard/lua/guard.lua` ([`SCRIPT`]), for any language; its head explains the names, the slots and
//! what it answers. This is a thin wrapper.
//!
//! **What a Redis forgets, its guard forgets.** The number is as durable as the data beside it, no more. A failover to a
//! replica that lacks acknowledged writes, or a restart from an older file, brings back an older number with the older
//! data; a stale token may then be let in until the live holder shows its own again. Where that must not be, wait for the
//! replicas (`WAIT`, `min-replicas-to-write`, `appendfsync always`), or keep what matters in a store that does not forget.

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

/// The guard of what stands in Redis under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisGuard {
    number: String,
}

/// A key with a brace in it: the names beside it cannot be told to be in its slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "key: `{0}` has a brace in it, which ends or begins a hash tag: choose where the number stands (RedisGuard::at)"
)]
pub struct BraceInKey(Key);

/// What came of a guarded command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a command that was rejected has not been done"]
pub enum Reply<T> {
    /// It was done, and this is what it answered.
    Accepted(T),
    /// Nothing was done: every token below `high` is dead.
    Stale {
        /// The number that stands with the data.
        high: Token,
    },
}

impl RedisGuard {
    /// The guard whose number stands at `guard:{key}`: beside everything that is called `key`, or has `{key}` in its name.
    ///
    /// With a brace in the key the number and the data would be in different slots of a Redis Cluster: that is refused.
    pub fn new(key: &Key) -> Result<Self, BraceInKey> {
        if key.as_str().contains(['{', '}']) {
            return Err(BraceInKey(key.clone()));
        }
        Ok(Self::at(format!("guard:{{{key}}}")))
    }

    /// The guard whose number stands at `number`: in a Redis Cluster, in the slot of all that it guards.
    pub fn at(number: impl Into<String>) -> Self {
        Self { number: number.into() }
    }

    /// Where the number stands.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// Shuts out every holder below the claim's fence: to be done before the first read.
    pub async fn touch(&self, connection: &mut impl ConnectionLike, claim: Claim) -> RedisResult<Admission> {
        self.call::<Value>(connection, claim, &[], None).await.map(Reply::admission)
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
        self.run::<Value>(connection, claim, &[name], &command).await.map(Reply::admission)
    }

    /// `HSET name field value …`
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
        self.run::<Value>(connection, claim, &[name], &command).await.map(Reply::admission)
    }

    /// `DEL name`. The number stays.
    pub async fn del(
        &self,
        connection: &mut impl ConnectionLike,
        claim: Claim,
        name: &str,
    ) -> RedisResult<Admission> {
        self.run::<Value>(connection, claim, &[name], &redis::cmd("DEL").arg(name).take())
            .await
            .map(Reply::admission)
    }

    /// Any command, with options and answer: `SET name value EX 60 NX`, `INCR`, `LPUSH` … `names` are what it uses.
    pub async fn run<T: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        claim: Claim,
        names: &[&str],
        command: &Cmd,
    ) -> RedisResult<Reply<T>> {
        self.call(connection, claim, names, Some(command)).await
    }

    /// The number; [`High::NEW`] if nobody has shown a token yet.
    pub async fn high(&self, connection: &mut impl ConnectionLike) -> RedisResult<High> {
        let high: Option<u64> = redis::cmd("GET").arg(&self.number).query_async(connection).await?;
        let Some(high) = high else { return Ok(High::NEW) };
        High::new(Token(high))
            .map_err(|why| (ErrorKind::UnexpectedReturnType, "no token", why.to_string()).into())
    }

    /// Sets the number, to one that [`High::reset`] made.
    pub async fn reset(&self, connection: &mut impl ConnectionLike, high: High) -> RedisResult<()> {
        redis::cmd("SET").arg(&self.number).arg(high.token().0).exec_async(connection).await
    }

    async fn call<T: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        claim: Claim,
        names: &[&str],
        command: Option<&Cmd>,
    ) -> RedisResult<Reply<T>> {
        let invoke = |by: &str, script: &str| {
            let mut invocation = redis::cmd(by);
            invocation.arg(script).arg(names.len() + 1).arg(&self.number).arg(names);
            invocation.arg(claim.token().0).arg(claim.fence().0);
            for argument in command.into_iter().flat_map(Cmd::args_iter) {
                invocation.arg(match argument {
                    Arg::Simple(argument) => argument,
                    // A cursor: at its start, as a single call can be only.
                    _ => b"0",
                });
            }
            invocation
        };
        let mut answer = invoke("EVALSHA", &DIGEST).query_async(connection).await;
        // The server is new, or was told to forget its scripts. What it refused for that was certainly not done.
        if answer.as_ref().is_err_and(|error: &RedisError| error.kind() == NO_SCRIPT) {
            answer = invoke("EVAL", SCRIPT).query_async(connection).await;
        }
        let (accepted, high, reply): (bool, u64, Value) = answer?;
        if !accepted {
            return Ok(Reply::Stale { high: Token(high) });
        }
        Ok(Reply::Accepted(redis::from_redis_value(reply)?))
    }
}

const NO_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);

impl<T> Reply<T> {
    /// Whether it was done.
    pub fn admission(self) -> Admission {
        match self {
            Self::Accepted(_) => Admission::Accepted,
            Self::Stale { high } => Admission::Stale { high },
        }
    }
}
