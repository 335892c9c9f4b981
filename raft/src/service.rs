//! What a node answers to calls of other nodes, beyond Raft's own.

use std::sync::{Arc, OnceLock};

use ringfence_lease::Request;
use ringfence_wire::PrincipalName;
use tokio::time::Instant;

use crate::handle::Handle;
use crate::members;
use crate::members::founding::Founding;
use crate::peer::{Answer, Call, Directory, Probed, ReadPoint, Service};
use crate::propose::asker::Asker;
use crate::propose::proposal::{Failure, Origin};
use crate::unanswered::{MembersError, TIMEOUT, Unanswered};

/// The newest rules of programs that send [`Call::Propose`], which does not say who gave the commands.
const PROPOSE: u8 = 1;
/// Those of programs that send [`Call::ProposeBy`].
const PROPOSE_BY: u8 = 4;

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
            (Call::Propose(commands), Some(handle)) => {
                let origin = Origin { asker: Asker::UNNAMED, supports: PROPOSE };
                unless_full(propose(handle, origin, commands.into()).await)
            }
            (Call::ProposeBy(request), Some(handle)) => {
                let origin = Origin { asker: Asker::UNNAMED, supports: PROPOSE_BY };
                unless_full(propose(handle, origin, request).await)
            }
            (Call::ProposeOf { asker, supports, request }, Some(handle)) => {
                propose(handle, Origin { asker: Asker::from_number(asker), supports }, request).await
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

/// Takes the turns of the principal, whichever node it asks. Without one, those of the asker, which is a host to the other node.
async fn propose(handle: &Handle, mut origin: Origin, request: Request) -> Answer {
    let principal = request.name().filter(|name| **name != PrincipalName::anonymous());
    origin.asker = principal.map_or(origin.asker, Asker::of);
    match handle.propose_here(origin, request, Instant::now() + TIMEOUT, &mut false).await {
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
