use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_http::{Answer, Connection, Remote};
use ringfence_service::Caller;
use ringfence_wire::{Holder, PrincipalName};

use super::Done;
use crate::door::Door;
use crate::key_name::Naming;
use crate::refused::{Kind, Refused};
use crate::reply::{Protocol, Reply};
use crate::requester::Visit;
use crate::response::{self, Encoded};
use crate::verbs::Context;
use crate::work::From;

/// What requests use of the connection that they came on. Those beside others have a copy.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) door: Arc<Door>,
    pub(super) remote: Arc<Remote>,
    pub(super) protocol: Protocol,
    pub(super) database: u16,
    /// The name that the client gave itself. Its leases show it as the holder.
    pub(super) name: Option<Holder>,
    /// The number of the last lease that was acquired here. Later answers reach the client only if the answer about this lease does, or if
    /// that came too late: then the lease's time is over, and it is taken back.
    pub(super) last_acquired: Arc<AtomicU64>,
}

impl Client {
    pub(super) fn new(door: Arc<Door>, remote: Arc<Remote>) -> Self {
        let last_acquired = Arc::new(AtomicU64::new(u64::MAX));
        Self { door, remote, protocol: Protocol::Resp2, database: 0, name: None, last_acquired }
    }

    /// Makes the sender of the last request the owner of the connection. Without access rules, nobody is a stranger: an idle client stays
    /// unless others need its room.
    pub(super) fn owns(&self, connection: &Connection, caller: Option<&Caller>) {
        connection.belongs_to(caller.and_then(Caller::name).map(PrincipalName::as_str));
        connection.is_known(!self.door.service.has_rules());
    }

    pub(super) fn naming(&self) -> Naming {
        Naming { database: self.database, rules: self.door.service.rules() }
    }

    pub(super) fn from<'a>(&self, visit: &'a mut Visit, context: Context) -> From<'a> {
        From { visit, naming: self.naming(), context }
    }

    /// Answers what a request came to. One that came too soon is held back, and may be closed meanwhile.
    pub(super) async fn conclude(
        &self,
        done: Result<Done, Refused>,
        mut visit: Visit,
        connection: &Arc<Connection>,
    ) -> Answer {
        visit.done();
        let encoded = |reply: &Reply| Encoded::of(reply, self.protocol, connection);
        let (result, is_last) = match done {
            Ok(Done::Transacted(transacted)) => {
                let acquired = transacted.acquired().last();
                if let Some(number) = acquired.and_then(|lease| self.door.service.number_of(lease)) {
                    self.last_acquired.store(number, Ordering::Relaxed);
                }
                return response::of_transacted(transacted, visit);
            }
            Ok(Done::Reply(reply)) => (encoded(&reply), false),
            Ok(Done::Last(reply)) => (encoded(&reply), true),
            // Another node may have a leader, and here all that is behind it would wait, too.
            Err(refused) => {
                let is_last = refused.kind() == Kind::NoLeader;
                (Err(refused), is_last)
            }
        };
        match result {
            Ok(encoded) => response::answer(encoded, is_last, visit),
            Err(refused) => {
                self.door.refused_calls.tell(&refused, visit.caller());
                let ending = visit.report_mut().refuse(refused.kind());
                connection.hold_back(visit.ended(ending, || connection.rests())).await;
                response::refusal(&refused, is_last)
            }
        }
    }
}
