//! The rungs: which locks are played, and what each family of them must provide.

pub(crate) mod etcd;
mod locked;
mod postgres;
mod redis;
mod resp;
mod ringfence;
mod zookeeper;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use futures_util::future::BoxFuture;

use crate::fault::Fault;
use crate::front::Front;
use crate::step::{Answer, Pass};

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// Its place on the ladder.
    pub number: u8,
    /// Its name in tables.
    pub name: &'static str,
    /// What its holders send, and whose program does the same.
    pub plays: &'static str,
    family: Family,
    /// The time to live of its locks in rounds that wait for their end: 1 s, or what its servers need.
    ttl: Duration,
    /// Whether the lock ends by itself when nobody renews it. Not so for a lock without a time to live, or one that ends
    /// with its connection.
    expires: bool,
    /// Whether a holder's client renews the lock in the background.
    renewed: bool,
    /// Whether the client counts by its own clock how long it may work, and says so when asked ([`Lock::is_valid`]).
    checks_clock: bool,
    /// Whether a crash between the requests of an acquire is worse than one after them.
    two_steps: bool,
}

/// A lock with a time to live, which nobody renews.
const PLAIN: Rung = Rung {
    number: 0,
    name: "",
    plays: "",
    family: Family::Redis,
    ttl: Duration::from_secs(1),
    expires: true,
    renewed: false,
    checks_clock: false,
    two_steps: false,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Redis,
    Postgres,
    ZooKeeper,
    Etcd,
    Ringfence,
    /// The clients of [`Family::Redis`], with the servers of [`Family::Ringfence`].
    Resp,
    /// Programs under `ringfence lock`, with the servers of [`Family::Ringfence`] and [`Family::Postgres`].
    Locked,
}

/// One holder's client of a lock.
///
/// An error of any call is an answer like others: the holder then does not know what came of it ([`Answer::Unsure`]).
pub(crate) trait Lock: Send {
    /// Tries once: [`Answer::Granted`], [`Answer::Held`] or [`Answer::Refused`]. No answer of a server is awaited for longer
    /// than `within`. What the client itself does after that, as reading back or trying again, is part of the call.
    fn acquire(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>>;

    /// Renews once: [`Answer::Alive`], or [`Answer::Lost`].
    fn touch(&mut self) -> BoxFuture<'_, anyhow::Result<Answer>>;

    /// Releases: [`Answer::Released`], or [`Answer::Lost`]. It can be called again after an error.
    fn release(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>>;

    /// Whether the holder's process is to call [`Lock::touch`] each third of the time to live; not so for a client that does
    /// it by itself.
    fn needs_renewing(&self) -> bool {
        false
    }

    /// Ends a renewal that the client does by itself.
    fn stop_renewing(&mut self) {}

    /// Whether the client, by the clock of its process, counts itself the holder.
    fn is_valid(&self) -> bool {
        true
    }

    /// Reads the stock count (`None`), or writes it, where the lock and the data share a transaction; `None` where the data
    /// is in the referee's register.
    fn access(&mut self, write: Option<i64>) -> Option<BoxFuture<'_, anyhow::Result<Answer>>> {
        let _ = write;
        None
    }
}

/// The servers of a rung for one fault, and what can be done to them.
pub(crate) trait Stage {
    /// The proxies that holders connect to.
    fn fronts(&self) -> Vec<&Front>;

    /// Those of them that the next request of a holder goes to; of a majority, where a majority is asked.
    fn fronts_of_a_request(&self) -> Vec<&Front> {
        self.fronts().into_iter().take(1).collect()
    }

    /// Where holders connect, as [`Setting::servers`] gives it to the rung's [`Lock`].
    fn servers(&self) -> String {
        self.fronts().iter().map(|front| front.address().to_string()).collect::<Vec<_>>().join(",")
    }

    /// Lets the answers to the next request of a holder be lost.
    fn lose_next_answer(&self) {
        self.fronts_of_a_request().into_iter().for_each(Front::lose_next_answer);
    }

    /// How many answers were lost so far.
    fn answers_lost(&self) -> u64 {
        self.fronts_of_a_request().into_iter().map(Front::lost).sum()
    }

