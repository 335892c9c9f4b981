//! Runs commands and scripts, all or nothing.

use std::sync::Arc;

use bytes::Bytes;
use ringfence_http::Connection;
use ringfence_service::{Caller, Keys, Transaction};

use super::{Done, Peer, Session};
use crate::measure;
use crate::refused::{Kind, Refused};
use crate::reply::Reply;
use crate::response::Encoded;
use crate::script::Budget;
use crate::scripts::Digest;
use crate::verbs::{Answer, Place};
use crate::work::{self, Work};

impl Peer {
    /// Runs one command or script.
    pub(super) async fn perform(
        &self,
        caller: &Caller,
        connection: &Arc<Connection>,
        work: &Work,
    ) -> Result<Done, Refused> {
        if work.keys().is_empty() {
            let (mut nothing, mut budget) = (Transaction::new(std::iter::empty()), Budget::of_request());
            let answer = work.run(&mut nothing, &mut budget);
            self.charge(caller, &budget, &mut 0);
            return answer.map(Done::Reply);
        }
        let keys = work::keys_of(work.keys())?;
        self.transact(caller, connection, &keys, |transaction, budget| work.run(transaction, budget)).await
    }

    /// Runs `run` on a copy of `keys`, again if they have changed, and makes its changes.
    pub(super) async fn transact(
        &self,
        caller: &Caller,
        connection: &Arc<Connection>,
        keys: &Keys,
        mut run: impl FnMut(&mut Transaction, &mut Budget) -> Answer + Send,
    ) -> Result<Done, Refused> {
        let (mut budget, mut runs, mut charged) = (Budget::of_request(), 0, 0);
        let transacted = self.node.service.transact(caller, keys, self.name.as_ref(), |transaction| {
            runs += 1;
            let reply = run(transaction, &mut budget);
            self.charge(caller, &budget, &mut charged);
            if transaction.needs_client() && connection.is_gone() {
                let text =
                    "ERR ringfence: the client has hung up, so it gets and keeps no lock: it was not done";
                return Err(Err(Refused::new(Kind::Gone, text)));
            }
            // A reply that is too long must fail before anything is proposed.
            match reply.and_then(|reply| Encoded::of(&reply, self.protocol, connection)) {
                Ok(encoded) => Ok(Ok(encoded)),
                Err(refused) => Err(Err(refused)),
            }
        });
        let transacted = transacted.await?;
        measure::reran(runs - 1);
        transacted.transpose().map(Done::Transacted)
    }

    /// Counts what the scripts of a request have cost as further requests, but for those that were `charged` before.
    fn charge(&self, caller: &Caller, budget: &Budget, charged: &mut usize) {
        let spent = budget.spent_requests();
        self.node.service.count_done(caller, spent - *charged);
        *charged = spent;
    }
}

impl Session {
    /// `SCRIPT LOAD text`, `SCRIPT EXISTS digest …`, `SCRIPT FLUSH`
    pub(super) fn script(&self, arguments: &[Bytes], caller: &Caller) -> Result<Done, Refused> {
        let (scripts, of) = (&self.peer.node.scripts, caller.name());
        let subcommand = arguments[0].to_ascii_lowercase();
        let reply = match (&subcommand[..], &arguments[1..]) {
            (b"load", [text]) => {
                let (digest, _) = work::load(text, self.peer.from(caller, Place::Alone))?;
                Reply::bulk(digest.to_string())
            }
            (b"exists", digests @ [_, ..]) => Reply::Array(
                digests
                    .iter()
                    .map(|digest| {
                        let digest = Digest::parse(digest);
                        let is_known = digest.is_some_and(|digest| scripts.get(of, digest).is_some());
                        Reply::Integer(is_known.into())
                    })
                    .collect(),
            ),
            // Only the scripts of this principal.
            (b"flush", [] | [_]) => {
                scripts.flush(of);
                Reply::OK
            }
            (b"kill", []) => {
                return Err(Refused::arguments("NOTBUSY No scripts in execution right now."));
            }
            _ => return Err(Refused::unsupported("SCRIPT has LOAD, EXISTS and FLUSH here")),
        };
        Ok(Done::Reply(reply))
    }
}
