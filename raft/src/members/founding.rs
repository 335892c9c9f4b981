//! How a cluster begins, and how a node detects that its own began without it.
//!
//! The member with the lowest id founds. Once **every** listed member has answered that it is empty, the founder draws the
//! cluster's id, has each member write it down, and makes the first membership, with every member's incarnation. Nothing else
//! ever makes one. So a cluster is never made twice, and a node that lost its data cannot slip into a new cluster, or back
//! into the old one: it finds the others established, and stops. Members that hold data can say so only once they have read
//! their logs. A node that is to become a member later is started to wait for that, and founds nothing (`members`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::applied::state_machine::Raft;
use crate::consensus::{Member, NodeId};
use crate::peer::{Answer, Peers, Probed};
use crate::random::Random;
use crate::storage::identity::{DataDir, Identity};
use crate::storage::log_store::LogStore;

/// How long one member may take to answer, and how often members are asked.
const ASK: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(100);

/// The cluster of this node, as its data directory says.
pub(crate) struct Founding {
    dir: Arc<DataDir>,
    log: LogStore,
    identity: watch::Sender<Identity>,
    random: Random,
}

/// Why a node cannot join its cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Its data directory was made anew.
    #[error(
        "cluster {cluster} knows node {node} with another data directory: this one was emptied or exchanged. Letting it \
         vote again could lose acknowledged grants. If its own data directory, and not a copy of it, is elsewhere, start it \
         with that; otherwise remove it from the cluster, empty its data directory, and add it again"
    )]
    Wiped {
        /// The cluster that it belonged to.
        cluster: Uuid,
        /// The node.
        node: NodeId,
    },
    /// The others are a cluster without it.
    #[error(
        "node {by} belongs to cluster {cluster}, which does not know node {node}; add it there first, or correct --peers"
    )]
    NotMember {
        /// Who says so.
        by: NodeId,
        /// Its cluster.
        cluster: Uuid,
        /// This node.
        node: NodeId,
    },
    /// Another attempt to found a cluster was not finished.
    #[error(
        "node {by} was taken into cluster {cluster}, which was never finished and whose founder has lost its data; empty the data directory of node {by}"
    )]
    Orphaned {
        /// The member that was taken in.
        by: NodeId,
        /// The cluster that was never finished.
        cluster: Uuid,
    },
    /// The data directory cannot be written.
    #[error("cannot record the cluster's id: {0}")]
    Io(#[from] std::io::Error),
    /// The first membership was not accepted.
    #[error("the cluster cannot be founded: {0}")]
    Founding(String),
}

/// Why a node does not let itself be taken into a cluster.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdoptError {
    #[error("it belongs to cluster {0} already")]
    Belongs(Uuid),
    #[error("cannot record the cluster's id: {0}")]
    Io(#[from] std::io::Error),
}

impl Founding {
    /// The id of a cluster that this node founds is drawn from `random`.
    pub(crate) fn new(dir: Arc<DataDir>, log: LogStore, identity: Identity, random: Random) -> Self {
        Self { dir, log, identity: watch::Sender::new(identity), random }
    }

    pub(crate) fn cluster(&self) -> Option<Uuid> {
        self.identity.borrow().cluster
    }

    /// Whether this node has neither voted nor any log entry.
    pub(crate) fn is_pristine(&self) -> bool {
        self.log.is_pristine()
    }

    /// Whether this node makes the first membership.
    pub(crate) fn is_founder(&self) -> bool {
        self.identity.borrow().founder
    }

    /// Writes down that this node belongs to `cluster`, which another node founds or has founded.
    pub(crate) fn adopt(&self, cluster: Uuid) -> Result<(), AdoptError> {
        self.belong(cluster, false)
    }

    fn belong(&self, cluster: Uuid, founder: bool) -> Result<(), AdoptError> {
        let mut result = Ok(());
        self.identity.send_if_modified(|identity| {
            let adopted = Identity { cluster: Some(cluster), founder, ..identity.clone() };
            result = match identity.cluster {
                Some(id) if id == cluster => return false,
                Some(id) => Err(AdoptError::Belongs(id)),
                None => self.dir.write(&adopted).map_err(AdoptError::Io),
            };
            if result.is_ok() {
                *identity = adopted;
            }
            result.is_ok()
        });
        result
    }

