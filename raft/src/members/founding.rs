//! How a cluster begins, and how a node finds that its own began without it.
//!
//! The member with the lowest id founds: once **every** listed member has answered that it is empty, it draws the
//! cluster's id, has each member write it down, and makes the first membership, with everybody's incarnation. Nothing
//! else ever makes one. So a cluster is never made twice, and a node that lost its data cannot slip into a new cluster,
//! or back into the old: it finds the others established, and stops. Whether they are, those that hold data say once they
//! have read their logs. A node that is to become a member later is started to
//! wait for that, and founds nothing (`members`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_mutant::{Mutant, is};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::applied::state_machine::Raft;
use crate::consensus::{Member, NodeId};
use crate::peer::{Answer, Call, Peers, Probed};
use crate::storage::identity::{DataDir, Identity};
use crate::storage::log_store::LogStore;

/// How long one member may take to answer, and how often members are asked.
const ASK: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(100);

/// What a node does not know yet: its cluster.
pub(crate) struct Founding {
    dir: Arc<DataDir>,
    log: LogStore,
    identity: Mutex<Identity>,
    cluster: watch::Sender<Option<Uuid>>,
}

/// Why a node cannot join its cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Its data directory was made anew.
    #[error(
        "cluster {cluster} knows node {node} with another data directory: this one was emptied or exchanged. Letting it \
         vote again could lose acknowledged grants. Give it its old data directory back; without that, it must be removed \
         from the cluster and added under a new id"
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
    #[error("the cluster's id cannot be written down: {0}")]
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
    #[error("the cluster's id cannot be written down: {0}")]
    Io(#[from] std::io::Error),
}

impl Founding {
    pub(crate) fn new(dir: Arc<DataDir>, log: LogStore, identity: Identity) -> Self {
        let cluster = watch::Sender::new(identity.cluster);
        Self { dir, log, identity: Mutex::new(identity), cluster }
    }

    pub(crate) fn cluster(&self) -> Option<Uuid> {
        *self.cluster.borrow()
    }

    pub(crate) fn is_pristine(&self) -> bool {
        self.log.is_pristine()
    }

    /// Whether it is this node that makes the first membership.
    pub(crate) fn is_founder(&self) -> bool {
        self.identity.lock().expect("no panic while the identity is locked").founder
    }

    /// Writes down that this node belongs to `cluster`, which another node founds or has founded.
    pub(crate) fn adopt(&self, cluster: Uuid) -> Result<(), AdoptError> {
        self.belong(cluster, false)
    }

    fn belong(&self, cluster: Uuid, founder: bool) -> Result<(), AdoptError> {
        let mut identity = self.identity.lock().expect("no panic while the identity is locked");
        match identity.cluster {
            Some(id) if id == cluster => return Ok(()),
            Some(id) => return Err(AdoptError::Belongs(id)),
            None => {}
        }
        let adopted = Identity { cluster: Some(cluster), founder, ..identity.clone() };
        self.dir.write(&adopted)?;
        *identity = adopted;
        self.cluster.send_replace(Some(cluster));
        Ok(())
    }

    /// Waits until this node belongs to a cluster, of which `members` are to be the first members, and gives its id.
    pub(crate) async fn join(&self, peers: &Arc<Peers>, members: &[NodeId]) -> Result<Uuid, JoinError> {
        let own = peers.identity.node_id;
        let founds = members.iter().min().is_none_or(|lowest| *lowest == own);
        let others: Vec<NodeId> = members.iter().copied().filter(|id| *id != own).collect();
        let mut told = None;
        loop {
            if let Some(cluster) = self.cluster() {
                return Ok(cluster);
            }
            let probed = probe(peers, &others).await;
            if is(Mutant::LetsWipedNodeIn)
                && let Some(cluster) = probed.values().find_map(|other| other.cluster)
                && self.belong(cluster, false).is_ok()
            {
                continue;
            }
            for (id, other) in &probed {
                check_established(own, *id, other)?;
            }
            let missing: Vec<NodeId> = others.iter().copied().filter(|id| !probed.contains_key(id)).collect();
            // A member of a running cluster names no members, either, until it has read its log.
            let with_data: Vec<NodeId> =
                probed.iter().filter(|(_, other)| !other.pristine).map(|(id, _)| *id).collect();
            if founds && missing.is_empty() && with_data.is_empty() {
                if let Some((by, cluster)) = probed.iter().find_map(|(id, other)| Some((*id, other.cluster?)))
                {
                    return Err(JoinError::Orphaned { by, cluster });
                }
                match self.belong(Uuid::new_v4(), true) {
                    Ok(()) | Err(AdoptError::Belongs(_)) => continue,
                    Err(AdoptError::Io(error)) => return Err(error.into()),
                }
            }
            let waits_for = (missing, with_data);
            if told.as_ref() != Some(&waits_for) {
                let (missing, with_data) = &waits_for;
                match with_data.is_empty() {
                    true => tracing::info!(
                        ?missing,
                        "waiting for the other members, to found a cluster with them"
                    ),
                    false => tracing::info!(
                        ?missing,
                        ?with_data,
                        "waiting for those with data to name their members"
                    ),
                }
                told = Some(waits_for);
            }
            let mut adopted = self.cluster.subscribe();
            let _ = timeout(AGAIN, adopted.wait_for(Option::is_some)).await;
        }
    }

    /// Waits until a running cluster takes this node in, and gives its id.
    pub(crate) async fn wait(&self, peers: &Peers) -> Uuid {
        let mut cluster = self.cluster.subscribe();
        if cluster.borrow().is_none() {
            let (id, peer) = (peers.identity.node_id, peers.listed(peers.identity.node_id));
            tracing::info!(id, peer, "waiting to be added to a cluster");
        }
        let known = cluster.wait_for(Option::is_some).await;
        known.ok().and_then(|cluster| *cluster).expect("the sender lives as long as this, and waits for some")
    }

