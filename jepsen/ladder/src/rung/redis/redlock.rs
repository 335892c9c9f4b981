//! Redlock: the lock is held by the client that has set its value on a majority of five servers, for the time to live less
//! what that took and less the allowed drift of clocks (redis.io, "Distributed Locks with Redis").

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{BoxFuture, join_all};
use redis::{Value, cmd};
use uuid::Uuid;

use super::{DELETE_IF_OWN, Server};
use crate::rung::{GRANTED, Lock, Setting};
use crate::step::Answer;

pub(super) struct Redlock {
    servers: Vec<Server>,
    key: String,
    ttl_ms: u64,
    value: String,
    /// Until when the client counts itself the holder, by the time of day, as the libraries do: `time.time()`, `Date.now()`,
    /// `System.currentTimeMillis()`.
    valid_until_ms: i128,
}

impl Redlock {
    pub(super) fn new(setting: &Setting, servers: Vec<Server>) -> Self {
        let key = setting.key.clone();
        Self { servers, key, ttl_ms: setting.ttl_ms, value: String::new(), valid_until_ms: 0 }
    }

    async fn try_acquire(&mut self, within: Duration) -> anyhow::Result<Answer> {
        self.value = Uuid::new_v4().to_string();
        // Of the time to live, 1 % and 2 ms.
        let drift_ms = self.ttl_ms / 100 + 2;
        self.valid_until_ms = now_ms() + i128::from(self.ttl_ms - drift_ms);
        let set = cmd("SET").arg(&self.key).arg(&self.value).arg("NX").arg("PX").arg(self.ttl_ms).take();
        let answers =
            join_all(self.servers.iter_mut().map(|server| server.call::<Value>(&set, within))).await;
        let granted = answers.iter().filter(|answer| matches!(answer, Ok(Value::Okay))).count();
        let held = answers.iter().filter(|answer| matches!(answer, Ok(Value::Nil))).count();
        let majority = self.servers.len() / 2 + 1;
        if granted >= majority && self.is_valid() {
            return Ok(GRANTED);
        }
        self.delete_if_own(within).await;
        Ok(match held >= majority {
            true => Answer::Held,
            false => {
                Answer::Refused { why: format!("{granted} of {} servers granted it", self.servers.len()) }
            }
        })
    }

    /// From all servers, also those that did not seem to grant it. Returns on how many it was deleted, and how many did not
    /// answer.
    async fn delete_if_own(&mut self, within: Duration) -> (usize, usize) {
        let delete = cmd("EVAL").arg(DELETE_IF_OWN).arg(1).arg(&self.key).arg(&self.value).take();
        let answers =
            join_all(self.servers.iter_mut().map(|server| server.call::<i64>(&delete, within))).await;
        let count = |is: fn(&anyhow::Result<i64>) -> bool| answers.iter().filter(|answer| is(answer)).count();
        (count(|answer| matches!(answer, Ok(1))), count(Result::is_err))
    }
}

impl Lock for Redlock {
    fn acquire(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(self.try_acquire(within))
    }

    fn touch(&mut self) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async { anyhow::bail!("it is not renewed") })
    }

    fn release(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async move {
            Ok(match self.delete_if_own(within).await {
                (_, failed) if failed > self.servers.len() / 2 => {
                    Answer::Unsure { why: format!("{failed} servers did not answer") }
                }
                (0, _) => Answer::Lost,
                _ => Answer::Released,
            })
        })
    }

    fn is_valid(&self) -> bool {
        now_ms() < self.valid_until_ms
    }
}

fn now_ms() -> i128 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_millis() as i128,
        Err(before) => -(before.duration().as_millis() as i128),
    }
}
