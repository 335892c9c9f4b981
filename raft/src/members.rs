//! Members that come and go while the cluster runs, and the hand-over of its leadership.
//!
//! ```text
//!  a node started to join     it waits: it belongs to no cluster, and founds none
//!          │ add: the leader asks who it is, and has it write down the cluster
//!          ▼
//!       learner               it receives the log, or a snapshot; it does not vote
//!          │ by itself, as soon as it lacks little: whoever leads then sees to it
//!          ▼
//!        voter
//!          │ remove
//!          ▼
//!      no member              its process may be stopped; its data directory is of no use any more
//! ```
//! A node whose data is lost is removed and added again, with an empty data directory, under its old id or another: its
//! incarnation is a new one, so nobody takes it for the member that it was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout, timeout_at};

use crate::consensus::{Consensus, Member, NodeId};
use crate::handle::{Handle, Shared, Unanswered};
use crate::peer::{Answer, Call, CallError, Channel};

/// How long a change may take, the search for a leader included.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new node may take to say who it is.
const ASK: Duration = Duration::from_secs(2);
/// How long a leadership may take to be handed over.
const HAND_OVER: Duration = Duration::from_secs(2);
/// How often the leader looks whether a learner can vote.
const LOOK: Duration = Duration::from_millis(250);
/// A learner that lacks no more entries than this becomes a voter.
const NEAR_ENTRIES: u64 = 1_000;

/// What an operator wants of the members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    Add { id: NodeId, peer: String },
    Remove { id: NodeId },
    Transfer { to: Option<NodeId> },
}

/// Why the members are not as an operator wants them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// The leader would not: nothing has changed.
    #[error("{0}")]
    Refused(String),
    /// There is no answer.
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
}

use MembersError::Refused;

impl Handle {
    /// Makes the node `id`, which waits at `peer` (`host:port`) to join, a member. It votes once it has caught up.
    pub async fn add_member(&self, id: NodeId, peer: String) -> Result<(), MembersError> {
        self.order(Order::Add { id, peer }).await
    }

    /// Makes `id` no member any more. A leader hands over first, and is removed by the repeat.
    pub async fn remove_member(&self, id: NodeId) -> Result<(), MembersError> {
        self.order(Order::Remove { id }).await
    }

    /// Makes the voter `to` the leader, or the one that lacks the least of the log.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<(), MembersError> {
        self.order(Order::Transfer { to }).await
    }

    async fn order(&self, order: Order) -> Result<(), MembersError> {
        let shared = &self.shared;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let result = match shared.leader() {
                Some(leader) if leader == shared.id => self.order_here(order.clone(), deadline).await,
                Some(leader) => {
                    let call = shared.peers.call(leader, Channel::Forwards, Call::Order(order.clone()));
                    match timeout_at(deadline, call).await {
                        Ok(Ok(Answer::Ordered)) => Ok(()),
                        Ok(Ok(Answer::Refused { reason })) => Err(Refused(reason)),
                        Ok(Ok(Answer::NotDone) | Err(CallError::NotSent(_))) => {
                            Err(Unanswered::Unavailable.into())
                        }
                        _ => Err(Unanswered::Indeterminate.into()),
                    }
                }
                None => Err(Unanswered::Unavailable.into()),
            };
            match result {
                Err(MembersError::Unanswered(Unanswered::Unavailable)) => {
                    shared.wait_for_another_try(deadline).await?;
                }
                other => return other,
            }
        }
    }

    /// Does what is ordered, if this node leads.
    pub(crate) async fn order_here(&self, order: Order, deadline: Instant) -> Result<(), MembersError> {
        let done = async {
            match order {
                Order::Add { id, peer } => self.shared.add(id, peer).await,
                Order::Remove { id } => self.shared.remove(id).await,
                Order::Transfer { to } => self.shared.transfer(to).await,
            }
        };
        timeout_at(deadline, done).await.unwrap_or(Err(Unanswered::Indeterminate.into()))
    }
}

