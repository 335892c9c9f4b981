//! Polls every node and Redis during a run.
//!
//! Each observer has its own connections and short timeouts, so that a node that hangs does not delay the others. A poll
//! that fails records nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client as RedisClient};
use ringfence_harness::{Client, Reply};
use ringfence_laws::history::{History, LagSight, MirrorEntry, MirrorSight, Sight};
use ringfence_wire::{ClusterStatus, Key, Revision, Token};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::clock::Clock;

/// Poll intervals: of the status of nodes, of their metrics, and of Redis.
const NODES_EVERY: Duration = Duration::from_millis(200);
const LAGS_EVERY: Duration = Duration::from_millis(500);
const REDIS_EVERY: Duration = Duration::from_millis(100);
/// Bounds one poll.
const LOOK: Duration = Duration::from_millis(1_000);

/// The leader, as the nodes last said.
#[derive(Debug)]
pub struct Leader {
    /// The term and the node.
    known: Mutex<(u64, u64)>,
}

/// Reads the hashes of keys in Redis.
#[derive(Debug)]
pub struct MirrorReader {
    client: RedisClient,
    connection: Option<MultiplexedConnection>,
}

impl Default for Leader {
    /// Until a node has said: the first one.
    fn default() -> Self {
        Self { known: Mutex::new((0, 1)) }
    }
}

impl Leader {
    /// The latest known leader.
    pub fn get(&self) -> u64 {
        self.known().1
    }

    fn learn(&self, view: &ClusterStatus) {
        let mut known = self.known();
        if let Some(leader) = view.leader
            && view.term >= known.0
        {
            *known = (view.term, leader);
        }
    }

    fn known(&self) -> MutexGuard<'_, (u64, u64)> {
        self.known.lock().expect("no panic while the leader is locked")
    }
}

/// Adds an observation to the history.
fn note(history: &Mutex<History>, add: impl FnOnce(&mut History)) {
    add(&mut history.lock().expect("no panic while the history is locked"));
}

/// Polls the status of nodes, whose ids start at 1, until it is dropped.
pub async fn watch_nodes(clock: Clock, clients: &[Client], leader: &Leader, history: &Mutex<History>) {
    join_all(clients.iter().zip(1..).map(async |(client, node)| {
        let client = client.within(LOOK);
        let mut ticks = ticks(NODES_EVERY);
        loop {
            ticks.tick().await;
            let sent_us = clock.now_us();
            let Ok(Reply::Done { body: view, .. }) = client.cluster().await else { continue };
            leader.learn(&view);
            let sight = Sight {
                sent_us,
                ended_us: clock.now_us(),
                node,
                role: view.role,
                term: view.term,
                leader: view.leader,
                applied_index: view.applied_index,
                revision: view.revision,
                at_ms: view.at_ms,
            };
            note(history, |history| history.sights.push(sight));
        }
    }))
    .await;
}

