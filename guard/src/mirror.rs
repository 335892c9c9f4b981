//! Asks the Redis mirror whether a token is dead, in one round trip: right to reject by, and never a reason to accept.
//!
//! The mirror keeps a hash for each key, whose field `fence` is below or at the key's fence in the cluster, however old it
//! is. So a token below it is dead for good. Whatever else stands there (nothing, another kind of value, no number) says
//! nothing about any token. A guard that must know asks the cluster.

use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use ringfence_wire::{Key, Token};

use crate::claim;

/// What the mirror says of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorVerdict {
    /// It is below the fence: reject.
    Stale {
        /// The key's fence, or one from before.
        fence: Token,
    },
    /// It may be live or not.
    Unknown,
}

/// Knows where the hashes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorReader {
    prefix: String,
}

impl Default for MirrorReader {
    /// With the prefix that the mirror has if none is configured.
    fn default() -> Self {
        Self::new("ringfence")
    }
}

impl MirrorReader {
    /// With the prefix that the mirror is configured with.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// One token. Where there is no answer at all, that is the error: nothing is known then either.
    ///
    /// Behind a Redis Cluster this is also how to ask for many, at the same time: its pipelines go to one server.
    pub async fn check(
        &self,
        connection: &mut impl ConnectionLike,
        key: &Key,
        token: Token,
    ) -> RedisResult<MirrorVerdict> {
        let answer = redis::cmd("HGET").arg(self.hash(key)).arg("fence").query_async(connection).await;
        verdict(answer, token)
    }

    /// Many tokens in one pipeline; the verdicts are in the same order.
    pub async fn check_many(
        &self,
        connection: &mut impl ConnectionLike,
        checks: &[(Key, Token)],
    ) -> RedisResult<Vec<MirrorVerdict>> {
        if checks.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::Pipeline::with_capacity(checks.len());
        for (key, _) in checks {
            pipeline.cmd("HGET").arg(self.hash(key)).arg("fence");
        }
        let answers: Vec<RedisResult<Value>> = pipeline.ignore_errors().query_async(connection).await?;
        answers.into_iter().zip(checks).map(|(answer, &(_, token))| verdict(answer, token)).collect()
    }

    fn hash(&self, key: &Key) -> String {
        format!("{}:{{{key}}}", self.prefix)
    }
}

/// The verdict by the field `fence`. An error of the server other than about the value is one for the caller: rights that
/// are missing would else look like a mirror that never knows anything.
fn verdict(answer: RedisResult<Value>, token: Token) -> RedisResult<MirrorVerdict> {
    let fence = match answer {
        Ok(value) => redis::from_redis_value::<u64>(value).ok().map(Token),
        Err(error) if is_about_the_value(&error) => None,
        Err(error) => return Err(error),
    };
    // A number that no fence can be was written by a foreign hand.
    let fence = fence.filter(|&fence| claim::check("fence", fence).is_ok());
    Ok(match fence {
        Some(fence) if token < fence => MirrorVerdict::Stale { fence },
        _ => MirrorVerdict::Unknown,
    })
}

fn is_about_the_value(error: &RedisError) -> bool {
    error.kind() == ErrorKind::UnexpectedReturnType || error.code() == Some("WRONGTYPE")
}
