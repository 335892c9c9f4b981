//! Members that listen elsewhere than where the membership has them.
//!
//! The leader finds out where they are ([`Directory::moved`](crate::peer::Directory)), or an operator says it, and records it. Until
//! then, a node that has a leader does not let a member in that has moved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::{ChangeMembers, Precondition};
use tokio::sync::MutexGuard;
use tokio::time::sleep;

use super::{check_reach, refusal};
use crate::consensus::{LogId, Member, NodeId};
use crate::replica::Replica;
use crate::unanswered::MembersError::{self, Refused};
use crate::unanswered::Unanswered;

/// How often the leader looks.
const LOOK: Duration = Duration::from_secs(1);

impl Replica {
    /// Records where the members are, while this node leads. Never returns.
    pub(crate) async fn record_moves(self: Arc<Self>) {
        loop {
            sleep(LOOK).await;
            if !self.raft.is_leader() || self.handed_to().is_some() || self.is_joint() {
                continue;
            }
            let known = self.metrics(|metrics| metrics.membership_config.clone());
            for (id, member) in known.nodes().map(|(id, member)| (*id, member.clone())) {
                let moved = match id == self.id {
                    true => self.peers.directory.own_move(&self.voters()),
                    false => self.peers.directory.moved(id, &member).await,
                };
                // If another change of the members is under way, the next look finds it as well.
                let Some((peer, _guard)) = moved.zip(self.changing.try_lock().ok()) else { continue };
                if let Err(error) = self.record(*known.log_id(), id, member, peer).await {
                    tracing::warn!(id, %error, "the address of a member that has moved is not recorded yet");
                }
                // The membership is another now.
                break;
            }
        }
    }

    /// An operator says that a member is at `peer` now.
    pub(super) async fn move_member(
        &self,
        _guard: &MutexGuard<'_, ()>,
        id: NodeId,
        peer: String,
    ) -> Result<(), MembersError> {
        let known = self.metrics(|metrics| metrics.membership_config.clone());
        let mut others: BTreeMap<_, _> = known.nodes().map(|(id, member)| (*id, member.clone())).collect();
        // A change of the voters is finished first.
        let Some(member) = others.remove(&id).filter(|_| !self.is_joint()) else {
            return Err(Unanswered::Unavailable.into());
        };
        check_reach(&others, &peer, |id| self.peers.directory.listed(id))?;
        self.peers.directory.check_moved(id, &member, &peer).await.map_err(Refused)?;
        self.record(*known.log_id(), id, member, peer).await
    }

    /// Records that a member is at `peer`, if the membership is still the one that it was read from, at `based_on`. A member that was removed
    /// meanwhile would be one again.
    async fn record(
        &self,
        based_on: Option<LogId>,
        id: NodeId,
        member: Member,
        peer: String,
    ) -> Result<(), MembersError> {
        let before = member.peer.clone();
        let change = ChangeMembers::SetNodes(BTreeMap::from([(id, Member { peer: peer.clone(), ..member })]));
        let condition = Precondition::LastMembershipLogId { last_membership_log_id: based_on };
        self.raft.change_membership_if(change, false, [condition]).await.map_err(refusal)?;
        tracing::info!(id, from = before, to = peer, "a member has moved");
        Ok(())
    }
}
