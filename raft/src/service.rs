//! What a node answers to calls of other nodes, beyond Raft's own.

use std::sync::{Arc, OnceLock};

use ringfence_lease::{LeaseTable, Request};
use ringfence_wire::PrincipalName;
use tokio::time::Instant;

use crate::handle::Handle;
use crate::members;
use crate::members::founding::Founding;
use crate::peer::{Answer, Call, Directory, Probed, ReadPoint, Service};
use crate::propose::asker::Asker;
use crate::propose::proposal::Failure;
use crate::unanswered::{MembersError, TIMEOUT, Unanswered};

pub(crate) struct NodeService {
    pub(crate) directory: Arc<Directory>,
    pub(crate) founding: Founding,
    /// Absent until this node belongs to a cluster.
    pub(crate) handle: OnceLock<Handle>,
}

impl Service for NodeService {
    async fn answer(&self, call: Call) -> Answer {
        match (call, self.handle.get()) {
            (Call::Probe, _) => Answer::Probed(self.probed()),
            (Call::Adopt { cluster }, _) => match self.founding.adopt(cluster) {
                Ok(()) => Answer::Adopted,
                Err(error) => Answer::Refused { reason: error.to_string() },
            },
            // From a program that does not know the rules in use, and will stop: it says nothing of who gave the commands.
            (Call::Propose(_), Some(handle)) if handle.view(LeaseTable::rules) > 1 => Answer::NotDone,
            (Call::Propose(commands), Some(handle)) => {
                unless_full(propose(handle, Asker::UNNAMED, commands.into()).await)
            }
            (Call::ProposeBy(request), Some(handle)) => {
                unless_full(propose(handle, Asker::UNNAMED, request).await)
            }
            (Call::ProposeOf { asker, request }, Some(handle)) => {
                propose(handle, Asker::from_number(asker), request).await
            }
            (Call::ReadIndex, Some(handle)) => match handle.shared.reads.confirm_here().await {
                Some(ReadPoint { log_id, now_ms }) => Answer::ReadPoint { last: log_id.into(), now_ms },
                None => Answer::NotDone,
            },
            (Call::Order(order), Some(handle)) => {
                match handle.shared.order_here(order, Instant::now() + members::TIMEOUT).await {
                    Ok(()) => Answer::Ordered,
                    Err(error) => refused(error),
                }
            }
            (Call::MirrorHas { keys, revision }, Some(handle)) => {
                Answer::MirrorHas(handle.mirror_has_here(&keys, revision).await)
            }
            (Call::Upgrade { to, check }, Some(handle)) => {
                match handle.shared.upgrade_here(to, check, Instant::now() + members::TIMEOUT).await {
                    Ok(upgraded) => Answer::Upgraded(upgraded),
                    Err(error) => refused(error),
                }
            }
            (Call::Difference { after, upto }, Some(handle)) => {
                Answer::Difference(handle.shared.applied.lock().witness.difference(after, upto))
            }
            _ => Answer::NotDone,
        }
    }
}

/// In the turns of the principal, whichever node it asks, or else of `asker`, which the other node calls a host.
async fn propose(handle: &Handle, asker: Asker, request: Request) -> Answer {
    let principal = request.name().filter(|name| **name != PrincipalName::anonymous());
    let asker = principal.map_or(asker, Asker::of);
    match handle.propose_here(asker, request, Instant::now() + TIMEOUT).await {
        Ok(outcomes) => Answer::Outcomes(outcomes),
        Err(Failure::Rejected(_)) => Answer::NotDone,
        Err(Failure::Full) => Answer::Full,
        Err(Failure::Unknown) => Answer::Unknown,
    }
}

/// For programs that know no such answer.
fn unless_full(answer: Answer) -> Answer {
    if answer == Answer::Full { Answer::NotDone } else { answer }
}

fn refused(error: MembersError) -> Answer {
    match error {
        MembersError::Refused(reason) => Answer::Refused { reason },
        MembersError::Unanswered(Unanswered::Unavailable | Unanswered::Full) => Answer::NotDone,
        MembersError::Unanswered(Unanswered::Indeterminate) => Answer::Unknown,
    }
}

impl NodeService {
    fn probed(&self) -> Probed {
        let members = self.directory.membership().map(|membership| {
            membership.membership().nodes().map(|(id, member)| (*id, member.clone())).collect()
        });
        Probed {
            incarnation: self.directory.identity.incarnation,
            cluster: self.founding.cluster(),
            pristine: self.founding.is_pristine(),
            members: members.unwrap_or_default(),
        }
    }
}
