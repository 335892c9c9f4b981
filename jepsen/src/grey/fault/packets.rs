//! Packets that are lost: in one direction, by their size, to some ports, or all of one machine's.

use anyhow::{Context, ensure};
use ringfence_harness::{Network, try_once};
use ringfence_wire::{LeaseId, Mode, WantedKey};
use tokio::task::JoinSet;

use super::{Fault, Scene};
use crate::grey::stage::Setup;

/// Which packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grey) enum Lost {
    /// What the target sends to other nodes.
    Sent,
    /// What other nodes send to the target.
    Received,
    /// Of what the target sends to other nodes, packets of more than 1,300 bytes. Somebody asks for a grant that is larger.
    Large,
    /// All to and from the target, also of clients, as if its machine had lost its power: nothing is refused.
    All,
    /// What is sent to ports that the target listens on: for its peers, for clients, or both. What it opens itself works.
    Opened { peer: bool, http: bool },
}

/// The loss, and a request that is on its way meanwhile.
#[derive(Debug)]
pub(in crate::grey) struct Losing {
    pub(in crate::grey) lost: Lost,
}

impl Fault for Losing {
    fn setup(&self) -> Setup {
        Setup { network: true, ..Setup::default() }
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let (stage, target) = (scene.stage, scene.target);
        let network = network(scene)?;
        let others = stage.others(&[target]);
        let sent: Vec<(u64, u64)> = others.iter().map(|other| (target, *other)).collect();
        let received: Vec<(u64, u64)> = others.iter().map(|other| (*other, target)).collect();
        match self.lost {
            Lost::Sent => network.cut(&sent)?,
            Lost::Received => network.cut(&received)?,
            Lost::All => network.vanish(target)?,
            Lost::Opened { peer, http } => {
                let node = stage.node(target);
                let ports = [(peer, node.peer()), (http, node.http())];
                let shut = ports.iter().filter(|(is_shut, _)| *is_shut).map(|(_, address)| address.port());
                network.shut(target, &shut.collect::<Vec<_>>())?;
            }
            Lost::Large => {
                network.shorten(&sent)?;
                let client = stage.node(target).client();
                let mut request = try_once("grey/large");
                let names = (0..16).map(|number| format!("grey/large/{number}/{}", "x".repeat(400)));
                let claim =
                    |name: String| WantedKey { key: ringfence_harness::key(&name), mode: Mode::Exclusive };
                request.keys = names.map(claim).collect();
                // Whether it is answered is not asked.
                let mut asks = JoinSet::new();
                asks.spawn(async move { client.acquire(LeaseId::random(), &request).await.is_ok() });
                asks.detach_all();
            }
        }
        Ok(vec![target])
    }

    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String> {
        let dropped = network(scene)?.dropped()?;
        ensure!(dropped > 0, "no packet was lost");
        Ok(format!("{dropped} packets were lost"))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        network(scene)?.heal()?;
        Ok(scene.stage.ids())
    }
}

fn network<'a>(scene: &Scene<'a>) -> anyhow::Result<&'a Network> {
    scene.stage.network.as_ref().context("the nodes have no network of their own")
}
