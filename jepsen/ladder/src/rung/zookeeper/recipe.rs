//! A holder's client: the lock recipe as `InterProcessMutex` of Apache Curator plays it (LockInternals and
//! StandardLockInternalsDriver at commit 88dee99), by the same requests in the same order.
//!
//! Curator's `withProtection` puts a GUID into the name of the node. If the answer to its creation is lost, the client
//! looks for a node with that GUID. By mistake it can be left out: then nobody knows whose the node is. What Curator's retry
//! policy bounds goes on here until the session has ended.

use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use super::LOCKS;
use crate::rung::{Lock, Setting};
use crate::step::{Answer, Pass};

/// How long an acquire waits for the node before its own to go.
const IN_LINE: Duration = Duration::from_millis(50);
/// How long a server may be silent before the client connects to another one.
const SILENCE: Duration = Duration::from_millis(800);
/// How many digits ZooKeeper appends to the name of a sequential node.
const DIGITS: usize = 10;

pub(in crate::rung) struct Mutex {
    servers: String,
    /// The parent of its nodes.
    lock: String,
    ttl: Duration,
    shows_czxid: bool,
    has_guid: bool,
    session: Option<Client>,
    /// The path of the node that this holder has the lock by.
    node: String,
}

impl Mutex {
    pub(in crate::rung) fn new(setting: &Setting) -> Self {
        Self {
            servers: setting.servers.clone(),
            lock: format!("{LOCKS}/{}", setting.key),
            ttl: setting.ttl(),
            shows_czxid: setting.rung == 15,
            has_guid: !setting.is_mistaken,
            session: None,
            node: String::new(),
        }
    }

    /// The session, or a new one after it has ended.
    async fn session(&mut self) -> anyhow::Result<Client> {
        self.session = self.session.take().filter(|session| !session.state().is_terminated());
        if self.session.is_none() {
            // Without a holder nobody closes it: it ends by itself.
            let connector = Client::connector().with_detached();
            let connector = connector.with_session_timeout(self.ttl).with_connection_timeout(SILENCE);
            self.session = Some(loop {
                match connector.clone().connect(&self.servers).await {
                    Err(Error::Timeout) => {}
                    session => break session?,
                }
            });
        }
        self.session.clone().context("it was just made")
    }

    /// Creates a node in the line. No answer to that is awaited for longer than `within`.
    async fn stand_in_line(&self, session: &Client, within: Duration) -> anyhow::Result<String> {
        let guid = if self.has_guid { format!("_c_{}-", Uuid::new_v4()) } else { String::new() };
        let prefix = format!("{}/{guid}lock-", self.lock);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        loop {
            match timeout(within, session.create(&prefix, b"", &options)).await {
                Ok(Ok((_, sequence))) => return Ok(format!("{prefix}{sequence}")),
                Ok(Err(Error::NoNode)) => {
                    // Servers delete a container in which nobody is in line.
                    let mode = if self.has_guid { CreateMode::Container } else { CreateMode::Persistent };
                    let parents = mode.with_acls(Acls::anyone_all());
                    retried(|| session.mkdir(&self.lock, &parents)).await?;
                }
                Err(_) | Ok(Err(Error::ConnectionLoss | Error::Custom(_))) if self.has_guid => {
                    let nodes = retried(|| session.list_children(&self.lock)).await?;
                    if let Some(found) = nodes.iter().find(|node| node.starts_with(&guid)) {
                        return Ok(format!("{}/{found}", self.lock));
                    }
                }
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => bail!("no answer within {within:?}"),
            }
        }
    }

    /// Whether `own` is the lowest node, now or when the one before it has gone.
    async fn is_lowest(&self, session: &Client, own: &str) -> anyhow::Result<bool> {
        let deadline = Instant::now() + IN_LINE;
        loop {
            let mut nodes = retried(|| session.list_children(&self.lock)).await?;
            nodes.sort_by_key(|node| node[node.len().saturating_sub(DIGITS)..].to_owned());
            let place = nodes.iter().position(|node| own.ends_with(node)).context("its node is gone")?;
            let Some(before) = place.checked_sub(1) else { return Ok(true) };
            let before = format!("{}/{}", self.lock, nodes[before]);
            match retried(|| session.get_and_watch_data(&before)).await {
                Ok((.., watcher)) => {
                    if timeout_at(deadline, watcher.changed()).await.is_err() {
                        return Ok(false);
                    }
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn try_acquire(&mut self, within: Duration) -> anyhow::Result<Answer> {
        let session = self.session().await?;
        let node = self.stand_in_line(&session, within).await?;
        let is_lowest = self.is_lowest(&session, &node).await;
        if !matches!(is_lowest, Ok(true)) {
            // As Curator does after any error. The node may be gone with its session.
            let deleted = retried(|| session.delete(&node, None)).await;
            is_lowest?;
            deleted?;
            return Ok(Answer::Held);
        }
        let pass = match self.shows_czxid {
            true => {
                let stat = retried(|| session.check_stat(&node)).await?.context("its node is gone")?;
                Pass::Token(u64::try_from(stat.czxid)?)
            }
            false => Pass::Nothing,
        };
        self.node = node;
        Ok(Answer::Granted { pass })
    }

    async fn try_release(&mut self) -> anyhow::Result<Answer> {
        let session = self.session().await?;
        match retried(|| session.delete(&self.node, None)).await {
            Ok(()) => Ok(Answer::Released),
            Err(Error::NoNode) => Ok(Answer::Lost),
            Err(error) => Err(error.into()),
        }
    }
}

impl Lock for Mutex {
    fn acquire(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async move {
            let answer = self.try_acquire(within).await;
            let has_expired = self.session.as_ref().is_some_and(|session| session.state().is_terminated());
            if answer.is_err() && has_expired { self.try_acquire(within).await } else { answer }
        })
    }

    fn touch(&mut self) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async {
            let session = self.session().await?;
            let stat = retried(|| session.check_stat(&self.node)).await?;
            Ok(if stat.is_some() { Answer::Alive } else { Answer::Lost })
        })
    }

    fn release(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async move { timeout(within, self.try_release()).await? })
    }

    /// The session is kept alive by its client: without that it ends.
    fn stop_renewing(&mut self) {
        self.session = None;
    }
}

/// The answer to a request that is sent again when its connection is lost, until the session has ended.
async fn retried<T, F: Future<Output = Result<T, Error>>>(
    mut request: impl FnMut() -> F,
) -> Result<T, Error> {
    loop {
        match request().await {
            // The second one where a server was silent for too long.
            Err(Error::ConnectionLoss | Error::Custom(_)) => {}
            answer => return answer,
        }
    }
}
