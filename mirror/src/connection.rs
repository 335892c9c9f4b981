//! The commands to one Redis master, over one connection.
//!
//! Each ends within [`TIMEOUT`](crate::settings::TIMEOUT). Nothing is retried here: after an error it is unknown what
//! Redis did, and the caller starts again on another connection.

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use ringfence_wire::{Key, Revision};

use crate::hash::{FIELDS, Fields, number};
use crate::redis_url::Address;
use crate::settings::Config;
use crate::{Identity, KeyState};

const FENCE: &str = include_str!("../lua/fence.lua");
const MARKER: &str = include_str!("../lua/marker.lua");

/// A connection whose scripts are loaded.
pub(crate) struct Connection<'a> {
    pub(crate) redis: MultiplexedConnection,
    fence_script: String,
    marker_script: String,
    config: &'a Config,
}

/// The outcome of writing one hash, and what it holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) change: Change,
    pub(crate) rev: Revision,
    pub(crate) fence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The hash was as new, or newer.
    None,
    Written,
    /// Written over damage, or over what was to be replaced.
    Replaced,
}

/// The outcome of claiming a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// The marker already named this cluster.
    Held,
    /// There was no marker.
    Vacant,
    /// The marker named another cluster, which is gone or was to be replaced.
    TakenOver(Identity),
    /// Nothing was changed. `marker` is all that the marker says, as one text; empty if there is none.
    Refused { marker: String, owner: Option<Identity> },
}

/// Whether the connection is of no more use after this error: Redis is gone, another server, or does not know the scripts
/// (it was emptied or is new). Other errors concern one command, as when memory is full.
pub(crate) fn is_fatal(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, MasterDown, NoScript, ReadOnly};
    match error.kind() {
        ErrorKind::Server(kind) => matches!(kind, NoScript | ReadOnly | MasterDown | BusyLoading),
        ErrorKind::Extension => false,
        _ => true,
    }
}

/// Whether the slot of a key is not served here now: it has moved, is moving, or nobody serves it. Other keys are not
/// affected.
pub(crate) fn is_slot_error(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    matches!(error.kind(), ErrorKind::Server(Moved | Ask | TryAgain | ClusterDown))
}

