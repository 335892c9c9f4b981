//! What a node asks another for: of the leader, to take commands and reads; of a voter, whether the leader still leads.

use std::sync::Arc;

use ringfence_lease::{Command, Outcome};
use ringfence_wire::{Key, Revision};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::Peers;
use super::call::CallError;
use super::message::{Answer, Call};
use crate::consensus::{NodeId, Vote};
use crate::reads::ReadPoint;

/// Why passed-on commands have no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardError {
    /// They are in no log and never will be.
    NotDone,
    /// They may or may not have been, or be still, committed.
    Unknown,
}

impl Peers {
    /// The outcomes of `commands` from `leader`.
    pub(crate) async fn propose(
        self: &Arc<Self>,
        leader: NodeId,
        commands: &[Command],
        deadline: Instant,
    ) -> Result<Vec<Outcome>, ForwardError> {
        let call = self.call(leader, Call::Propose(commands.to_vec()));
        match timeout_at(deadline, call).await {
            Ok(Ok(Answer::Outcomes(outcomes))) if outcomes.len() == commands.len() => Ok(outcomes),
            Ok(Ok(Answer::NotDone) | Err(CallError::NotSent(_))) => Err(ForwardError::NotDone),
            Ok(Ok(_) | Err(CallError::Unknown(_))) | Err(_) => Err(ForwardError::Unknown),
        }
    }

    /// Whether this incarnation of `voter` says that `vote`, a leader's, is still its own.
    pub(crate) async fn confirm(self: &Arc<Self>, voter: NodeId, incarnation: Uuid, vote: Vote) -> bool {
        let call = Call::Confirm { vote: vote.into() };
        matches!(self.call_member(voter, incarnation, call).await, Ok(Answer::Confirmed(true)))
    }

    /// What `leader` says of its mirror; `false` where it says nothing. The caller bounds the time.
    pub(crate) async fn stands(self: &Arc<Self>, leader: NodeId, keys: Vec<Key>, revision: Revision) -> bool {
        let call = self.call(leader, Call::Stands { keys, revision });
        matches!(call.await, Ok(Answer::Stands(true)))
    }

    /// A linearizable read point from `leader`; `None` where it gives none.
    pub(crate) async fn read_index(self: &Arc<Self>, leader: NodeId, deadline: Instant) -> Option<ReadPoint> {
        match timeout_at(deadline, self.call(leader, Call::ReadIndex)).await {
            Ok(Ok(Answer::ReadPoint { last, now_ms })) => Some(ReadPoint { log_id: last.into(), now_ms }),
            _ => None,
        }
    }
}
