//! The measured services. Each is started for its turn and ended after it.

mod echo;
mod etcd;
mod hazelcast;
mod mirror;
mod nats;
pub(crate) mod redis;
mod resp;
mod ringfence;
mod zookeeper;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use ringfence_harness::Trio;

use crate::args::Program;
use crate::fetched::Fetched;
use crate::job::{Assignment, Job};
use crate::load::Worker;

pub(crate) use echo::serve_echo;
pub(crate) use ringfence::{GREEDY_REQUESTS_PER_S, Ringfence, Security, start as start_ringfence};

/// A running service.
pub(crate) trait Service {
    /// Its processes.
    fn pids(&self) -> Vec<u32>;

    /// The processes of its clients, beside this one.
    fn load_pids(&self) -> Vec<u32> {
        Vec::new()
    }

    /// How often all its processes have flushed their logs so far; `None` where they do not count that.
    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        std::future::ready(None).boxed()
    }

    /// A client for a job that it [can](Contender::can) do.
    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>>;
}

/// What a client holds, as long as this is kept.
pub(crate) type Held = Box<dyn Any + Send>;

/// How a leader is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    Killed,
    /// By SIGSTOP.
    Stopped,
}

/// A service that hands a lock on when its holder is gone.
pub(crate) trait Handing {
    /// Waits for the lock, with a client that outlives the leader, and of which the service knows for `ttl` that it lives.
    fn hold(&self, key: String, ttl: Duration) -> BoxFuture<'static, Result<Held>>;

    fn lose_leader(&self, loss: Loss) -> BoxFuture<'_, Result<()>>;
}

/// A service that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Three nodes.
    Ringfence(PathBuf, Security),
    /// Three nodes, over the Redis protocol.
    Resp(PathBuf),
    /// Three servers; by the calls of its lock service, or by the one transaction that these consist of.
    Etcd { program: PathBuf, version: String, calls: etcd::Calls },
    /// Three servers, by Curator's recipe.
    ZooKeeper { class_path: String },
    /// Three servers, each with a copy of a bucket of keys.
    Nats { program: PathBuf },
    /// Three members, which keep all in memory.
    Hazelcast { class_path: String },
    /// One server.
    Redis { always: bool },
    /// Five Redis servers.
    Redlock,
    /// The Redis that three nodes of Ringfence publish their fences in, read by the mirror's reader.
    Mirror(PathBuf),
    /// A server that only answers, on the HTTP stack that Ringfence is built on.
    Echo,
}

#[derive(Args)]
pub(crate) struct Services {
    #[command(flatten)]
    ringfence: Program,
    /// Path of etcd; repeatable, to compare versions [default: the one that `fetch` got, or `etcd`]
    #[arg(long)]
    etcd: Vec<PathBuf>,
    /// Also Ringfence with TLS between nodes, with TLS with clients, and with access rules as well
    #[arg(long)]
    tls: bool,
    /// Only services whose names contain one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

impl Services {
    /// The services that are installed and wanted. Prints which are not installed.
    pub(crate) fn found(&self) -> Result<Vec<Contender>> {
        let newest = || Fetched::Etcd.found().unwrap_or_else(|_| "etcd".into());
        let etcds = if self.etcd.is_empty() { vec![newest()] } else { self.etcd.clone() };
        let program = self.ringfence.path()?;
        let mut found = installed(&program, &etcds);
        if self.tls {
            let secured = [Security::Peers, Security::Clients, Security::Rules];
            found.splice(1..1, secured.map(|security| Contender::Ringfence(program.clone(), security)));
        }
        found.retain(|contender| is_wanted(&self.only, &contender.name()));
        ensure!(!found.is_empty(), "--only: no service has this in its name");
        Ok(found)
    }
}

/// Whether `name` contains one of `only`, or all names are wanted.
pub(crate) fn is_wanted(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|only| name.contains(only))
}

fn installed(ringfence: &Path, etcds: &[PathBuf]) -> Vec<Contender> {
    let plain = Contender::Ringfence(ringfence.to_owned(), Security::None);
    let mut found = vec![plain, Contender::Resp(ringfence.to_owned())];
    let left_out = |service: &str, error: anyhow::Error| eprintln!("left out: {service}: {error:#}");
    for program in etcds {
        match etcd::version(program) {
            Ok(version) => {
                found.extend([etcd::Calls::Lock, etcd::Calls::Transaction].map(|calls| Contender::Etcd {
                    program: program.clone(),
                    version: version.clone(),
                    calls,
                }))
            }
            Err(error) => left_out("etcd", error),
        }
    }
    match zookeeper::class_path() {
        Ok(class_path) => found.push(Contender::ZooKeeper { class_path }),
        Err(error) => left_out("ZooKeeper", error),
    }
    let fetched = [
        ("NATS", Fetched::Nats.found().map(|program| Contender::Nats { program })),
        ("Hazelcast", Fetched::class_path().map(|class_path| Contender::Hazelcast { class_path })),
    ];
    for (service, contender) in fetched {
        match contender {
            Ok(contender) => found.push(contender),
            Err(error) => left_out(service, error),
        }
    }
    match printed("redis-server", "--version") {
        Ok(_) => found.extend([
            Contender::Redis { always: false },
            Contender::Redis { always: true },
            Contender::Redlock,
            Contender::Mirror(ringfence.to_owned()),
        ]),
        Err(error) => left_out("Redis", error),
    }
    found.push(Contender::Echo);
    found
}

