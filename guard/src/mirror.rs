//! Asks the Redis mirror whether a token is dead, in one round trip. Reject by its answer, never accept.
//!
//! The mirror keeps a hash for each key, whose field `fence` is at or below the key's fence in the cluster, however old it
//! is. So a token below it is dead for good. Any other content (nothing, another type, no number) says nothing about any
//! token. A guard that must know asks the cluster.

use redis::aio::ConnectionLike;
use redis::{Cmd, RedisResult, Value};
use ringfence_wire::{Key, Token};

/// What the mirror says about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorVerdict {
    /// It is below the fence: reject it.
    Stale {
        /// The key's fence, or an earlier one.
        fence: Token,
    },
    /// It may be live or dead.
    Unknown,
}

/// Reads the mirror's hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorReader {
    /// The names of all hashes, up to the key.
    begin: String,
}

impl Default for MirrorReader {
    /// With the mirror's default prefix.
    fn default() -> Self {
        Self::new("ringfence")
    }
}

impl MirrorReader {
    /// With the mirror's configured prefix.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { begin: prefix.into() + ":{" }
    }

    /// Checks one token. No answer is an error: nothing is known then either.
    ///
    /// In a Redis Cluster, call it concurrently for many tokens: a pipeline goes to one server.
    pub async fn check(
        &self,
        connection: &mut impl ConnectionLike,
        key: &Key,
        token: Token,
    ) -> RedisResult<MirrorVerdict> {
        verdict(self.command(key, &mut String::new()).query_async(connection).await, token)
    }

    /// Checks many tokens in one pipeline; the verdicts are in the same order.
    pub async fn check_many(
        &self,
        connection: &mut impl ConnectionLike,
        checks: &[(Key, Token)],
    ) -> RedisResult<Vec<MirrorVerdict>> {
        if checks.is_empty() {
            return Ok(Vec::new());
        }
        let (mut pipeline, mut name) = (redis::Pipeline::with_capacity(checks.len()), String::new());
        for (key, _) in checks {
            pipeline.add_command(self.command(key, &mut name));
        }
        // Raw values: each conversion would copy all of them once more.
        let answers = match pipeline.ignore_errors().query_async(connection).await? {
            Value::Array(answers) => answers,
            one => vec![one],
        };
        answers.into_iter().zip(checks).map(|(answer, &(_, token))| verdict(Ok(answer), token)).collect()
    }

    /// `HGET name fence`. `name` is a buffer, and the command is made with room for all of itself: in a pipeline of
    /// many, allocations dominate.
    fn command(&self, key: &Key, name: &mut String) -> Cmd {
        const HGET: &str = "HGET";
        const FENCE: &str = "fence";
        name.clear();
        name.extend([&self.begin, key.as_str(), "}"]);
        let mut command = Cmd::with_capacity(3, HGET.len() + name.len() + FENCE.len());
        command.arg(HGET).arg(name.as_str()).arg(FENCE);
        command
    }
}

/// The verdict by the field `fence`. An error of the server that is not about the value is returned: missing rights would
/// otherwise look like a mirror that never knows anything.
fn verdict(answer: RedisResult<Value>, token: Token) -> RedisResult<MirrorVerdict> {
    let fence = match answer.and_then(Value::extract_error) {
        Ok(Value::BulkString(text)) => std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()),
        Ok(_) => None,
        Err(error) if error.code() == Some("WRONGTYPE") => None,
        Err(error) => return Err(error),
    };
    // A number that cannot be a fence was not written by the mirror.
    let fence = fence.map(Token).filter(|&fence| fence.check("fence").is_ok());
    Ok(match fence {
        Some(fence) if token < fence => MirrorVerdict::Stale { fence },
        _ => MirrorVerdict::Unknown,
    })
}
