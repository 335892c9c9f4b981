//! The Redis servers of a round, each behind a proxy that stands for its address.
//!
//! ```text
//!  holders ──▶ front ──▶ master ──▶ link ──▶ replica     the link can hold up what is replicated
//! ```
//! A failover kills the master, promotes the replica, leads the front to it, as a virtual address does, and takes the former
//! master in as a replica. Where a majority
//! is asked there are five such servers; two of them are away when the lock is acquired, so that it stands on three.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::future::BoxFuture;
use ringfence_harness::{RedisServer, until};

use crate::clock::Clock;
use crate::fault::Fault;
use crate::front::Front;
use crate::rung::{Rung, Stage};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(30);
/// A master waits for no further replicas before it sends its data to one.
const NO_DELAY: &str = "repl-diskless-sync-delay 0";

pub(super) struct Servers {
    /// The first one is the one that the fault is about.
    masters: Vec<Master>,
    replicas: Vec<Replica>,
    clock: Option<Clock>,
}

struct Master {
    server: RedisServer,
    front: Front,
}

/// A replica of the first master. The first of them is promoted.
struct Replica {
    server: RedisServer,
    link: Front,
}

impl Servers {
    pub(super) async fn start(rung: &Rung, fault: Fault, folder: &Path) -> anyhow::Result<Self> {
        let count = if rung.number == 7 { 5 } else { 1 };
        let clock = Clock::of_servers(fault, folder)?;
        let mut masters = Vec::new();
        for number in 0..count {
            let mut builder = RedisServer::builder().line(NO_DELAY);
            for (name, value) in clock.iter().filter(|_| number == 0).flat_map(Clock::variables) {
                builder = builder.variable(name, value);
            }
            let server = builder.start().await?;
            let front = Front::open(server.address()).await?;
            masters.push(Master { server, front });
        }
        let count = match fault {
            Fault::FailoverToOther => 2,
            Fault::Failover | Fault::FailoverUnseen => 1,
            // The lock of this rung is there only with a replica.
            _ if rung.number == 8 => 1,
            _ => 0,
        };
        let mut servers = Self { masters, replicas: Vec::new(), clock };
        for _ in 0..count {
            servers.add_replica().await?;
        }
        Ok(servers)
    }

    async fn add_replica(&mut self) -> anyhow::Result<()> {
        let link = Front::open(self.first().server.address()).await?;
        let to = link.address();
        let builder =
            RedisServer::builder().line(NO_DELAY).line(format!("replicaof {} {}", to.ip(), to.port()));
        let server = builder.start().await?;
        self.replicas.push(Replica { server, link });
        self.in_step().await
    }

    /// Waits until all that was written is replicated.
    async fn in_step(&self) -> anyhow::Result<()> {
        let master = &self.first().server;
        for replica in &self.replicas {
            let look = async || {
                let there = replica.server.command(["info", "replication"]).await.ok()?;
                let here = master.command(["info", "replication"]).await.ok()?;
                let is_up = there.contains("master_link_status:up");
                let is_even = field(&there, "slave_repl_offset:") == field(&here, "master_repl_offset:");
                let is_online = here.contains("state=online");
                (is_up && is_even && is_online).then_some(())
            };
            until(SOON, "the replica is in step", look).await?;
        }
        Ok(())
    }

    /// Waits until the master knows that all that was written is replicated. A replica tells it once a second.
    async fn acknowledged(&self) -> anyhow::Result<()> {
        let master = &self.first().server;
        let look = async || {
            let here = master.command(["info", "replication"]).await.ok()?;
            let acknowledged = format!(",offset={},", field(&here, "master_repl_offset:")?);
            (here.matches(&acknowledged).count() == self.replicas.len()).then_some(())
        };
        Ok(until(SOON, "the master knows that the replica is in step", look).await?)
    }

    fn first(&self) -> &Master {
        &self.masters[0]
    }

    /// The servers beyond the smallest majority.
    fn minority(&self) -> &[Master] {
        &self.masters[self.masters.len() / 2 + 1..]
    }

    async fn fail_over(&self) -> anyhow::Result<String> {
        let (replica, others) = self.replicas.split_first().context("there is no replica")?;
        let replica = &replica.server;
        self.first().server.kill()?;
        // While they can be reached, a Sentinel would prefer those that have more data.
        others.iter().try_for_each(|other| other.server.kill())?;
        replica.command(["replicaof", "no", "one"]).await?;
        let look = async || replica.command(["role"]).await.ok().filter(|role| role.starts_with("master"));
        until(SOON, "the replica is a master", look).await?;
        let (former, to) = (&self.first().server, replica.address());
        self.first().front.lead_to(to);
        former.start().await?;
        former.command(["replicaof", &to.ip().to_string(), &to.port().to_string()]).await?;
        let look = async || replica.command(["role"]).await.ok().filter(|role| role.lines().count() > 2);
        until(SOON, "the former master is a replica", look).await?;
        Ok(match others.len() {
            0 => "the master was killed; its replica is the master now".to_owned(),
            _ => "the master and the replica that answered WAIT were killed; the other one is the master now"
                .to_owned(),
        })
    }

    async fn empty(&self) -> anyhow::Result<String> {
        let master = self.first();
        let before = master.server.pid();
        master.server.restart_empty().await?;
        ensure!(before != master.server.pid(), "it was not restarted");
        let keys = master.server.command(["dbsize"]).await?;
        ensure!(keys == "0", "it has {keys} keys");
        Ok("the server was restarted and has no keys".to_owned())
    }

    async fn throw(&self, hours: i64) -> anyhow::Result<String> {
        let server = &self.first().server;
        let time = || async move {
            let answer = server.command(["time"]).await?;
            Ok(answer.lines().next().unwrap_or_default().parse()?)
        };
        Clock::moves(self.clock.as_ref(), hours, "TIME", time).await
    }
}

impl Stage for Servers {
    fn fronts(&self) -> Vec<&Front> {
        self.masters.iter().map(|master| &master.front).collect()
    }

    fn fronts_of_a_request(&self) -> Vec<&Front> {
        let majority = self.masters.len() / 2 + 1;
        self.masters.iter().take(majority).map(|master| &master.front).collect()
    }

    fn prepare(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async move {
            if fault.column() == Fault::Failover {
                self.in_step().await?;
                if fault == Fault::FailoverUnseen {
                    self.acknowledged().await?;
                }
                self.replicas.first().context("there is no replica")?.link.hold();
            }
            if fault != Fault::ServerBehind {
                self.minority().iter().for_each(|master| master.front.refuse());
            }
            Ok(())
        })
    }

    fn inflict(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async move {
            let observed = match fault {
                fault if fault.column() == Fault::Failover => self.fail_over().await?,
                Fault::Empty => self.empty().await?,
                Fault::ServerAhead => self.throw(1).await?,
                Fault::ServerBehind => self.throw(-1).await?,
                other => bail!("{} is no fault of a server", other.name()),
            };
            self.minority().iter().for_each(|master| master.front.lead_to(master.server.address()));
            Ok(observed)
        })
    }

    fn state(&self, key: &str) -> BoxFuture<'_, anyhow::Result<String>> {
        let key = key.to_owned();
        Box::pin(async move {
            let pttl = self.first().server.command(["pttl", &key]).await?;
            match pttl.parse::<i64>()? {
                -2 => bail!("the key is gone"),
                -1 => Ok("the key has no end (PTTL -1)".to_owned()),
                left if left > 1_800_000 => Ok(format!("the key has {left} ms to live")),
                left => bail!("it is stuck although the key has {left} ms to live"),
            }
        })
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim().strip_prefix(name))
}