    /// Called before the first holder acquires the lock that the fault is about: as to cut off a replica.
    fn prepare(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<()>> {
        let _ = fault;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Makes a fault of the servers happen, and returns what was observed of it. An error says that it was not observed.
    fn inflict(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<String>>;

    /// What the servers say of the lock, for one who asks why it is stuck. By default an error, as it never should be.
    fn state(&self, key: &str) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(std::future::ready(Err(anyhow!("{key} is stuck"))))
    }

    /// The stock count, where the data is not in the referee's register.
    fn count(&self, key: &str) -> BoxFuture<'_, anyhow::Result<Option<i64>>> {
        let _ = key;
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// What servers are started with.
#[derive(Debug)]
pub(crate) struct Ground {
    /// Where files go that nobody needs afterwards.
    pub(crate) folder: PathBuf,
    /// `ringfence`.
    pub(crate) program: PathBuf,
}

/// What a holder's process is started with.
#[derive(Clone, Debug, clap::Args)]
pub struct Setting {
    /// The rung
    #[arg(long)]
    pub(crate) rung: u8,
    /// The name of the holder
    #[arg(long)]
    pub(crate) name: String,
    /// Where its servers are, as its stage says
    #[arg(long)]
    pub(crate) servers: String,
    /// The lock
    #[arg(long)]
    pub(crate) key: String,
    /// The time to live of the lock, where it has one
    #[arg(long)]
    pub(crate) ttl_ms: u64,
    /// The register
    #[arg(long)]
    pub(crate) register: SocketAddr,
    /// Make the mistake that the fault is about
    #[arg(long = "mistaken")]
    pub(crate) is_mistaken: bool,
}

impl Setting {
    /// The time to live of its locks in rounds that wait for their end.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

/// The rungs that are played, from the lowest up: those of each family.
pub fn rungs() -> Vec<Rung> {
    [
        redis::RUNGS.as_slice(),
        postgres::RUNGS.as_slice(),
        zookeeper::RUNGS.as_slice(),
        etcd::RUNGS.as_slice(),
        ringfence::RUNGS.as_slice(),
        resp::RUNGS.as_slice(),
        locked::RUNGS.as_slice(),
    ]
    .concat()
}

/// The programs of the families, with their versions.
pub(crate) fn versions(ground: &Ground) -> Vec<String> {
    let all = [
        redis::version(),
        postgres::version(),
        zookeeper::version(),
        etcd::version(),
        ringfence::version(ground),
    ];
    all.into_iter().flatten().collect()
}

/// What a program prints when it is run with these arguments, if it is installed.
fn printed(program: &str, arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program).args(arguments).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Rung {
    /// The rung with this number.
    pub fn of(number: u8) -> anyhow::Result<Self> {
        let found = rungs().into_iter().find(|rung| rung.number == number);
        found.with_context(|| format!("there is no rung {number}"))
    }

    /// The time to live of its locks in rounds that wait for their end.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Whether it needs the program under test.
    pub(crate) fn is_ringfence(&self) -> bool {
        matches!(self.family, Family::Ringfence | Family::Resp | Family::Locked)
    }

    pub(crate) fn expires(&self) -> bool {
        self.expires
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    pub(crate) fn checks_clock(&self) -> bool {
        self.checks_clock
    }

    pub(crate) fn acquires_in_two_steps(&self) -> bool {
        self.two_steps
    }

    /// A client for a holder's process.
    pub(crate) async fn lock(setting: &Setting) -> anyhow::Result<Box<dyn Lock>> {
        match Self::of(setting.rung)?.family {
            Family::Redis | Family::Resp => redis::lock(setting),
            Family::Postgres => Ok(Box::new(postgres::RowLock::new(setting).await?)),
            Family::ZooKeeper => Ok(Box::new(zookeeper::Mutex::new(setting))),
            Family::Etcd => Ok(Box::new(etcd::Mutex::new(setting)?)),
            Family::Ringfence => Ok(Box::new(ringfence::Leases::new(setting)?)),
            Family::Locked => Ok(Box::new(locked::Locked::new(setting).await?)),
        }
    }

    /// Starts servers, with whatever the fault needs.
    pub(crate) async fn stage(&self, fault: Fault, ground: &Ground) -> anyhow::Result<Box<dyn Stage>> {
        match self.family {
            Family::Redis => redis::stage(self, fault, ground).await,
            Family::Postgres => Ok(Box::new(postgres::Database::start(self, fault).await?)),
            Family::ZooKeeper => Ok(Box::new(zookeeper::Ensemble::start(fault, ground).await?)),
            Family::Etcd => Ok(Box::new(etcd::Members::start().await?)),
            Family::Ringfence => Ok(Box::new(ringfence::Nodes::start(fault, ground).await?)),
            Family::Resp => Ok(Box::new(resp::Address::start(fault, ground).await?)),
            Family::Locked => Ok(Box::new(locked::Guarded::start(self, fault, ground).await?)),
        }
    }
}

/// For families whose locks hand nothing to the storage.
pub(crate) const GRANTED: Answer = Answer::Granted { pass: Pass::Nothing };