    /// Makes the first membership, once all of `members` have written down the cluster. To be called on the founder.
    pub(crate) async fn finish(
        &self,
        peers: Arc<Peers>,
        raft: Raft,
        cluster: Uuid,
        members: Vec<NodeId>,
    ) -> Result<(), JoinError> {
        let own = peers.identity.node_id;
        let others: Vec<NodeId> = members.iter().copied().filter(|id| *id != own).collect();
        let member = |id: NodeId, incarnation| Member { peer: peers.listed(id), incarnation };
        let mut first = BTreeMap::from([(own, member(own, peers.identity.incarnation))]);
        while first.len() < members.len() {
            for (id, probed) in probe(&peers, &others).await {
                // It was founded before, by this node: of which this data directory knows nothing any more.
                check_established(own, id, &probed)?;
                if first.contains_key(&id) {
                    continue;
                }
                match timeout(ASK, peers.call(id, Call::Adopt { cluster })).await {
                    Ok(Ok(Answer::Adopted)) => drop(first.insert(id, member(id, probed.incarnation))),
                    Ok(Ok(Answer::Refused { reason })) => {
                        tracing::warn!(peer = id, reason, "a member will not join")
                    }
                    _ => {}
                }
            }
            if first.len() < members.len() {
                sleep(AGAIN).await;
            }
        }
        match raft.initialize(first).await {
            Ok(()) => {
                tracing::info!(%cluster, ?members, "the cluster is founded");
                Ok(())
            }
            Err(error) => Err(JoinError::Founding(error.to_string())),
        }
    }
}

/// Asks all at once; those that do not answer are missing.
async fn probe(peers: &Arc<Peers>, others: &[NodeId]) -> BTreeMap<NodeId, Probed> {
    let asked = others.iter().map(|&id| async move {
        match timeout(ASK, peers.call(id, Call::Probe)).await {
            Ok(Ok(Answer::Probed(probed))) => Some((id, probed)),
            _ => None,
        }
    });
    futures_util::future::join_all(asked).await.into_iter().flatten().collect()
}

fn check_established(node: NodeId, by: NodeId, other: &Probed) -> Result<(), JoinError> {
    let Some(cluster) = other.cluster.filter(|_| !other.members.is_empty()) else { return Ok(()) };
    // Whoever has only just been made a member knows it from the log, not from here.
    if other.members.iter().any(|(id, _)| *id == node) {
        return Err(JoinError::Wiped { cluster, node });
    }
    Err(JoinError::NotMember { by, cluster, node })
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use openraft::storage::RaftLogStorage;
    use tempfile::TempDir;
    use tokio::net::TcpListener;

    use super::*;
    use crate::consensus::Vote;
    use crate::peer::{Listener, Served};
    use crate::storage::snapshots::Generations;

    /// A node that listens and has not started Raft yet: as one that still reads its log.
    async fn starting(
        dir: &TempDir,
        id: NodeId,
        cluster: Option<Uuid>,
        has_voted: bool,
    ) -> (Arc<Served>, String) {
        let (dir, identity) = DataDir::open(&dir.path().join(id.to_string()), id).unwrap();
        let (dir, identity) = (Arc::new(dir), Identity { cluster, ..identity });
        let mut log = LogStore::open(&dir.path.join("log"), ringfence_wal::Options::default()).unwrap();
        if has_voted {
            let leader_id = openraft::vote::RaftLeaderId::new(1, 1);
            log.save_vote(&Vote { leader_id, committed: true }).await.unwrap();
        }
        let served = Arc::new(Served {
            peers: Arc::new(Peers::new(identity.clone(), String::new(), BTreeMap::new())),
            founding: Founding::new(Arc::clone(&dir), log, identity),
            generations: Arc::new(Generations::open(dir).unwrap()),
            handle: OnceLock::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(Listener { listener, served: Arc::clone(&served) }.run());
        (served, address)
    }

    /// What a founder with an empty data directory makes of two others, which belong to a cluster.
    async fn join_as_founder(voted: [bool; 2]) -> Option<Result<Uuid, JoinError>> {
        let dir = TempDir::new().unwrap();
        let cluster = Some(Uuid::from_u128(7));
        let (_two, two) = starting(&dir, 2, cluster, voted[0]).await;
        let (_three, three) = starting(&dir, 3, cluster, voted[1]).await;
        let (one, _) = starting(&dir, 1, None, false).await;
        let addresses = BTreeMap::from([(1, String::new()), (2, two), (3, three)]);
        let peers = Arc::new(Peers::new(one.peers.identity.clone(), String::new(), addresses));
        // It asks ten times a second: this is long enough for it to make a mistake.
        timeout(Duration::from_secs(1), one.founding.join(&peers, &[1, 2, 3])).await.ok()
    }

    /// It told the operator to empty the data directory of a node that was reading its log.
    #[tokio::test]
    async fn a_founder_that_lost_its_data_waits_until_members_with_data_say_who_they_are() {
        for voted in [[true, true], [false, true], [true, false]] {
            let joined = join_as_founder(voted).await;
            assert!(joined.is_none(), "{voted:?}: {joined:?}");
        }
    }

    #[tokio::test]
    async fn a_founding_that_left_no_data_behind_is_orphaned() {
        let joined = join_as_founder([false, false]).await;
        assert!(matches!(joined, Some(Err(JoinError::Orphaned { .. }))), "{joined:?}");
    }
}