    /// Waits until this node belongs to a cluster, which `members` found together, and gives its id.
    pub(crate) async fn join(&self, peers: &Peers, members: &[NodeId]) -> Result<Uuid, JoinError> {
        let own = peers.directory.identity.node_id;
        let founds = members.iter().min().is_none_or(|lowest| *lowest == own);
        let mut logged = None;
        loop {
            if let Some(cluster) = self.cluster() {
                return Ok(cluster);
            }
            let probed = probe(peers, members).await;
            // The answer to a slow probe may contain the membership that this node was taken into meanwhile.
            if let Some(cluster) = self.cluster() {
                return Ok(cluster);
            }
            for (id, other) in &probed {
                check_established(own, *id, other)?;
            }
            let is_missing = |id: &NodeId| *id != own && !probed.contains_key(id);
            let missing: Vec<NodeId> = members.iter().copied().filter(is_missing).collect();
            // A member of a running cluster, too, names no members until it has read its log.
            let with_data: Vec<NodeId> =
                probed.iter().filter(|(_, other)| !other.pristine).map(|(id, _)| *id).collect();
            if founds && missing.is_empty() && with_data.is_empty() {
                if let Some((by, cluster)) = probed.iter().find_map(|(id, other)| Some((*id, other.cluster?)))
                {
                    return Err(JoinError::Orphaned { by, cluster });
                }
                match self.belong(self.random.id(), true) {
                    Ok(()) | Err(AdoptError::Belongs(_)) => continue,
                    Err(AdoptError::Io(error)) => return Err(error.into()),
                }
            }
            let waits_for = Some((missing, with_data));
            if logged != waits_for {
                log_wait(waits_for.as_ref());
                logged = waits_for;
            }
            let _ = timeout(AGAIN, self.belongs()).await;
        }
    }

    /// Waits until a running cluster takes this node in, and gives its id.
    pub(crate) async fn wait(&self, peers: &Peers) -> Uuid {
        if self.cluster().is_none() {
            let id = peers.directory.identity.node_id;
            tracing::info!(id, peer = peers.directory.listed(id), "waiting to be added to a cluster");
        }
        self.belongs().await
    }

    async fn belongs(&self) -> Uuid {
        let mut identity = self.identity.subscribe();
        let identity = identity.wait_for(|identity| identity.cluster.is_some()).await;
        identity
            .ok()
            .and_then(|identity| identity.cluster)
            .expect("the sender lives as long as this, and waits for some")
    }

    /// Makes the first membership, once all of `members` have written down the cluster. To be called on the founder.
    pub(crate) async fn finish(
        &self,
        peers: Arc<Peers>,
        raft: Raft,
        cluster: Uuid,
        members: Vec<NodeId>,
    ) -> Result<(), JoinError> {
        let own = &peers.directory.identity;
        let member = |id, incarnation| Member { peer: peers.directory.listed(id), incarnation };
        let mut first = BTreeMap::from([(own.node_id, member(own.node_id, own.incarnation))]);
        while first.len() < members.len() {
            for (id, probed) in probe(&peers, &members).await {
                // If this node founded it before, its data directory remembers nothing of it.
                check_established(own.node_id, id, &probed)?;
                if first.contains_key(&id) {
                    continue;
                }
                match timeout(ASK, peers.adopt(id, probed.incarnation, cluster)).await {
                    Ok(Ok(Answer::Adopted)) => drop(first.insert(id, member(id, probed.incarnation))),
                    Ok(Ok(Answer::Refused { reason })) => {
                        tracing::warn!(peer = id, reason, "a member refuses to join")
                    }
                    // Why is logged where it is connected to. It is probed again, and may be another incarnation.
                    _ => {}
                }
            }
            if first.len() < members.len() {
                sleep(AGAIN).await;
            }
        }
        raft.initialize(first).await.map_err(|error| JoinError::Founding(error.to_string()))?;
        tracing::info!(%cluster, ?members, "the cluster is founded");
        Ok(())
    }
}

fn log_wait(waits_for: Option<&(Vec<NodeId>, Vec<NodeId>)>) {
    let Some((missing, with_data)) = waits_for else { return };
    match with_data.is_empty() {
        true => tracing::info!(?missing, "waiting for the other members, to found a cluster with them"),
        false => tracing::info!(
            ?missing,
            ?with_data,
            "waiting for those with data to name their members. If all members run and none does, see `A new cluster does \
             not begin` in docs/operations.md"
        ),
    }
}

/// Asks all other `members` at once; the result lacks those that do not answer.
async fn probe(peers: &Peers, members: &[NodeId]) -> BTreeMap<NodeId, Probed> {
    let others = members.iter().copied().filter(|id| *id != peers.directory.identity.node_id);
    let asked = others.map(async |id| Some((id, peers.probe(id, ASK).await.ok()?)));
    futures_util::future::join_all(asked).await.into_iter().flatten().collect()
}

fn check_established(node: NodeId, by: NodeId, other: &Probed) -> Result<(), JoinError> {
    let Some(cluster) = other.cluster.filter(|_| !other.members.is_empty()) else { return Ok(()) };
    // A node that has just become a member learns it from the log, not from here.
    if other.members.iter().any(|(id, _)| *id == node) {
        return Err(JoinError::Wiped { cluster, node });
    }
    Err(JoinError::NotMember { by, cluster, node })
}

#[cfg(test)]
mod tests;
