//! Members that listen elsewhere than where the membership has them.
//!
//! The leader finds out where they are ([`Directory::moved`](crate::peer::Directory)), or an operator says it, and records it. Until
//! then a member that has moved is not let in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use tokio::sync::MutexGuard;
use tokio::time::{MissedTickBehavior, interval};

use super::check_reach;
use crate::consensus::{Member, NodeId};
use crate::replica::Replica;
use crate::unanswered::MembersError::{self, Refused};

/// How often the leader looks.
const LOOK: Duration = Duration::from_secs(1);

impl Replica {
    /// Records where the members are, while this node leads. Never returns.
    pub(crate) async fn record_moves(self: Arc<Self>) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.raft.is_leader() || self.handed_to().is_some() {
                continue;
            }
            for (id, member) in self.members() {
                if id != self.id && !self.peers.directory.may_have_moved(id, &member.peer) {
                    continue;
                }
                // Another change of the members is under way. The next look may find none.
                let Ok(guard) = self.changing.try_lock() else { break };
                if let Some(peer) = self.moved_to(id, &member).await
                    && let Err(error) = self.record(&guard, id, member, peer).await
                {
                    tracing::warn!(id, %error, "the address of a member that has moved is not recorded yet");
                }
            }
        }
    }

    async fn moved_to(&self, id: NodeId, member: &Member) -> Option<String> {
        match id == self.id {
            true => self.peers.directory.own_move(&member.peer),
            false => self.peers.directory.moved(id, member).await,
        }
    }

    /// An operator says that a member is at `peer` now.
    pub(super) async fn move_member(
        &self,
        guard: &MutexGuard<'_, ()>,
        id: NodeId,
        member: Member,
        peer: String,
    ) -> Result<(), MembersError> {
        let mut others = self.members();
        others.remove(&id);
        check_reach(&others, &peer, |id| self.peers.directory.listed(id))?;
        self.peers.directory.check_moved(id, &member, &peer).await.map_err(Refused)?;
        self.record(guard, id, member, peer).await
    }

    async fn record(
        &self,
        guard: &MutexGuard<'_, ()>,
        id: NodeId,
        member: Member,
        peer: String,
    ) -> Result<(), MembersError> {
        let before = member.peer.clone();
        let moved = Member { peer: peer.clone(), ..member };
        self.change(guard, ChangeMembers::SetNodes(BTreeMap::from([(id, moved)]))).await?;
        tracing::info!(id, from = before, to = peer, "a member has moved");
        Ok(())
    }
}
