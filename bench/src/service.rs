//! The services that are measured: each is started for its turn, and ended after it.

mod echo;
mod etcd;
mod mirror;
pub(crate) mod redis;
mod redlock;
mod ringfence;
mod zookeeper;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::job::Job;
use crate::load::Work;

pub(crate) use echo::serve_echo;
pub(crate) use ringfence::Ringfence;

/// One service, with all its processes.
pub(crate) trait Service {
    /// Its processes.
    fn pids(&self) -> Vec<u32>;

    /// How often all of them together have flushed their logs so far, where they tell.
    fn flushes(&self) -> BoxFuture<'_, Option<u64>>;

    /// A client with connections of its own.
    fn locker(&self) -> BoxFuture<'_, Result<Box<dyn Locker>>>;

    /// A client that shares its connections with all others that this makes, as the tasks of one program do; `None` where
    /// there is no such thing.
    fn task(&self) -> BoxFuture<'_, Result<Option<Box<dyn Locker>>>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// Somebody with connections of its own who does what is neither acquiring nor releasing one lock; `None` where it
    /// cannot be done.
    fn worker(&self, _job: Job, _number: usize) -> BoxFuture<'_, Result<Option<Box<dyn Work>>>> {
        std::future::ready(Ok(None)).boxed()
    }
}

/// A client that holds at most one lock at a time.
pub(crate) trait Locker: Send {
    /// Waits until it holds the lock.
    fn acquire<'a>(&'a mut self, key: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Lets go of what it holds.
    fn release(&mut self) -> BoxFuture<'_, Result<()>>;
}

/// What can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Three nodes.
    Ringfence(PathBuf),
    /// Three servers; its lock calls, or the one transaction that they consist of.
    Etcd { program: PathBuf, version: String, calls: etcd::Calls },
    /// Three servers, and the recipe as Curator has it.
    ZooKeeper { class_path: String },
    /// One server.
    Redis { always: bool },
    /// Five servers.
    Redlock,
    /// The Redis that three nodes of Ringfence publish their fences in, asked by the reader for that.
    Mirror(PathBuf),
    /// A server that does nothing but answer, on the stack that Ringfence is built on.
    Echo,
}

/// All that is installed, and the names of what is not.
pub(crate) fn installed(ringfence: &Path, etcds: &[PathBuf]) -> (Vec<Contender>, Vec<String>) {
    let (mut found, mut missing) = (vec![Contender::Ringfence(ringfence.to_owned())], Vec::new());
    for program in etcds {
        match etcd::version(program) {
            Ok(version) => {
                found.extend([etcd::Calls::Lock, etcd::Calls::Transaction].map(|calls| Contender::Etcd {
                    program: program.clone(),
                    version: version.clone(),
                    calls,
                }))
            }
            Err(error) => missing.push(format!("etcd: {error:#}")),
        }
    }
    match zookeeper::class_path() {
        Ok(class_path) => found.push(Contender::ZooKeeper { class_path }),
        Err(error) => missing.push(format!("ZooKeeper: {error:#}")),
    }
    match printed("redis-server", "--version") {
        Ok(_) => found.extend([
            Contender::Redis { always: false },
            Contender::Redis { always: true },
            Contender::Redlock,
            Contender::Mirror(ringfence.to_owned()),
        ]),
        Err(error) => missing.push(format!("Redis: {error:#}")),
    }
    found.push(Contender::Echo);
    (found, missing)
}

impl Contender {
    /// As it stands in tables.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Ringfence(_) => "ringfence".to_owned(),
            Self::Etcd { version, calls, .. } => format!("etcd {version} {calls}"),
            Self::ZooKeeper { .. } => "zookeeper".to_owned(),
            Self::Redis { always: false } => "redis".to_owned(),
            Self::Redis { always: true } => "redis fsync".to_owned(),
            Self::Redlock => "redlock of 5".to_owned(),
            Self::Mirror(_) => "mirror reader".to_owned(),
            Self::Echo => "(http echo)".to_owned(),
        }
    }

    /// Whether it can do this at all.
    pub(crate) fn can(&self, job: Job) -> bool {
        match (self, job) {
            (Self::Mirror(_), job) => job == Job::ReadLocally,
            (_, Job::OwnKey) => true,
            (Self::Etcd { calls: etcd::Calls::Transaction, .. } | Self::Echo, _) => false,
            (_, Job::OneKey) => true,
            (Self::Ringfence(_), Job::Read | Job::ReadLocally | Job::Batch(_)) => true,
            (Self::Etcd { .. }, job) => matches!(job, Job::Read | Job::ReadLocally),
            (Self::Redis { .. }, job) => matches!(job, Job::ReadLocally | Job::Write | Job::GuardedWrite),
            _ => false,
        }
    }

    /// Whether those who take locks can be tasks of one program.
    pub(crate) fn has_tasks(&self) -> bool {
        !matches!(self, Self::Redlock | Self::Echo | Self::Mirror(_))
    }

    /// Starts it, on nothing.
    pub(crate) async fn start(&self) -> Result<Box<dyn Service>> {
        Ok(match self {
            Self::Ringfence(program) => Box::new(ringfence::start(program).await?),
            Self::Etcd { program, calls, .. } => Box::new(etcd::start(program, *calls).await?),
            Self::ZooKeeper { class_path } => Box::new(zookeeper::start(class_path).await?),
            Self::Redis { always } => Box::new(redis::start(*always).await?),
            Self::Redlock => Box::new(redlock::start().await?),
            Self::Mirror(program) => Box::new(mirror::start(program).await?),
            Self::Echo => Box::new(echo::start().await?),
        })
    }
}

/// What a program that is installed prints.
fn printed(program: impl AsRef<Path>, argument: &str) -> Result<String> {
    let program = program.as_ref();
    let output = Command::new(program)
        .arg(argument)
        .output()
        .with_context(|| format!("{} is not installed", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
