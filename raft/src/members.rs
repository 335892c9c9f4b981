//! Members that join and leave while the cluster runs, and the transfer of its leadership.
//!
//! ```text
//!  a node started to join     it waits: it belongs to no cluster, and founds none
//!          │ add: the leader probes it, and has it write down the cluster's id
//!          ▼
//!       learner               it receives the log, or a snapshot; it does not vote
//!          │ as soon as it has nearly caught up, whichever node leads then promotes it
//!          ▼
//!        voter
//!          │ remove
//!          ▼
//!      no member              its process may be stopped; its data directory is useless now
//! ```
//! A node whose data is lost is removed and added again, with an empty data directory, under its old id or another: its
//! incarnation is a new one, so nobody takes it for the member that it was.

pub(crate) mod founding;
mod moves;
pub(crate) mod names;
#[cfg(test)]
pub(crate) mod tests;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use ringfence_lease::Request;
use ringfence_wire::{is_loopback, is_unspecified};
use tokio::sync::MutexGuard;
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};

use crate::consensus::{Consensus, Member, NodeId};
use crate::handle::Handle;
use crate::peer::{Answer, CallError, Order};
use crate::replica::{HEARD, Replica, is_majority};
use crate::unanswered::MembersError::{self, Refused};
use crate::unanswered::{RETRY, Unanswered};

/// How long a change may take, the search for a leader included.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new node may take to answer.
const ASK: Duration = Duration::from_secs(2);
/// How long a leadership transfer may take.
const HAND_OVER: Duration = Duration::from_secs(2);
/// How often the leader checks whether a learner can vote.
const LOOK: Duration = Duration::from_millis(250);
/// How long the members may take to acknowledge what the leader sends after it was asked to change them.
const HEAR_WITHIN: Duration = Duration::from_secs(2);
/// A learner that lacks no more entries than this is promoted.
const NEAR_ENTRIES: u64 = 1_000;

impl Handle {
    /// Makes the node `id`, which waits at `peer` (`host:port`) to join, a member. It votes once it has caught up. A member that
    /// has moved to `peer` is one there from now on.
    pub async fn add_member(&self, id: NodeId, peer: String) -> Result<(), MembersError> {
        self.order(Order::Add { id, peer }).await
    }

    /// Removes `id` from the members. Refused if no majority of the remaining voters has been heard lately.
    pub async fn remove_member(&self, id: NodeId) -> Result<(), MembersError> {
        self.order(Order::Remove { id }).await
    }

    /// As [`Handle::remove_member`], but also if the remaining voters may be no majority: the cluster then stops until enough
    /// of them are back.
    pub async fn force_remove_member(&self, id: NodeId) -> Result<(), MembersError> {
        self.order(Order::ForceRemove { id }).await
    }

