//! Names of nodes that are found late, not at all, or under an address at which nobody is.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{bail, ensure};
use ringfence_harness::BlackHoles;
use tokio::time::Instant;

use super::{Fault, Scene};
use crate::grey::bent::Word;
use crate::grey::figure::Figure;
use crate::grey::stage::{Setup, Stage};

/// How long a lookup takes where the first name server is dead.
const LATE_MS: i64 = 5_000;
/// A node that does not come back is given up after this.
const BOUND: Duration = Duration::from_secs(25);

/// What is wrong with names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grey) enum Names {
    /// Each lookup takes 5 s, from the start.
    Late,
    /// Each lookup takes 5 s and fails, once the cluster runs.
    Gone,
    /// Each name has two addresses, from the start, of which the first neither accepts nor refuses connections.
    FirstDead,
}

/// Nodes and clients know each other by names. One node is killed and starts again.
#[derive(Debug)]
pub(in crate::grey) struct Named {
    names: Names,
    holes: Option<BlackHoles>,
}

impl Named {
    pub(in crate::grey) fn with(names: Names) -> Self {
        Self { names, holes: None }
    }
}

impl Fault for Named {
    fn setup(&self) -> Setup {
        let bent = || if self.names == Names::Late { vec![(Word::LookupMs, LATE_MS)] } else { Vec::new() };
        Setup { named: true, nodes: bent(), clients: bent(), ..Setup::default() }
    }

    async fn arrange(&mut self, stage: &Stage) -> anyhow::Result<()> {
        if self.names != Names::FirstDead {
            return Ok(());
        }
        let IpAddr::V4(ip) = stage.node(1).http().ip() else { bail!("the nodes have no IPv4 address") };
        let [a, b, c, d] = ip.octets();
        let hole = Ipv4Addr::new(a, b, c, d ^ 1);
        let dead = |at: SocketAddr| SocketAddr::from((hole, at.port()));
        let addresses = stage.cluster.nodes().iter().flat_map(|node| [dead(node.http()), dead(node.peer())]);
        self.holes = Some(BlackHoles::dig(addresses).await?);
        set(stage, Word::FirstAddress, u32::from(hole).into())
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let (stage, target) = (scene.stage, scene.target);
        if self.names == Names::Gone {
            set(stage, Word::LookupMs, LATE_MS)?;
            set(stage, Word::LookupFails, 1)?;
        }
        stage.restart(target)?;
        if self.names != Names::Gone {
            let rejoined = stage.ready(&[target], Instant::now(), BOUND).await;
            scene.figures.insert(Figure::Rejoined, rejoined);
        }
        Ok(vec![target])
    }

    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String> {
        let lookups = scene.stage.count(Word::Lookups)?;
        ensure!(lookups > 0, "no node has looked up a name");
        Ok(format!("nodes looked up names {lookups} times"))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let (stage, target) = (scene.stage, scene.target);
        set(stage, Word::LookupMs, 0)?;
        set(stage, Word::LookupFails, 0)?;
        if self.names == Names::Gone {
            let rejoined = stage.ready(&[target], Instant::now(), BOUND).await;
            scene.figures.insert(Figure::Rejoined, rejoined);
        }
        Ok(stage.ids())
    }
}

/// For nodes and clients.
fn set(stage: &Stage, word: Word, value: i64) -> anyhow::Result<()> {
    stage.ids().into_iter().try_for_each(|id| stage.bent(id).set(word, value))?;
    stage.clients().set(word, value)
}
