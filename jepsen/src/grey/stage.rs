//! The cluster of one row, and what is between it and its machine: relays, a network, Redis, libraries, and the shell.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use ringfence_harness::{Cluster, Network, Node, RedisServer, Reply, until};
use ringfence_wire::Role;
use tokio::time::Instant;

use super::bent::{Bent, Word};
use super::relay::Relay;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(20);
/// Bounds one look at a node.
const LOOK: Duration = Duration::from_millis(500);
/// The name of all nodes, where they have one.
const HOST: &str = "node.test";
const NODES: u16 = 3;
/// The place in a network that is left for the holder.
const HOLDER: u64 = NODES as u64 + 1;

/// What a row needs before its nodes start.
#[derive(Default)]
pub(super) struct Setup {
    /// A network namespace for each node. Otherwise all are on one loopback address.
    pub(super) network: bool,
    /// A relay before each node's address for its peers.
    pub(super) relayed: bool,
    /// Peers and clients know a name instead of the address.
    pub(super) named: bool,
    /// A Redis, which the nodes mirror to before they answer.
    pub(super) redis: bool,
    /// What is bent for the nodes, for clients that use the program, and for the holder if it uses it.
    pub(super) nodes: Vec<(Word, i64)>,
    pub(super) clients: Vec<(Word, i64)>,
    pub(super) holder: Vec<(Word, i64)>,
    /// The last line of the shell script that starts a node, whose program and arguments are `"$@"`; by id and folder.
    pub(super) shell: Option<fn(u64, &Path) -> String>,
}

/// The nodes, and what is around them.
// Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    pub(super) relays: BTreeMap<u64, Relay>,
    pub(super) network: Option<Network>,
    pub(super) redis: Option<RedisServer>,
    pub(super) program: PathBuf,
    /// Of this row alone.
    pub(super) folder: PathBuf,
    bent: BTreeMap<u64, Bent>,
    clients: Bent,
    holder: Bent,
    named: bool,
}

impl Stage {
    /// Nothing is started yet.
    pub(super) async fn set_up(program: &Path, folder: &Path, setup: &Setup) -> anyhow::Result<Self> {
        let redis = match setup.redis {
            true => Some(RedisServer::builder().start().await?),
            false => None,
        };
        let network = setup.network.then(|| Network::new(NODES + 1)).transpose()?;
        let mut builder = Cluster::builder(program).nodes(NODES).first_revision(None).caller_checks_panics();
        if let Some(network) = &network {
            builder = builder.network(network);
        }
        if setup.relayed {
            builder = builder.relayed();
        }
        if setup.named {
            builder = builder.host(HOST);
        }
        if let Some(redis) = &redis {
            builder =
                builder.argument(format!("--redis={}", redis.url())).argument("--mirror-mode=before-answer");
        }
        let cluster = builder.lay_out().await?;
        let (mut relays, mut bent) = (BTreeMap::new(), BTreeMap::new());
        let new_bent = |name: &str, words: &[(Word, i64)]| {
            let bent = Bent::new(folder, name)?;
            words.iter().try_for_each(|(word, value)| bent.set(*word, *value))?;
            if let IpAddr::V4(ip) = cluster.node(1).http().ip() {
                bent.set(Word::Address, u32::from(ip).into())?;
            }
            anyhow::Ok(bent)
        };
        for node in cluster.nodes() {
            let id = node.id();
            if setup.relayed {
                relays.insert(id, Relay::start(node.advertised(), node.peer())?);
            }
            bent.insert(id, new_bent(&format!("node-{id}"), &setup.nodes)?);
            if let Some(shell) = setup.shell {
                node.use_program(script(program, folder, id, &shell(id, folder))?);
            }
        }
        let (clients, holder) = (new_bent("clients", &setup.clients)?, new_bent("holder", &setup.holder)?);
        let (program, folder, named) = (program.to_owned(), folder.to_owned(), setup.named);
        Ok(Self { cluster, relays, network, redis, program, folder, bent, clients, holder, named })
    }

