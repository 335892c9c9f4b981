//! Asks the Redis mirror whether a token is dead, in one round trip: right to reject by, and never a reason to accept.
//!
//! The mirror keeps a hash for each key, whose field `fence` is below or at the key's fence in the cluster, however old it
//! is. So a token below it is dead for good. Whatever else stands there (nothing, another kind of value, no number) says
//! nothing about any token. A guard that must know asks the cluster.

use redis::aio::ConnectionLike;
use redis::{Cmd, RedisResult, Value};
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
    /// What the names of all hashes begin with, up to the key.
    begin: String,
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
        Self { begin: prefix.into() + ":{" }
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
        let answer = self.ask(key, &mut String::new()).query_async(connection).await;
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
        let (mut pipeline, mut name) = (redis::Pipeline::with_capacity(checks.len()), String::new());
        for (key, _) in checks {
            pipeline.add_command(self.ask(key, &mut name));
        }
        // As they came: each conversion goes through all of them once more.
        let answers = match pipeline.ignore_errors().query_async(connection).await? {
            Value::Array(answers) => answers,
            one => vec![one],
        };
        answers.into_iter().zip(checks).map(|(answer, &(_, token))| verdict(Ok(answer), token)).collect()
    }

    /// The command that asks for the fence. `name` is only memory to write in, and `command` has room for all of itself:
    /// of many in a pipeline, what each takes from the allocator is what counts.
    fn ask(&self, key: &Key, name: &mut String) -> Cmd {
        const HGET: &str = "HGET";
        const FENCE: &str = "fence";
        name.clear();
        name.extend([&self.begin, key.as_str(), "}"]);
        let mut command = Cmd::with_capacity(3, HGET.len() + name.len() + FENCE.len());
        command.arg(HGET).arg(name.as_str()).arg(FENCE);
        command
    }
}

/// The verdict by the field `fence`. An error of the server other than about the value is one for the caller: rights that
/// are missing would else look like a mirror that never knows anything.
fn verdict(answer: RedisResult<Value>, token: Token) -> RedisResult<MirrorVerdict> {
    let fence = match answer.and_then(Value::extract_error) {
        Ok(Value::BulkString(text)) => std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()),
        Ok(_) => None,
        Err(error) if error.code() == Some("WRONGTYPE") => None,
        Err(error) => return Err(error),
    };
    // A number that no fence can be was written by a foreign hand.
    let fence = fence.map(Token).filter(|&fence| claim::check("fence", fence).is_ok());
    Ok(match fence {
        Some(fence) if token < fence => MirrorVerdict::Stale { fence },
        _ => MirrorVerdict::Unknown,
    })
}