impl<'a> Connection<'a> {
    pub(crate) async fn open(config: &'a Config, address: &Address) -> Result<Self, RedisError> {
        let mut redis = config.connect(address).await?;
        let mut load =
            async |script| redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut redis).await;
        let (fence_script, marker_script) = (load(FENCE).await?, load(MARKER).await?);
        Ok(Self { redis, fence_script, marker_script, config })
    }

    /// Writes these states, of one table at `revision`, each unless its hash is as new. With `replaces`, which has the
    /// hash read for each state, a hash that still holds that is overwritten in any case.
    pub(crate) async fn write(
        &self,
        revision: Revision,
        states: &[KeyState],
        replaces: &[Fields],
    ) -> Result<Vec<Result<Written, RedisError>>, RedisError> {
        let retention_ms = u64::try_from(self.config.settings.retention.as_millis()).unwrap_or(u64::MAX);
        let mut pipeline = pipeline(states.len());
        for (index, state) in states.iter().enumerate() {
            let command = pipeline.cmd("EVALSHA").arg(&self.fence_script).arg(1);
            command.arg(self.config.names.hash(&state.key)).arg(&state.fields(revision)[..]);
            command.arg(if state.is_held() { 0 } else { retention_ms });
            if let Some(read) = replaces.get(index) {
                command.arg(&read[..]);
            }
        }
        let written = |(change, rev, fence): (u8, Vec<u8>, Vec<u8>)| {
            let change = match change {
                0 => Change::None,
                1 => Change::Written,
                _ => Change::Replaced,
            };
            Written { change, rev: Revision(number(&rev).unwrap_or(0)), fence: number(&fence).unwrap_or(0) }
        };
        let answers: Vec<Result<_, RedisError>> = self.run(&pipeline).await?;
        Ok(answers.into_iter().map(|answer| answer.map(written)).collect())
    }

    /// Reads the hashes of these keys, in their order. `None` where there is none, or it cannot be read now.
    pub(crate) async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Fields>>, RedisError> {
        let mut pipeline = pipeline(keys.len());
        for key in keys {
            pipeline.cmd("HMGET").arg(self.config.names.hash(key)).arg(&FIELDS);
        }
        type Values = Vec<Option<Vec<u8>>>;
        let fields = |answer: Result<Values, RedisError>| match answer {
            Ok(values) if values.iter().all(Option::is_none) => Ok(None),
            Ok(values) => {
                let values: Vec<_> = values.into_iter().map(Option::unwrap_or_default).collect();
                let wrong = |_| RedisError::from((ErrorKind::Parse, "HMGET answers a value per field"));
                Fields::try_from(values).map(Some).map_err(wrong)
            }
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(Some(Fields::default())),
            Err(error) if is_fatal(&error) => Err(error),
            Err(_) => Ok(None),
        };
        self.run(&pipeline).await?.into_iter().map(fields).collect()
    }

    /// The next matching names, and the next cursor; 0 at the end.
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

    /// Claims the master for this cluster, which has reached `revision`. Another cluster's marker is replaced only if it
    /// is `seen`, or names the cluster in the setting `take_over`.
    pub(crate) async fn claim(
        &self,
        marker: &str,
        identity: Identity,
        revision: Revision,
        seen: &str,
    ) -> Result<Claimed, RedisError> {
        let take_over = self.config.settings.take_over;
        let mut claim = redis::cmd("EVALSHA");
        claim.arg(&self.marker_script).arg(1).arg(marker);
        claim.arg(identity.cluster_id.to_string()).arg(identity.first_revision.0).arg(revision.0);
        claim.arg(seen).arg(take_over.map(|cluster| cluster.to_string()).unwrap_or_default());
        let (outcome, marker, cluster, first): (u8, String, String, u64) =
            claim.query_async(&mut self.redis.clone()).await?;
        let first_revision = Revision(first);
        let found = Identity { first_revision, cluster_id: cluster.parse().unwrap_or_default() };
        Ok(match outcome {
            0 => Claimed::Held,
            1 => Claimed::Vacant,
            2 => Claimed::TakenOver(found),
            _ => Claimed::Refused { marker, owner: (!cluster.is_empty()).then_some(found) },
        })
    }

    /// The number of keys evicted since Redis started; `None` without the right to ask.
    pub(crate) async fn evicted(&self) -> Result<Option<u64>, RedisError> {
        match redis::cmd("INFO").arg("stats").query_async::<String>(&mut self.redis.clone()).await {
            Ok(info) => {
                Ok(info.lines().find_map(|line| line.strip_prefix("evicted_keys:")?.trim().parse().ok()))
            }
            Err(error) if is_fatal(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Deletes hashes and markers by their names in Redis. Returns how many remain because their slots are not served here.
    pub(crate) async fn remove(&self, names: &[Vec<u8>]) -> Result<u64, RedisError> {
        // In a Redis Cluster, one command takes keys of one slot only.
        let mut pipeline = pipeline(names.len());
        for name in names {
            pipeline.cmd("DEL").arg(name);
        }
        let mut left = 0;
        for answer in self.run::<Result<Value, RedisError>>(&pipeline).await? {
            match answer {
                Err(error) if is_slot_error(&error) => left += 1,
                answer => drop(answer?),
            }
        }
        Ok(left)
    }

    /// The answer to each command. An error is one of the connection.
    async fn run<T: redis::FromRedisValue>(&self, pipeline: &Pipeline) -> Result<Vec<T>, RedisError> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        pipeline.query_async(&mut self.redis.clone()).await
    }
}

/// A pipeline in which each command has its own answer or error.
fn pipeline(commands: usize) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands);
    pipeline.ignore_errors();
    pipeline
}
