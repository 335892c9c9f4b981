//! What is said to one Redis master, over one connection.
//!
//! Every command ends within [`TIMEOUT`]. Nothing is repeated here: whoever got an error does not know what Redis did,
//! and has to begin again on another connection.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use ringfence_mutant::{Mutant, is};
use ringfence_wire::{Key, Revision};
use uuid::Uuid;

use crate::hash::{FIELDS, Fields, Standing, number};
use crate::marker::{Marker, read_marker};
use crate::names::Names;
use crate::{Identity, KeyState};

/// Bounds each command, so that a Redis that does not answer is noticed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

const FENCE: &str = include_str!("../lua/fence.lua");
const MARKER: &str = include_str!("../lua/marker.lua");

/// A connection whose scripts are loaded.
#[derive(Clone)]
pub(crate) struct Connection {
    redis: MultiplexedConnection,
    fence: String,
    marker: String,
    names: Names,
    retention_ms: u64,
}

/// What fence.lua answers.
type FenceAnswer = (u8, Vec<u8>, Vec<u8>);

/// What became of one hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) done: Done,
    /// What stands now.
    pub(crate) rev: Revision,
    pub(crate) fence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// What stands is as new.
    Nothing,
    Written,
    /// Written in place of damage, or of what was to be replaced.
    Replaced,
}

/// What was found where the marker of this cluster now is, or is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Own,
    Nothing,
    /// That of a cluster that is gone, or was to be replaced.
    Former(Identity),
    /// It was left as it was.
    Left(Left),
}

/// A marker that was left as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// All that it says, in one text; empty where there is none.
    pub(crate) seen: String,
    /// Whose it is.
    pub(crate) owner: Option<Identity>,
}

/// A pipeline in which each command has its own answer or error.
fn pipeline(commands: usize) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands);
    pipeline.ignore_errors();
    pipeline
}

/// Connects within [`TIMEOUT`].
pub(crate) async fn connect(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// Whether an error says that this connection is of no more use: that Redis is gone, another, or does not know the
/// scripts (it was emptied or is new). Others concern one command, as when memory is full.
pub(crate) fn is_final(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, MasterDown, NoScript, ReadOnly};
    match error.kind() {
        ErrorKind::Server(kind) => matches!(kind, NoScript | ReadOnly | MasterDown | BusyLoading),
        ErrorKind::Extension => false,
        _ => true,
    }
}

/// Whether an error says that the slot of a key is not served here now: it has moved, it is moving, or nobody serves it.
/// It says nothing of other keys.
pub(crate) fn is_elsewhere(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    matches!(error.kind(), ErrorKind::Server(Moved | Ask | TryAgain | ClusterDown))
}