impl Shared {
    async fn add(&self, id: NodeId, peer: String) -> Result<(), MembersError> {
        let members = self.members();
        match members.get(&id) {
            Some(member) if member.peer == peer => return Ok(()),
            Some(member) => {
                return Err(Refused(format!("node {id} is a member at {}: remove it first", member.peer)));
            }
            None => {}
        }
        if let Some((other, _)) = members.iter().find(|(_, member)| member.peer == peer) {
            return Err(Refused(format!("{peer} is where node {other} is")));
        }
        self.peers.introduce(id, &peer).map_err(Refused)?;
        let asked = timeout(ASK, self.peers.call(id, Channel::Founding, Call::Probe)).await;
        let Ok(Ok(Answer::Probed(probed))) = asked else {
            return Err(Refused(format!(
                "node {id} does not answer at {peer}: start it first, to join, with an empty data directory"
            )));
        };
        let cluster = self.peers.cluster_id();
        // One that was taken in before, when the change of the members failed, comes again.
        let may_join = probed.pristine && probed.cluster.is_none_or(|known| known == cluster);
        if !may_join {
            return Err(Refused(format!(
                "node {id} has data of its own already: give it an empty data directory, and start it to join"
            )));
        }
        match timeout(ASK, self.peers.call(id, Channel::Founding, Call::Adopt { cluster })).await {
            Ok(Ok(Answer::Adopted)) => {}
            Ok(Ok(Answer::Refused { reason })) => {
                return Err(Refused(format!("node {id} refuses: {reason}")));
            }
            _ => return Err(Refused(format!("node {id} does not answer any more"))),
        }
        let member = Member { peer, incarnation: probed.incarnation };
        self.change(ChangeMembers::AddNodes(BTreeMap::from([(id, member)]))).await?;
        tracing::info!(id, "a new member learns the log");
        Ok(())
    }

    async fn remove(&self, id: NodeId) -> Result<(), MembersError> {
        let voters = self.voters();
        let one = BTreeSet::from([id]);
        if !self.members().contains_key(&id) {
            return Ok(());
        }
        if !voters.contains(&id) {
            self.change(ChangeMembers::RemoveNodes(one)).await?;
        } else if voters.len() == 1 {
            return Err(Refused(format!("node {id} is the only voter")));
        } else if id == self.id {
            self.transfer(None).await?;
            return Err(Unanswered::Unavailable.into());
        } else {
            self.change(ChangeMembers::RemoveVoters(one)).await?;
        }
        tracing::info!(id, "a member was removed");
        Ok(())
    }

    async fn transfer(&self, to: Option<NodeId>) -> Result<(), MembersError> {
        let to = match to {
            Some(to) if !self.voters().contains(&to) => {
                return Err(Refused(format!("node {to} is no voter of this cluster")));
            }
            Some(to) => to,
            None => self.successor().ok_or_else(|| Refused("there is no other voter".to_owned()))?,
        };
        if to == self.id || self.hand_over(to, HAND_OVER).await {
            return Ok(());
        }
        Err(Refused(format!("node {to} has not taken the leadership over in time")))
    }

    async fn change(&self, change: ChangeMembers<NodeId, Member>) -> Result<(), MembersError> {
        match self.raft.change_membership(change, false).await {
            Ok(_) => Ok(()),
            Err(error) => Err(refusal(error)),
        }
    }

    /// Makes learners voters when they have caught up, and finishes what another leader began; until the task is ended.
    pub(crate) async fn promote_learners(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(LOOK);
        loop {
            ticks.tick().await;
            if self.raft.is_leader() && self.is_between_memberships() {
                // Whoever began this change does not lead any more, or is about to finish it.
                if let Err(error) = self.change(ChangeMembers::AddVoterIds(BTreeSet::new())).await {
                    tracing::debug!(%error, "a change of the members is not finished yet");
                }
                continue;
            }
            let Some(learner) = self.caught_up_learner() else { continue };
            match self.change(ChangeMembers::AddVoterIds(BTreeSet::from([learner]))).await {
                Ok(()) => tracing::info!(id = learner, "the new member has caught up, and votes"),
                Err(error) => tracing::warn!(id = learner, %error, "the new member does not vote yet"),
            }
        }
    }

    fn caught_up_learner(&self) -> Option<NodeId> {
        if !self.raft.is_leader() {
            return None;
        }
        let voters = self.voters();
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index?;
        let matched = metrics.replication.as_ref()?;
        let is_near = |id: &NodeId| {
            matched.get(id).is_some_and(|at| at.is_some_and(|at| at.index() + NEAR_ENTRIES >= last))
        };
        let mut learners = metrics.membership_config.membership().nodes().map(|(id, _)| *id);
        learners.find(|id| !voters.contains(id) && is_near(id))
    }

    fn is_between_memberships(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().get_joint_config().len() > 1
    }

    fn members(&self) -> BTreeMap<NodeId, Member> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let nodes = metrics.membership_config.membership().nodes();
        nodes.map(|(id, member)| (*id, member.clone())).collect()
    }

    fn voters(&self) -> BTreeSet<NodeId> {
        self.raft.voter_ids().collect()
    }
}

fn refusal(error: RaftError<Consensus, ClientWriteError<Consensus>>) -> MembersError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => Unanswered::Unavailable.into(),
        // Another change is under way; this one is tried again.
        RaftError::APIError(ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(
            _,
        ))) => Unanswered::Unavailable.into(),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => Refused(error.to_string()),
        _ => Unanswered::Indeterminate.into(),
    }
}
