//! A lock that is one string key on one server, in its variants.

use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Cmd, cmd};
use uuid::Uuid;

use super::{DELETE_IF_OWN, Server};
use crate::rung::{GRANTED, Lock, Setting};
use crate::step::{Answer, Pass};

/// How long a client waits for an answer that is not the first one of an acquire.
const PATIENT: Duration = Duration::from_secs(10);
/// How long `WAIT` waits for a replica that does not answer, ms.
const WAIT_MS: u64 = 1_000;
const RENEW_IF_OWN: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

pub(super) struct Single {
    rung: u8,
    server: Server,
    /// The connection for `WAIT`, by mistake another one than that of the acquire.
    other: Option<Server>,
    key: String,
    ttl_ms: u64,
    name: String,
    /// The value of the key, where it is this holder's.
    value: String,
}

impl Single {
    pub(super) fn new(setting: &Setting, server: Server) -> Self {
        let Setting { rung, ref key, ttl_ms, ref name, .. } = *setting;
        let other = setting.is_mistaken.then(|| Server::new(&setting.servers));
        Self { rung, server, other, key: key.clone(), ttl_ms, name: name.clone(), value: String::new() }
    }

    /// The first request of an acquire.
    fn first(&self) -> Cmd {
        match self.rung {
            0 => cmd("SET").arg(&self.key).arg(&self.name).take(),
            1 | 2 => cmd("SETNX").arg(&self.key).arg(1).take(),
            _ => cmd("SET").arg(&self.key).arg(&self.value).arg("NX").arg("PX").arg(self.ttl_ms).take(),
        }
    }

    async fn try_acquire(&mut self, within: Duration) -> anyhow::Result<Answer> {
        self.value = if self.rung == 3 { "1".to_owned() } else { Uuid::new_v4().to_string() };
        let first = self.first();
        let is_set = match self.server.call::<redis::Value>(&first, within).await {
            Ok(answer) => matches!(answer, redis::Value::Okay | redis::Value::Int(1)),
            Err(error) if matches!(self.rung, 5 | 6) => match self.read_back().await? {
                // Nothing was done, or it has ended already.
                None => return Err(error),
                Some(value) => value == self.value,
            },
            Err(error) => return Err(error),
        };
        if !is_set {
            return Ok(Answer::Held);
        }
        match self.rung {
            2 => {
                let expire = cmd("PEXPIRE").arg(&self.key).arg(self.ttl_ms).take();
                self.server.call::<i64>(&expire, PATIENT).await?;
            }
            8 => {
                let wait = cmd("WAIT").arg(1).arg(WAIT_MS).take();
                let server = self.other.as_mut().unwrap_or(&mut self.server);
                if server.call::<i64>(&wait, PATIENT).await? == 0 {
                    self.delete_if_own(PATIENT).await?;
                    return Ok(Answer::Refused { why: "WAIT answered 0".into() });
                }
            }
            11 => return Ok(Answer::Granted { pass: Pass::Name(self.value.clone()) }),
            21 => {
                let token = cmd("RINGFENCE.TOKEN").arg(&self.key).arg(&self.value).take();
                return Ok(match self.server.call(&token, PATIENT).await? {
                    Some(token) => Answer::Granted { pass: Pass::Token(token) },
                    None => Answer::Refused { why: "it has ended".into() },
                });
            }
            _ => {}
        }
        Ok(GRANTED)
    }

    async fn read_back(&mut self) -> anyhow::Result<Option<String>> {
        self.server.call(&cmd("GET").arg(&self.key).take(), PATIENT).await
    }

    async fn delete_if_own(&mut self, within: Duration) -> anyhow::Result<bool> {
        let delete = cmd("EVAL").arg(DELETE_IF_OWN).arg(1).arg(&self.key).arg(&self.value).take();
        Ok(self.server.call::<i64>(&delete, within).await? == 1)
    }
}

impl Lock for Single {
    fn acquire(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(self.try_acquire(within))
    }

    fn touch(&mut self) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async {
            let renew =
                cmd("EVAL").arg(RENEW_IF_OWN).arg(1).arg(&self.key).arg(&self.value).arg(self.ttl_ms).take();
            let is_renewed = self.server.call::<i64>(&renew, PATIENT).await? == 1;
            Ok(if is_renewed { Answer::Alive } else { Answer::Lost })
        })
    }

    fn release(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async move {
            let is_deleted = match self.rung {
                0..=3 => self.server.call::<i64>(&cmd("DEL").arg(&self.key).take(), within).await? == 1,
                _ => self.delete_if_own(within).await?,
            };
            Ok(if is_deleted { Answer::Released } else { Answer::Lost })
        })
    }

    fn needs_renewing(&self) -> bool {
        self.rung == 6
    }
}