    /// Makes the voter `to` the leader; without it, the voter with the most of the log.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<(), MembersError> {
        self.order(Order::Transfer { to }).await
    }

    async fn order(&self, order: Order) -> Result<(), MembersError> {
        let shared = &self.shared;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let result = match shared.leader() {
                Some(leader) if leader == shared.id => shared.order_here(order.clone(), deadline).await,
                Some(leader) => match shared.peers.order(leader, order.clone(), deadline).await {
                    Ok(done) => done.map_err(Refused),
                    Err(unanswered) => Err(unanswered.into()),
                },
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
}

impl Replica {
    /// Carries out `order`, if this node leads.
    pub(crate) async fn order_here(&self, order: Order, deadline: Instant) -> Result<(), MembersError> {
        let done = async {
            match order {
                Order::Add { id, peer } => self.add(id, peer).await,
                Order::Remove { id } => self.remove(id, false).await,
                Order::ForceRemove { id } => self.remove(id, true).await,
                Order::Transfer { to } => self.transfer(to).await,
            }
        };
        timeout_at(deadline, done).await.unwrap_or(Err(Unanswered::Indeterminate.into()))
    }

    async fn add(&self, id: NodeId, peer: String) -> Result<(), MembersError> {
        let guard = self.changing.lock().await;
        let members = self.members();
        match members.get(&id) {
            Some(member) if member.peer == peer => return self.check_incarnation(id, member).await,
            Some(_) => return self.move_member(&guard, id, peer).await,
            None => {}
        }
        if let Some((other, _)) = members.iter().find(|(_, member)| member.peer == peer) {
            return Err(Refused(format!("{peer} is where node {other} is")));
        }
        check_reach(&members, &peer, |id| self.peers.directory.listed(id))?;
        let introduced = self.peers.introduce(id, &peer).map_err(Refused)?;
        let probed = self.peers.probe(id, ASK).await.map_err(|error| {
            Refused(format!(
                "node {id} does not answer at {peer} ({error}): start it first, to join, with an empty data directory"
            ))
        })?;
        let Some(program) = self.peers.directory.program_of(id, probed.incarnation) else {
            return Err(Refused(format!("node {id} does not answer any more")));
        };
        let rules = self.settled_rules().await?;
        if !program.rules.contains(rules) {
            return Err(Refused(format!(
                "node {id} runs {program}, which supports rules {}, and this cluster uses rules {rules}: start it with the \
                 version of ringfence that the members run",
                program.rules
            )));
        }
        let cluster = self.peers.directory.cluster_id();
        // A node that was taken in before, when the change of the members failed, may be added again.
        let may_join = probed.pristine && probed.cluster.is_none_or(|known| known == cluster);
        if !may_join {
            return Err(Refused(format!(
                "node {id} has data of its own already: give it an empty data directory, and start it to join"
            )));
        }
        match timeout(ASK, self.peers.adopt(id, probed.incarnation, cluster)).await {
            Ok(Ok(Answer::Adopted)) => {}
            Ok(Ok(Answer::Refused { reason })) => {
                return Err(Refused(format!("node {id} refuses: {reason}")));
            }
            Ok(Err(CallError::NotSent(error))) if is_of_another_directory(&error) => {
                return Err(Refused(format!(
                    "the data directory of node {id} was emptied or exchanged just now: add it again ({error})"
                )));
            }
            _ => return Err(Refused(format!("node {id} does not answer any more"))),
        }
        let member = Member { peer, incarnation: probed.incarnation };
        self.change(&guard, ChangeMembers::AddNodes(BTreeMap::from([(id, member)]))).await?;
        introduced.joined();
        tracing::info!(id, "added a learner");
        Ok(())
    }

    /// The rules of the table after every raise that this node has queued: the order that a raise belongs to may have ended
    /// without its outcome.
    async fn settled_rules(&self) -> Result<u8, MembersError> {
        match self.proposer.propose(Request::default()).await {
            Ok(_) => Ok(self.applied.lock().table.rules()),
            Err(_) => Err(Unanswered::Unavailable.into()),
        }
    }

    /// Checks that `id` still has the data directory that it was added with. A node that lost it cannot go on as the member
    /// that it was.
    async fn check_incarnation(&self, id: NodeId, member: &Member) -> Result<(), MembersError> {
        if id == self.id {
            return Ok(());
        }
        let peer = &member.peer;
        let was_exchanged = match self.peers.probe(id, ASK).await {
            Ok(probed) if probed.incarnation == member.incarnation => return Ok(()),
            Ok(_) => true,
            Err(error) => is_of_another_directory(&error),
        };
        Err(Refused(match was_exchanged {
            true => format!(
                "node {id} is a member already, and what answers at {peer} is not that member: its data directory is \
                 another one. Remove node {id} first, then add it again; or add this one under a new id"
            ),
            false => format!(
                "node {id} is a member already, and does not answer at {peer}: start it; if its data is lost, remove it, \
                 and add it again"
            ),
        }))
    }

    async fn remove(&self, id: NodeId, force: bool) -> Result<(), MembersError> {
        let guard = self.changing.lock().await;
        if !self.members().contains_key(&id) {
            return Ok(());
        }
        let one = BTreeSet::from([id]);
        if !self.voters().contains(&id) {
            self.change(&guard, ChangeMembers::RemoveNodes(one)).await?;
        } else {
            let left = &self.coming_voters() - &one;
            if left.is_empty() {
                return Err(Refused(format!("node {id} is the only voter")));
            }
            if !force {
                self.check_majority(id, &left).await?;
            }
            if id == self.id {
                self.transfer(None).await?;
                return Err(Unanswered::Unavailable.into());
            }
            self.change(&guard, ChangeMembers::RemoveVoters(one)).await?;
        }
        tracing::info!(id, force, "a member was removed");
        Ok(())
    }

    /// Refuses the removal of `id` unless a majority of the voters that it leaves acknowledges the leader from now on.
    async fn check_majority(&self, id: NodeId, left: &BTreeSet<NodeId>) -> Result<(), MembersError> {
        let begun = Instant::now();
        loop {
            let heard = self.heard(begun.elapsed());
            if is_majority(&heard, left) {
                return Ok(());
            }
            if begun.elapsed() >= HEAR_WITHIN {
                let (left, silent) = (list(left), list(&(left - &heard)));
                return Err(Refused(format!(
                    "without node {id} the voters are {left}, and the leader does not hear {silent}: the cluster would stop \
                     for want of a majority. Start {silent} again, or remove it first; or force this removal"
                )));
            }
            sleep(RETRY).await;
        }
    }

    async fn transfer(&self, to: Option<NodeId>) -> Result<(), MembersError> {
        let to = match to {
            Some(to) if !self.voters().contains(&to) => {
                return Err(Refused(format!("node {to} is no voter of this cluster")));
            }
            Some(to) => to,
            None => self.successor().ok_or_else(|| Refused("no other voter is heard".to_owned()))?,
        };
        if to == self.id || self.hand_over(to, HAND_OVER).await {
            return Ok(());
        }
        Err(Refused(format!("node {to} did not take over the leadership in time")))
    }

    /// Makes one change at a time: two would finish each other's, and neither could know its own outcome. The guard is that
    /// of `changing`, locked before the change was checked: what was checked must still hold. A leader that is about to be no
    /// voter hands over first: the others would soon refuse its connections, and what it was asked meanwhile had no answer.
    async fn change(
        &self,
        _guard: &MutexGuard<'_, ()>,
        change: ChangeMembers<NodeId, Member>,
    ) -> Result<(), MembersError> {
        if self.raft.is_leader() && !self.coming_voters().contains(&self.id) {
            self.transfer(None).await?;
            return Err(Unanswered::Unavailable.into());
        }
        // Where the newest known membership stands in the log.
        let position = || self.metrics(|metrics| *metrics.membership_config.log_id());
        let before = position();
        let changed = self.raft.change_membership(change, false).await;
        changed.map(drop).map_err(|error| match refusal(error) {
            // A change of the voters takes two entries: the first was written when the second was refused.
            _ if position() != before => Unanswered::Indeterminate.into(),
            error => error,
        })
    }

    /// Promotes learners that have caught up, and finishes what another leader began. Never returns.
    pub(crate) async fn promote_learners(self: Arc<Self>) {
        let mut ticks = interval(LOOK);
        loop {
            ticks.tick().await;
            let Ok(guard) = self.changing.try_lock() else { continue };
            if self.raft.is_leader() && self.is_joint() {
                // The leader that began this change does not lead any more, or gave it up.
                if let Err(error) = self.change(&guard, ChangeMembers::AddVoterIds(BTreeSet::new())).await {
                    tracing::debug!(%error, "a membership change is not finished yet");
                }
                continue;
            }
            let Some(learner) = self.caught_up_learner() else { continue };
            match self.change(&guard, ChangeMembers::AddVoterIds(BTreeSet::from([learner]))).await {
                Ok(()) => tracing::info!(id = learner, "the learner has caught up, and votes now"),
                Err(error) => tracing::warn!(id = learner, %error, "the learner does not vote yet"),
            }
        }
    }

    /// A learner that is heard and has nearly caught up, if a majority would still be heard with its vote.
    fn caught_up_learner(&self) -> Option<NodeId> {
        if !self.raft.is_leader() {
            return None;
        }
        let (voters, heard) = (self.voters(), self.heard(HEARD));
        self.metrics(|metrics| {
            let last = metrics.last_log_index?;
            let matched = metrics.replication.as_ref()?;
            let is_near = |id: &NodeId| {
                matched.get(id).is_some_and(|at| at.is_some_and(|at| at.index() + NEAR_ENTRIES >= last))
            };
            let may_vote =
                |id: &NodeId| heard.contains(id) && is_majority(&heard, &(&voters | &BTreeSet::from([*id])));
            let mut learners = metrics.membership_config.membership().nodes().map(|(id, _)| *id);
            learners.find(|id| !voters.contains(id) && is_near(id) && may_vote(id))
        })
    }

    fn is_joint(&self) -> bool {
        self.metrics(|metrics| metrics.membership_config.membership().get_joint_config().len() > 1)
    }

    pub(crate) fn members(&self) -> BTreeMap<NodeId, Member> {
        self.metrics(|metrics| {
            let nodes = metrics.membership_config.membership().nodes();
            nodes.map(|(id, member)| (*id, member.clone())).collect()
        })
    }
}

/// Refuses `peer` if it is certain that the node there and a member cannot both reach each other. The new node would vote as soon
/// as the leader reaches it, and another leader could not work with it. `listed` is where the operator says that a member is:
/// that counts if the recorded address is of no use, as after a start without any options.
fn check_reach(
    members: &BTreeMap<NodeId, Member>,
    peer: &str,
    listed: impl Fn(NodeId) -> String,
) -> Result<(), MembersError> {
    let reaches = |known: &str| !is_unspecified(known) && is_loopback(known) == is_loopback(peer);
    for (id, Member { peer: known, .. }) in members {
        let listed = listed(*id);
        if reaches(known) || !listed.is_empty() && reaches(&listed) {
            continue;
        }
        let why = match is_unspecified(known) {
            true => "where no other node can reach it",
            false => "and a loopback address is reached from one machine only",
        };
        return Err(Refused(format!(
            "node {id} is a member at {known}, {why}: a node at {peer} and it cannot both reach each other. List node {id} with \
             its address in --peers of all nodes, the new one included, and restart those that run"
        )));
    }
    Ok(())
}

/// Whether a connection failed because a node answered from another data directory than was expected.
fn is_of_another_directory(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidData)
}

fn list(ids: &BTreeSet<NodeId>) -> String {
    ids.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" and ")
}

fn refusal(error: RaftError<Consensus, ClientWriteError<Consensus>>) -> MembersError {
    match error {
        // Nothing is written; the membership may be another by now.
        RaftError::APIError(
            ClientWriteError::ForwardToLeader(_) | ClientWriteError::PreconditionFailed(_),
        ) => Unanswered::Unavailable.into(),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => match error {
            // Another change is in progress; this one is tried again.
            ChangeMembershipError::InProgress(_) => Unanswered::Unavailable.into(),
            error => Refused(error.to_string()),
        },
        _ => Unanswered::Indeterminate.into(),
    }
}