impl Connection {
    pub(crate) async fn open(
        client: &Client,
        names: &Names,
        retention: Duration,
    ) -> Result<Self, RedisError> {
        let mut redis = connect(client).await?;
        let mut load =
            async |script| redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut redis).await;
        let fence = if is(Mutant::MirrorsBlindly) {
            &FENCE.replace("rev >= tonumber(ARGV[1])", "false")
        } else {
            FENCE
        };
        let (fence, marker) = (load(fence).await?, load(MARKER).await?);
        let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        Ok(Self { redis, fence, marker, names: names.clone(), retention_ms })
    }

    /// Writes these states of one table, each unless what stands is as new.
    pub(crate) async fn write(
        &self,
        revision: Revision,
        states: &[KeyState],
    ) -> Result<Vec<Result<Written, RedisError>>, RedisError> {
        let mut pipeline = pipeline(states.len());
        for state in states {
            pipeline.add_command(self.fence_command(revision, state));
        }
        self.written(&pipeline).await
    }

    /// Puts these states in place of what was read, where that still stands.
    pub(crate) async fn replace(
        &self,
        revision: Revision,
        states: &[(KeyState, Fields)],
    ) -> Result<Vec<Result<Written, RedisError>>, RedisError> {
        let mut pipeline = pipeline(states.len());
        for (state, read) in states {
            let mut command = self.fence_command(revision, state);
            command.arg(&read[..]);
            pipeline.add_command(command);
        }
        self.written(&pipeline).await
    }

    fn fence_command(&self, revision: Revision, state: &KeyState) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.fence).arg(1).arg(self.names.hash(&state.key));
        command.arg(&state.fields(revision)[..]);
        command.arg(if state.is_held() { 0 } else { self.retention_ms });
        command
    }

    async fn written(&self, pipeline: &Pipeline) -> Result<Vec<Result<Written, RedisError>>, RedisError> {
        let answers: Vec<Result<FenceAnswer, RedisError>> = self.run(pipeline).await?;
        let written = |(done, rev, fence): FenceAnswer| {
            let done = match done {
                0 => Done::Nothing,
                1 => Done::Written,
                _ => Done::Replaced,
            };
            Written { done, rev: Revision(number(&rev).unwrap_or(0)), fence: number(&fence).unwrap_or(0) }
        };
        Ok(answers.into_iter().map(|answer| answer.map(written)).collect())
    }

    /// Reads the hashes of these keys, in their order.
    pub(crate) async fn read<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k Key>,
    ) -> Result<Vec<Standing>, RedisError> {
        let mut pipeline = pipeline(0);
        for key in keys {
            pipeline.cmd("HMGET").arg(self.names.hash(key)).arg(&FIELDS);
        }
        let answers: Vec<Result<Vec<Option<Vec<u8>>>, RedisError>> = self.run(&pipeline).await?;
        answers.into_iter().map(Self::standing).collect()
    }

    fn standing(answer: Result<Vec<Option<Vec<u8>>>, RedisError>) -> Result<Standing, RedisError> {
        match answer {
            Ok(fields) if fields.iter().all(Option::is_none) => Ok(Standing::Absent),
            Ok(fields) => {
                let fields = fields.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>();
                let fields = <Fields>::try_from(fields)
                    .map_err(|_| RedisError::from((ErrorKind::Parse, "HMGET answers a value per field")))?;
                Ok(Standing::Hash(Box::new(fields)))
            }
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(Standing::WrongType),
            Err(error) if !is_final(&error) => Ok(Standing::Unread),
            Err(error) => Err(error),
        }
    }

    /// The next names that match, and where to go on; 0 at the end.
    pub(crate) async fn scan(
        &self,
        pattern: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(u64, Vec<Vec<u8>>), RedisError> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(count);
        scan.query_async(&mut self.redis.clone()).await
    }

    /// Claims the master for this cluster, which has come to `revision`. Another's marker is replaced only if it is
    /// what was `seen`, or of the cluster `from`.
    pub(crate) async fn claim(
        &self,
        marker: &str,
        identity: Identity,
        revision: Revision,
        seen: &str,
        from: Option<Uuid>,
    ) -> Result<Found, RedisError> {
        let mut claim = redis::cmd("EVALSHA");
        claim.arg(&self.marker).arg(1).arg(marker);
        claim.arg(identity.cluster_id.to_string()).arg(identity.first_revision.0).arg(revision.0);
        claim.arg(seen).arg(from.map(|from| from.to_string()).unwrap_or_default());
        let (done, seen, cluster, first): (u8, String, String, u64) =
            claim.query_async(&mut self.redis.clone()).await?;
        let found = Identity {
            first_revision: Revision(first),
            cluster_id: Uuid::parse_str(&cluster).unwrap_or_default(),
        };
        Ok(match done {
            0 => Found::Own,
            1 => Found::Nothing,
            2 => Found::Former(found),
            _ => Found::Left(Left { owner: (!cluster.is_empty()).then_some(found), seen }),
        })
    }

    /// The marker under one of these names.
    pub(crate) async fn marker(&self, names: &[String]) -> Result<Option<Marker>, RedisError> {
        read_marker(&mut self.redis.clone(), names).await
    }

    /// How many keys this Redis has evicted since it was started; `None` where we may not know.
    pub(crate) async fn evicted(&self) -> Result<Option<u64>, RedisError> {
        match redis::cmd("INFO").arg("stats").query_async::<String>(&mut self.redis.clone()).await {
            Ok(info) => {
                Ok(info.lines().find_map(|line| line.strip_prefix("evicted_keys:")?.trim().parse().ok()))
            }
            Err(error) if is_final(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Removes keys by name, and tells how many it had to leave because their slots are not served here.
    pub(crate) async fn remove(&self, names: &[Vec<u8>]) -> Result<u64, RedisError> {
        // In a Redis Cluster one command takes keys of one slot only.
        let mut pipeline = pipeline(names.len());
        for name in names {
            pipeline.cmd("DEL").arg(name);
        }
        let removed: Vec<Result<Value, RedisError>> = self.run(&pipeline).await?;
        let mut left = 0;
        for answer in removed {
            match answer {
                Err(error) if is_elsewhere(&error) => left += 1,
                answer => drop(answer?),
            }
        }
        Ok(left)
    }

    /// The answer of each command. An error is one of the connection.
    async fn run<T: redis::FromRedisValue>(&self, pipeline: &Pipeline) -> Result<Vec<T>, RedisError> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        pipeline.query_async(&mut self.redis.clone()).await
    }
}