impl Contender {
    /// Its name in tables.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Ringfence(_, security) => security.name().to_owned(),
            Self::Resp(_) => "ringfence, RESP".to_owned(),
            Self::Etcd { version, calls, .. } => format!("etcd {version} {calls}"),
            Self::ZooKeeper { .. } => "zookeeper".to_owned(),
            Self::Nats { .. } => "nats kv, no expiry".to_owned(),
            Self::Hazelcast { .. } => "hazelcast, in memory".to_owned(),
            Self::Redis { always: false } => "redis".to_owned(),
            Self::Redis { always: true } => "redis fsync".to_owned(),
            Self::Redlock => "redlock of 5".to_owned(),
            Self::Mirror(_) => "mirror reader".to_owned(),
            Self::Echo => "(http echo)".to_owned(),
        }
    }

    /// Whether it can do this job.
    pub(crate) fn can(&self, job: Job) -> bool {
        match (self, job) {
            (Self::Mirror(_), job) => job == Job::ReadLocally,
            (_, Job::OwnKey) => true,
            (Self::Etcd { calls: etcd::Calls::Transaction, .. } | Self::Echo, _) => false,
            (_, Job::OneKey) => true,
            (Self::Ringfence(..), Job::Read | Job::ReadLocally | Job::Batch(_)) => true,
            (Self::Etcd { .. }, job) => matches!(job, Job::Read | Job::ReadLocally),
            (Self::Redis { .. }, job) => matches!(job, Job::ReadLocally | Job::Write | Job::GuardedWrite),
            _ => false,
        }
    }

    /// Whether its clients can be tasks of one program that share a connection.
    pub(crate) fn has_tasks(&self) -> bool {
        !matches!(self, Self::Redlock | Self::Echo | Self::Mirror(_))
    }

    /// Starts it without any data, to lose its leader; `None` where that is not measured.
    pub(crate) fn start_handing(&self) -> Option<LocalBoxFuture<'_, Result<Box<dyn Handing>>>> {
        async fn started<S: Handing + 'static>(
            start: impl Future<Output = Result<S>>,
        ) -> Result<Box<dyn Handing>> {
            Ok(Box::new(start.await?))
        }
        Some(match self {
            Self::Ringfence(program, security @ Security::None) => {
                started(ringfence::start(program, *security)).boxed_local()
            }
            Self::Etcd { program, calls: calls @ etcd::Calls::Lock, .. } => {
                started(etcd::start(program, *calls)).boxed_local()
            }
            Self::ZooKeeper { class_path } => started(zookeeper::start(class_path)).boxed_local(),
            _ => return None,
        })
    }

    /// Starts it without any data.
    pub(crate) async fn start(&self) -> Result<Box<dyn Service>> {
        Ok(match self {
            Self::Ringfence(program, security) => Box::new(ringfence::start(program, *security).await?),
            Self::Resp(program) => Box::new(resp::start(program).await?),
            Self::Etcd { program, calls, .. } => Box::new(etcd::start(program, *calls).await?),
            Self::ZooKeeper { class_path } => Box::new(zookeeper::start(class_path).await?),
            Self::Nats { program } => Box::new(nats::start(program).await?),
            Self::Hazelcast { class_path } => Box::new(hazelcast::start(class_path).await?),
            Self::Redis { always } => Box::new(redis::start(1, *always).await?),
            // Each flushes once a second: nobody who uses Redlock flushes more often.
            Self::Redlock => Box::new(redis::start(5, false).await?),
            Self::Mirror(program) => Box::new(mirror::start(program).await?),
            Self::Echo => Box::new(echo::start().await?),
        })
    }
}

/// How long a client waits before it tries again: 1 to 5 ms.
fn backoff() -> Duration {
    Duration::from_micros(fastrand::u64(1_000..5_000))
}

async fn lose(servers: &Trio, leader: usize, loss: Loss) -> Result<()> {
    match loss {
        Loss::Killed => servers.kill(leader)?,
        Loss::Stopped => servers.stop(leader).await?,
    }
    Ok(())
}

/// What a program prints when run with one argument.
fn printed(program: impl AsRef<Path>, argument: &str) -> Result<String> {
    let program = program.as_ref();
    let output = Command::new(program).arg(argument).output();
    let output = output.with_context(|| format!("{} is not installed", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
