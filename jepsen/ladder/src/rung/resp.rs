//! Locks of Redis clients, on three nodes of Ringfence: their programs stay as they are, and their address is changed.
//!
//! The address stands for the leader at first. When that is killed, the address leads to the next one, as a virtual address or a balancer
//! does, and as the front of a Redis server leads to its replica.

use futures_util::future::BoxFuture;

use super::ringfence::Running;
use crate::fault::Fault;
use crate::front::Front;
use crate::rung::{Family, Ground, PLAIN, Rung, Stage};

const UNCHANGED: Rung = Rung {
    number: 20,
    name: "4, at Ringfence's address",
    plays: "The program of 4, unchanged; its address is that of Ringfence, by the Redis protocol.",
    family: Family::Resp,
    ..PLAIN
};

pub(super) const RUNGS: [Rung; 2] = [
    UNCHANGED,
    Rung {
        number: 21,
        name: "20 + RINGFENCE.TOKEN + guard",
        plays: "As 20; then RINGFENCE.TOKEN key random, and the storage rejects a token smaller than one it has seen.",
        ..UNCHANGED
    },
];

/// The nodes, behind one address.
pub(super) struct Address {
    nodes: Running,
    front: Front,
}

impl Address {
    pub(super) async fn start(fault: Fault, ground: &Ground) -> anyhow::Result<Self> {
        let nodes = Running::start(fault, ground).await?;
        let front = Front::open(nodes.leader().await?.resp()).await?;
        Ok(Self { nodes, front })
    }
}

impl Stage for Address {
    fn fronts(&self) -> Vec<&Front> {
        vec![&self.front]
    }

    fn inflict(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async move {
            let (observed, other) = self.nodes.inflict(fault).await?;
            if let Some(other) = other {
                self.front.lead_to(other.resp());
            }
            Ok(observed)
        })
    }
}
