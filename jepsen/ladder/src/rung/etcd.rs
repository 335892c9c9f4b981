//! Locks in etcd, by what `concurrency.Session` and `concurrency.Mutex` of its Go client send (v3.7.1), as JSON over HTTP,
//! which each server translates to the same calls of gRPC.
//!
//! A session is a lease that is kept alive. The lock is held by the oldest key under its prefix; a key is named after the
//! lease that it ends with. A holder here tries once (`Mutex.TryLock`): a key that is not the oldest is deleted.

mod api;
mod members;
mod session;

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::json;

use crate::rung::{Family, GRANTED, Lock, PLAIN, Rung, Setting, printed};
use crate::step::{Answer, Pass};

use api::{Api, PATIENT, bytes, number, oldest};
pub(super) use members::Members;
use session::Session;

const LOCK: Rung = Rung {
    number: 16,
    name: "etcd lock, no check",
    plays: "concurrency.NewSession, Mutex.TryLock, Mutex.Unlock of etcd's Go client (v3.7.1): a lease that is kept alive, a \
            key with it under the lock's prefix; the oldest key holds the lock. After an error the session is closed. The \
            storage is shown nothing.",
    family: Family::Etcd,
    // With the default timeout of elections a server grants no shorter one.
    ttl: Duration::from_secs(2),
    renewed: true,
    ..PLAIN
};

pub(super) const RUNGS: [Rung; 2] = [
    LOCK,
    Rung {
        number: 17,
        name: "etcd + create_revision",
        plays: "The same; the storage rejects a create_revision of the key smaller than one it has seen.",
        ..LOCK
    },
];

/// As in "etcd 3.4.23".
pub(super) fn version() -> Option<String> {
    let printed = printed("etcd", &["--version"])?;
    Some(format!("etcd {}", printed.lines().find_map(|line| line.strip_prefix("etcd Version: "))?))
}

/// Whether it finds the leases that have ended by the time of day, as it did before 3.5.
pub(crate) fn looks_at_time_of_day() -> bool {
    let version = version().unwrap_or_default();
    let mut numbers = version.trim_start_matches("etcd ").split('.').map_while(|it| it.parse::<u32>().ok());
    (numbers.next(), numbers.next()) < (Some(3), Some(5))
}

/// `Mutex`.
pub(super) struct Mutex {
    api: Api,
    /// Begins at another server: the answer that is lost is to be about the lock.
    sessions: Api,
    session: Option<Session>,
    name: String,
    ttl: Duration,
    /// The key that the lock is held by.
    key: Option<String>,
    shows_revision: bool,
}

impl Mutex {
    pub(super) fn new(setting: &Setting) -> anyhow::Result<Self> {
        let servers: Vec<SocketAddr> =
            setting.servers.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let api = Api::new(&servers);
        let mut sessions = api.clone();
        sessions.servers.rotate_right(1);
        Ok(Self {
            api,
            sessions,
            session: None,
            name: setting.key.clone(),
            ttl: setting.ttl(),
            key: None,
            shows_revision: setting.rung == 17,
        })
    }

    async fn try_acquire(&mut self, within: Duration) -> anyhow::Result<Answer> {
        let session = match self.session.take() {
            Some(session) if session.is_alive() => session,
            _ => Session::open(self.sessions.clone(), self.ttl).await?,
        };
        let answer = self.try_lock(session.lease(), within).await;
        if answer.is_ok() {
            self.session = Some(session);
        } else {
            session.close().await;
        }
        answer
    }

    /// `tryAcquire` and what `TryLock` makes of it.
    async fn try_lock(&mut self, lease: i64, within: Duration) -> anyhow::Result<Answer> {
        let prefix = format!("{}/", self.name);
        let key = format!("{prefix}{lease:x}");
        let get = json!({ "request_range": { "key": bytes(&key) } });
        let oldest = json!({ "request_range": oldest(&self.name) });
        let request = json!({
            "compare": [{ "key": bytes(&key), "target": "CREATE", "result": "EQUAL", "create_revision": "0" }],
            "success": [{ "request_put": { "key": bytes(&key), "lease": lease.to_string() } }, oldest],
            "failure": [get, oldest],
        });
        let answer = self.api.call("/v3/kv/txn", &request, within).await?;
        let found =
            |number: usize| &answer["responses"][number]["response_range"]["kvs"][0]["create_revision"];
        let revision = match answer["succeeded"].as_bool() {
            Some(true) => number(&answer["header"]["revision"])?,
            _ => number(found(0))?,
        };
        if number(found(1))? != revision {
            self.delete(&key, PATIENT).await?;
            return Ok(Answer::Held);
        }
        self.key = Some(key);
        Ok(if self.shows_revision {
            Answer::Granted { pass: Pass::Token(u64::try_from(revision)?) }
        } else {
            GRANTED
        })
    }

    /// Returns whether it was there.
    async fn delete(&mut self, key: &str, within: Duration) -> anyhow::Result<bool> {
        let answer = self.api.call("/v3/kv/deleterange", &json!({ "key": bytes(key) }), within).await?;
        Ok(number(&answer["deleted"])? == 1)
    }
}

impl Lock for Mutex {
    fn acquire(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(self.try_acquire(within))
    }

    fn touch(&mut self) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async {
            Ok(match &mut self.session {
                Some(session) => session.touch().await?,
                None => Answer::Lost,
            })
        })
    }

    fn release(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async move {
            let Some(key) = self.key.clone() else { return Ok(Answer::Lost) };
            let is_deleted = self.delete(&key, within).await;
            match self.session.take_if(|_| is_deleted.is_err()) {
                Some(session) => session.close().await,
                None => self.key = None,
            }
            Ok(if is_deleted? { Answer::Released } else { Answer::Lost })
        })
    }

    fn stop_renewing(&mut self) {
        self.session.iter_mut().for_each(Session::stop);
    }
}
