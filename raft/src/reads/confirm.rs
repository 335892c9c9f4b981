//! Confirms a leadership by a round of questions.
//!
//! The leader of term T notes its commit position, then asks every other voter whether it still votes for T. Once a majority
//! of each configuration has said yes, the position is a read point: a node that has applied it sees every write that was
//! acknowledged before the round began.
//!
//! Why: a write that the leader does not know was acknowledged by the leader of a later term, elected by a majority before
//! that. Two majorities share a voter, also across one membership change, and a leader never starts a second change before
//! the first is committed. The shared voter would say no, because votes never go back to an earlier term. Each answer must be
//! to a question of this round: earlier answers may be outdated. And each voter must look at its vote itself, in turn with
//! granting it, not at a copy.
//!
//! The leader's own vote counts as of the start of the round. The read point stays valid if the leader is deposed during the
//! round.
//!
//! The leader must have committed an entry of its own term: before that it does not know what earlier leaders committed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use openraft::RaftState;
use tokio::time::timeout;

use crate::applied::state_machine::Raft;
use crate::consensus::{Consensus, LogId, NodeId, StoredMembership, Vote};
use crate::peer::Peers;

/// The maximum duration of a round: twice the longest round trip that elections succeed with.
const ROUND: Duration = Duration::from_secs(1);

/// The read point, if a majority confirms in time that this node leads.
pub(crate) async fn confirm(raft: &Raft, peers: &Arc<Peers>) -> Option<LogId> {
    let own = *raft.node_id();
    let round = raft.with_raft_state(move |state| Round::begin(own, state)).await.ok()??;
    let mut yes = BTreeSet::from([own]);
    if round.is_confirmed_by(&yes) {
        return Some(round.committed);
    }
    let voters = round.membership.voter_ids().filter(|id| *id != own);
    let mut answers: FuturesUnordered<_> = voters.map(|id| round.ask(id, peers)).collect();
    let confirmed = async {
        while let Some(answer) = answers.next().await {
            yes.extend(answer);
            if round.is_confirmed_by(&yes) {
                return Some(round.committed);
            }
        }
        None
    };
    timeout(ROUND, confirmed).await.ok()?
}

/// The leader's state at the start of the round.
struct Round {
    vote: Vote,
    committed: LogId,
    membership: Arc<StoredMembership>,
}

impl Round {
    /// `None` if this node does not lead, or has committed nothing in its term yet.
    fn begin(own: NodeId, state: &RaftState<Consensus>) -> Option<Self> {
        let vote = *state.vote_ref();
        // What a quorum has, though this node may not apply it yet: a follower may be quicker.
        let committed = *state.cluster_committed()?;
        let leads = vote.committed && vote.leader_id.voted_for == own;
        let has_committed = committed.committed_leader_id().term == vote.leader_id.term;
        let membership = Arc::clone(state.membership_state.effective());
        (leads && has_committed).then_some(Self { vote, committed, membership })
    }

    /// `id`, if it still votes for this leader.
    async fn ask(&self, id: NodeId, peers: &Arc<Peers>) -> Option<NodeId> {
        let incarnation = self.membership.get_node(&id)?.incarnation;
        peers.confirm(id, incarnation, self.vote).await.then_some(id)
    }

    fn is_confirmed_by(&self, yes: &BTreeSet<NodeId>) -> bool {
        is_quorum(self.membership.get_joint_config(), yes)
    }
}

/// Whether `yes` holds a majority of each configuration. Non-voters do not count.
fn is_quorum(configs: &[BTreeSet<NodeId>], yes: &BTreeSet<NodeId>) -> bool {
    !configs.is_empty() && configs.iter().all(|voters| 2 * voters.intersection(yes).count() > voters.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_is_a_majority_of_each_configuration() {
        let is_quorum = |configs: &[&[NodeId]], yes: &[NodeId]| {
            let configs: Vec<_> = configs.iter().map(|voters| voters.iter().copied().collect()).collect();
            is_quorum(&configs, &yes.iter().copied().collect())
        };
        assert!(is_quorum(&[&[1]], &[1]));
        assert!(!is_quorum(&[&[1, 2]], &[1]));
        assert!(is_quorum(&[&[1, 2, 3]], &[1, 3]));
        assert!(!is_quorum(&[&[1, 2, 3, 4]], &[1, 3]));
        // A leader that does not vote, or no longer, does not count.
        assert!(!is_quorum(&[&[2, 3]], &[1, 2]));
        // While the members change, both configurations have to agree.
        assert!(!is_quorum(&[&[1, 2, 3], &[1, 4, 5]], &[1, 2]));
        assert!(!is_quorum(&[&[1, 2, 3], &[1, 4, 5]], &[1, 4, 5]));
        assert!(is_quorum(&[&[1, 2, 3], &[1, 4, 5]], &[1, 2, 5]));
        assert!(!is_quorum(&[], &[1]));
        assert!(!is_quorum(&[&[]], &[1]));
    }
}
