//! Leases of Ringfence, on three nodes. The client repeats a request with the same lease id, at another node, until its
//! answer is definite, as every client of it has to.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::future::BoxFuture;
use ringfence_harness::{Acquired, Called, Client, Cluster, Node, Reply, clock_is_off};
use ringfence_wire::{AcquireRequest, LeaseId, ProblemKind};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::clock::Clock;
use crate::fault::Fault;
use crate::front::{Front, Trap};
use crate::rung::{Family, Ground, Lock, PLAIN, Rung, Setting, Stage, printed};
use crate::step::{Answer, Pass};

/// How long one answer may take, but for the first.
const PATIENT: Duration = Duration::from_secs(5);
/// How long it may take until an answer is definite.
const DEFINITE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(50);
/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(30);

const LEASE: Rung = Rung {
    number: 18,
    name: "Ringfence, no guard",
    plays: "PUT of a lease, renewed every third of its time to live; the storage checks nothing.",
    family: Family::Ringfence,
    renewed: true,
    ..PLAIN
};

pub(super) const RUNGS: [Rung; 2] = [
    LEASE,
    Rung {
        number: 19,
        name: "Ringfence + guard",
        plays: "As 18; the storage rejects a token smaller than one it has seen.",
        ..LEASE
    },
];

/// As in "Ringfence 0.1.0".
pub(super) fn version(ground: &Ground) -> Option<String> {
    let printed = printed(ground.program.to_str()?, &["--version"])?;
    Some(format!("Ringfence {}", printed.split_whitespace().nth(1)?))
}

pub(super) struct Leases {
    clients: Vec<Client>,
    lease: LeaseId,
    request: AcquireRequest,
    is_guarded: bool,
}

enum Call {
    Acquire,
    Renew,
    Release,
}

impl Leases {
    pub(super) fn new(setting: &Setting) -> anyhow::Result<Self> {
        let clients = setting.servers.split(',').map(|address| Ok(Client::new(address.parse()?)));
        let request = json!({ "keys": [setting.key], "ttl_ms": setting.ttl_ms, "holder": setting.name });
        Ok(Self {
            clients: clients.collect::<anyhow::Result<_>>()?,
            lease: LeaseId::random(),
            request: serde_json::from_value(request)?,
            is_guarded: setting.rung == 19,
        })
    }

    async fn definite(&self, call: Call, within: Duration) -> anyhow::Result<Answer> {
        let deadline = Instant::now() + DEFINITE;
        let mut within = within;
        for client in self.clients.iter().cycle() {
            let client = client.within(within);
            let answer = match call {
                Call::Acquire => self.acquired(client.acquire(self.lease, &self.request).await),
                Call::Renew => held(client.renew(self.lease, None).await, Answer::Alive),
                Call::Release => held(client.release(self.lease).await, Answer::Released),
            };
            if answer.is_ok() || Instant::now() > deadline {
                return answer;
            }
            within = PATIENT;
            sleep(AGAIN).await;
        }
        bail!("there is no node")
    }

    fn acquired(&self, answer: Called<Acquired>) -> anyhow::Result<Answer> {
        match answer? {
            Reply::Done { body, .. } => {
                let grant = body.grant().context("it waits, though it was not asked to")?;
                let pass = if self.is_guarded { Pass::Token(grant.token.0) } else { Pass::Nothing };
                Ok(Answer::Granted { pass })
            }
            Reply::Refused(problem) if problem.kind == ProblemKind::Held => Ok(Answer::Held),
            Reply::Refused(problem) => Ok(Answer::Refused { why: problem.detail }),
        }
    }
}

/// The lease that a call is about may have ended.
fn held<T>(answer: Called<T>, done: Answer) -> anyhow::Result<Answer> {
    Ok(match answer? {
        Reply::Done { .. } => done,
        Reply::Refused(_) => Answer::Lost,
    })
}

impl Lock for Leases {
    fn acquire(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        self.lease = LeaseId::random();
        Box::pin(self.definite(Call::Acquire, within))
    }

    fn touch(&mut self) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(self.definite(Call::Renew, PATIENT))
    }

    fn release(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(self.definite(Call::Release, within))
    }

    fn needs_renewing(&self) -> bool {
        true
    }
}

/// Three nodes, each behind a proxy.
pub(super) struct Nodes {
    cluster: Running,
    fronts: Vec<Front>,
}

/// The nodes themselves.
pub(super) struct Running {
    cluster: Cluster,
    clock: Option<Clock>,
}

impl Nodes {
    pub(super) async fn start(fault: Fault, ground: &Ground) -> anyhow::Result<Self> {
        let cluster = Running::start(fault, ground).await?;
        let addresses = cluster.cluster.nodes().iter().map(Node::http);
        let fronts = Front::open_all(addresses, &Trap::new(|_| true)).await?;
        Ok(Self { cluster, fronts })
    }
}

impl Running {
    /// Three nodes that speak the Redis protocol, too.
    pub(super) async fn start(fault: Fault, ground: &Ground) -> anyhow::Result<Self> {
        let clock = Clock::of_servers(fault, &ground.folder)?;
        let builder = Cluster::builder(&ground.program).first_revision(None).caller_checks_panics().resp();
        let cluster = builder.lay_out().await?;
        for node in cluster.nodes() {
            node.start_with(|command| {
                command.envs(clock.iter().flat_map(Clock::variables));
            })?;
        }
        cluster.ready().await?;
        Ok(Self { cluster, clock })
    }

    pub(super) fn urls(&self) -> String {
        self.cluster.nodes().iter().map(Node::url).collect::<Vec<_>>().join(",")
    }

    /// The leader, where the nodes agree on one.
    pub(super) async fn leader(&self) -> anyhow::Result<&Node> {
        Ok(self.cluster.leader().await?)
    }

    /// Kills the leader, and waits until the others have another one. Returns both.
    async fn lose_leader(&self) -> anyhow::Result<(&Node, &Node)> {
        let leader = self.cluster.leader().await?;
        leader.kill()?;
        let other = self.cluster.leader().await?;
        ensure!(other.id() != leader.id(), "a dead node leads");
        Ok((leader, other))
    }

    /// Makes a fault happen. Returns what was observed of it, and who leads now, if that is another node.
    pub(super) async fn inflict(&self, fault: Fault) -> anyhow::Result<(String, Option<&Node>)> {
        if let Some(hours) = fault.server_clock_h() {
            self.clock.as_ref().context("there is no clock to throw")?.throw(3_600 * hours)?;
            for node in self.cluster.nodes() {
                clock_is_off(node, 3_600 * hours, SOON).await?;
            }
            return Ok((format!("the clocks of all nodes are off by {hours} h"), None));
        }
        let (leader, other) = self.lose_leader().await?;
        let mut became = "killed; another one leads";
        if fault == Fault::Empty {
            leader.wipe()?;
            leader.start()?;
            became = "restarted without its data";
        }
        Ok((format!("node {}, the leader, was {became}", leader.id()), Some(other)))
    }
}

impl Stage for Nodes {
    fn fronts(&self) -> Vec<&Front> {
        self.fronts.iter().collect()
    }

    fn inflict(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async move { Ok(self.cluster.inflict(fault).await?.0) })
    }
}