/// Polls the loop lag of nodes, whose ids start at 1, until it is dropped.
pub async fn watch_lags(clock: Clock, clients: &[Client], history: &Mutex<History>) {
    join_all(clients.iter().zip(1..).map(async |(client, node)| {
        let client = client.within(LOOK);
        let mut ticks = ticks(LAGS_EVERY);
        loop {
            ticks.tick().await;
            let sent_us = clock.now_us();
            let Ok(answer) = client.raw("GET", "/metrics", "").await else { continue };
            let Some((samples, longer)) = lags(&String::from_utf8_lossy(&answer.body)) else { continue };
            let sight = LagSight { sent_us, ended_us: clock.now_us(), node, samples, longer };
            note(history, |history| history.lags.push(sight));
        }
    }))
    .await;
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The number of samples, and for each bucket, in milliseconds, how many were longer.
fn lags(metrics: &str) -> Option<(u64, BTreeMap<u64, u64>)> {
    let value = |rest: &str| rest.trim().parse::<u64>().ok();
    let count = metrics.lines().find_map(|line| line.strip_prefix("ringfence_loop_lag_seconds_count"))?;
    let samples = value(count)?;
    let buckets = metrics.lines().filter_map(|line| {
        let (end, count) = line.strip_prefix("ringfence_loop_lag_seconds_bucket{le=\"")?.split_once("\"}")?;
        let ms = (end.parse::<f64>().ok().filter(|end| end.is_finite())? * 1_000.0) as u64;
        (ms > 0).then_some((ms, samples.saturating_sub(value(count)?)))
    });
    Some((samples, buckets.collect()))
}

/// Polls `keys` in the Redis at `url` until it is dropped. Fails on a hash that no mirror writes.
pub async fn watch_mirror(
    clock: Clock,
    url: &str,
    keys: &[Key],
    history: &Mutex<History>,
) -> anyhow::Result<()> {
    let mut reader = MirrorReader::new(url)?;
    let mut ticks = ticks(REDIS_EVERY);
    loop {
        ticks.tick().await;
        let sent_us = clock.now_us();
        let Some(entries) = reader.read(keys).await? else { continue };
        let ended_us = clock.now_us();
        let sight = |(key, entry): (&Key, _)| MirrorSight { sent_us, ended_us, key: key.clone(), entry };
        note(history, |history| history.mirror.extend(keys.iter().zip(entries).map(sight)));
    }
}

impl MirrorReader {
    /// A reader of the Redis at `url`.
    pub fn new(url: &str) -> anyhow::Result<Self> {
        let client = RedisClient::open(url).with_context(|| format!("{url} is not the URL of a Redis"))?;
        Ok(Self { client, connection: None })
    }

    /// The hashes of `keys`; `None` if Redis does not answer. Fails on a hash that no mirror writes.
    pub async fn read(&mut self, keys: &[Key]) -> anyhow::Result<Option<Vec<Option<MirrorEntry>>>> {
        let Some(connection) = self.connected().await else { return Ok(None) };
        let mut pipeline = redis::Pipeline::with_capacity(keys.len());
        for key in keys {
            pipeline
                .cmd("HMGET")
                .arg(format!("ringfence:{{{key}}}"))
                .arg(&["rev", "fence", "token", "state"]);
        }
        let answers: Result<Vec<[Option<String>; 4]>, _> = pipeline.query_async(connection).await;
        let Ok(answers) = answers else {
            self.connection = None;
            return Ok(None);
        };
        ensure!(answers.len() == keys.len(), "Redis gave {} answers for {} keys", answers.len(), keys.len());
        let entries = answers.into_iter().zip(keys).map(|(fields, key)| {
            entry(&fields).with_context(|| format!("not a hash of a mirror, for {key}: {fields:?}"))
        });
        entries.collect::<anyhow::Result<_>>().map(Some)
    }

    async fn connected(&mut self) -> Option<&mut MultiplexedConnection> {
        if self.connection.is_none() {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(LOOK))
                .set_response_timeout(Some(LOOK));
            self.connection = self.client.get_multiplexed_async_connection_with_config(&config).await.ok();
        }
        self.connection.as_mut()
    }
}

fn entry([rev, fence, token, state]: &[Option<String>; 4]) -> anyhow::Result<Option<MirrorEntry>> {
    if [rev, fence, token, state].iter().all(|field| field.is_none()) {
        return Ok(None);
    }
    let number = |field: &Option<String>| -> anyhow::Result<u64> {
        Ok(field.as_deref().context("a field is missing")?.parse()?)
    };
    let held = match state.as_deref() {
        Some("held") => true,
        Some("free") => false,
        _ => anyhow::bail!("its state is neither held nor free"),
    };
    let (rev, fence, token) = (Revision(number(rev)?), Token(number(fence)?), Token(number(token)?));
    Ok(Some(MirrorEntry { rev, fence, token, held }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;

    fn fields(texts: [&str; 4]) -> [Option<String>; 4] {
        texts.map(|text| (!text.is_empty()).then(|| text.to_owned()))
    }

    #[test]
    fn lags_are_read_from_metrics() {
        let metrics = "# TYPE ringfence_loop_lag_seconds histogram\n\
            ringfence_loop_lag_seconds_bucket{le=\"0.00025\"} 5\n\
            ringfence_loop_lag_seconds_bucket{le=\"0.25\"} 97\n\
            ringfence_loop_lag_seconds_bucket{le=\"1\"} 99\n\
            ringfence_loop_lag_seconds_bucket{le=\"+Inf\"} 100\n\
            ringfence_loop_lag_seconds_sum 7.5\n\
            ringfence_loop_lag_seconds_count 100\n";
        assert_eq!(lags(metrics), Some((100, BTreeMap::from([(250, 3), (1_000, 1)]))));
        assert_eq!(lags("ringfence_up 1"), None);
    }

    #[test]
    fn an_incomplete_hash_is_an_error() {
        assert_eq!(entry(&fields(["", "", "", ""])).unwrap(), None);
        let whole = entry(&fields(["9", "7", "8", "held"])).unwrap().unwrap();
        assert_eq!(whole, MirrorEntry { rev: Revision(9), fence: Token(7), token: Token(8), held: true });
        for wrong in [["9", "7", "", "free"], ["9", "x", "0", "free"], ["9", "7", "0", "busy"]] {
            assert!(entry(&fields(wrong)).is_err(), "{wrong:?}");
        }
    }
}