    /// Starts a node that has no process.
    pub(super) fn start(&self, id: u64) -> anyhow::Result<()> {
        Ok(self.node(id).start_with(|command| self.bent[&id].apply(command))?)
    }

    /// Kills a node and starts it again.
    pub(super) fn restart(&self, id: u64) -> anyhow::Result<()> {
        self.node(id).kill()?;
        self.start(id)
    }

    pub(super) fn node(&self, id: u64) -> &Node {
        self.cluster.node(id)
    }

    /// The ids of all nodes.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.cluster.nodes().iter().map(Node::id).collect()
    }

    pub(super) fn others(&self, ids: &[u64]) -> Vec<u64> {
        self.ids().into_iter().filter(|id| !ids.contains(id)).collect()
    }

    /// What is bent for node `id`.
    pub(super) fn bent(&self, id: u64) -> &Bent {
        &self.bent[&id]
    }

    /// What is bent for clients.
    pub(super) fn clients(&self) -> &Bent {
        &self.clients
    }

    /// What is bent for the holder.
    pub(super) fn holder(&self) -> &Bent {
        &self.holder
    }

    /// How often something was done to the nodes.
    pub(super) fn count(&self, word: Word) -> anyhow::Result<i64> {
        self.bent.values().map(|bent| bent.get(word)).sum()
    }

    /// A command of the program for clients, where clients are.
    pub(super) fn command(&self) -> Command {
        match &self.network {
            Some(network) => network.command(&self.program),
            None => Command::new(&self.program),
        }
    }

    /// A command of the program for the holder, on a machine of its own if there is a network.
    pub(super) fn command_of_holder(&self) -> anyhow::Result<Command> {
        Ok(match &self.network {
            Some(network) => network.command_at(HOLDER, &self.program)?,
            None => Command::new(&self.program),
        })
    }

    /// Nothing of the holder gets to the cluster any more, and nothing back.
    pub(super) fn cut_holder(&self) -> anyhow::Result<()> {
        Ok(self.network.as_ref().context("there is no network")?.vanish(HOLDER)?)
    }

    /// The URLs that clients know, those of `first` before the others.
    pub(super) fn urls(&self, first: &[u64]) -> Vec<String> {
        let rest = self.others(first);
        let url = |id: &u64| match self.named {
            true => format!("http://{HOST}:{}", self.node(*id).http().port()),
            false => self.node(*id).url(),
        };
        first.iter().chain(&rest).map(url).collect()
    }

    /// The node that leads, as the one with the highest term says.
    pub(super) async fn leader(&self) -> anyhow::Result<u64> {
        let look = async || {
            let looks =
                self.cluster.running().map(async |node| match node.client().within(LOOK).cluster().await {
                    Ok(Reply::Done { body, .. }) => {
                        (body.role == Role::Leader).then_some((body.term, node.id()))
                    }
                    _ => None,
                });
            futures_util::future::join_all(looks).await.into_iter().flatten().max().map(|(_, id)| id)
        };
        Ok(until(SOON, "a node leads", look).await?)
    }

    /// How long it takes from `since` until these nodes are ready: `bound` if that is too long, or one of them ends.
    pub(super) async fn ready(&self, ids: &[u64], since: Instant, bound: Duration) -> f64 {
        for id in ids {
            let (node, left) = (self.node(*id), (since + bound).saturating_duration_since(Instant::now()));
            let client = node.client().within(LOOK);
            let look = async || match node.take_ended() {
                Ok(None) if node.pid().is_some() => client.is_ready().await.then_some(true),
                _ => Some(false),
            };
            if !until(left, "it is ready", look).await.unwrap_or(false) {
                return bound.as_secs_f64();
            }
        }
        since.elapsed().as_secs_f64()
    }
}

/// A script that starts the program in its own process.
fn script(program: &Path, folder: &Path, id: u64, last: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(format!("node-{id}.sh"));
    std::fs::write(&path, format!("#!/bin/sh\nset -- '{}' \"$@\"\n{last}\n", program.display()))?;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

/// Runs a small program of the system to its end.
pub(super) async fn tool<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> anyhow::Result<()> {
    let output = tokio::process::Command::new(program).args(arguments).output().await?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
