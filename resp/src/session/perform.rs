//! Runs commands and scripts, all or nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use ringfence_http::{Connection, Portion};
use ringfence_script::{Budget, Turns};
use ringfence_service::{Keys, Steps, Transaction};

use super::client::Client;
use super::{Done, Session};
use crate::measure;
use crate::refused::{Kind, Refused};
use crate::reply::Reply;
use crate::requester::{Requester, Visit};
use crate::response::Encoded;
use crate::scripts::Digest;
use crate::verbs::{Answer, Context};
use crate::work::{self, Work};

impl Client {
    /// Runs one command or script.
    pub(super) async fn perform(
        &self,
        visit: &mut Visit,
        connection: &Arc<Connection>,
        work: &Work,
    ) -> Result<Done, Refused> {
        let _scripts = self.room_for_scripts(connection, [work])?;
        if work.keys().is_empty() {
            let (mut nothing, mut budget) = (Transaction::new(std::iter::empty()), Budget::of_request());
            let mut turns = OwnTurns { client: self, connection, visit, memory: None };
            let answer = work.run(&mut nothing, &mut budget, &mut turns).await;
            visit.ran(budget.spent_requests());
            return answer.map(Done::Reply);
        }
        self.transact(visit, connection, &work::keys_of(work.keys())?, work).await
    }

    /// Does `act` on a copy of `keys`, and makes its changes. If the keys have changed meanwhile, does it again.
    pub(super) async fn transact(
        &self,
        visit: &mut Visit,
        connection: &Arc<Connection>,
        keys: &Keys,
        act: impl Act,
    ) -> Result<Done, Refused> {
        let mut doing =
            Doing { act, client: self, connection, budget: Budget::of_request(), runs: 0, stopped: None };
        let transacted = self.door.service.transact(visit, keys, self.name.as_ref(), &mut doing).await?;
        measure::reran(doing.runs - 1);
        transacted.transpose().map(Done::Transacted)
    }

    /// Room for the scripts of a request, until it is answered. Small scripts take none.
    pub(super) fn room_for_scripts<'a>(
        &self,
        connection: &Connection,
        works: impl IntoIterator<Item = &'a Work> + Clone,
    ) -> Result<Option<Portion>, Refused> {
        if works.clone().into_iter().map(Work::script_bytes).sum::<usize>() <= work::LARGE {
            return Ok(None);
        }
        let bytes = work::bytes_of_scripts(works);
        connection.portion(&self.door.room, bytes).ok_or_else(no_room).map(Some)
    }
}

/// What a request does with the keys that it names.
pub(super) trait Act: Send {
    /// Does this on a copy of the keys.
    fn act(
        &mut self,
        keys: &mut Transaction,
        budget: &mut Budget,
        turns: &mut OwnTurns<'_>,
    ) -> impl Future<Output = Answer> + Send;
}

impl Act for &Work {
    async fn act(&mut self, keys: &mut Transaction, budget: &mut Budget, turns: &mut OwnTurns<'_>) -> Answer {
        self.run(keys, budget, turns).await
    }
}

/// A request that is being done.
struct Doing<'a, A> {
    act: A,
    client: &'a Client,
    connection: &'a Arc<Connection>,
    budget: Budget,
    runs: u64,
    /// Why the scripts were stopped when nothing was left of the budget. Another run would stop in its first line.
    stopped: Option<Refused>,
}

impl<A: Act> Steps<Result<Encoded, Refused>, Requester> for Doing<'_, A> {
    async fn run(
        &mut self,
        keys: &mut Transaction,
        visit: &mut Visit,
    ) -> Result<Result<Encoded, Refused>, Result<Encoded, Refused>> {
        let Self { act, client, connection, budget, runs, stopped } = self;
        if let Some(refused) = stopped {
            return Err(Err(refused.clone()));
        }
        *runs += 1;
        keys.tell(|lease| {
            client.door.service.number_of(lease) == Some(client.last_acquired.load(Ordering::Relaxed))
        });
        let mut turns = OwnTurns { client, connection, visit, memory: None };
        let reply = act.act(keys, budget, &mut turns).await;
        drop(turns);
        visit.ran(budget.spent_requests());
        *stopped = reply.as_ref().err().filter(|_| budget.is_used_up()).cloned();
        if keys.needs_client() && connection.is_gone() {
            let text = "ERR ringfence: the client has hung up, so it gets and keeps no lock: it was not done";
            return Err(Err(Refused::new(Kind::Gone, text)));
        }
        let reply = reply.and_then(|reply| match keys.endless() {
            Some(key) => Err(Refused::unsupported(&format!(
                "a lock needs a time after which it ends, and {key} is left without one: use SET with PX or EX, or PEXPIRE after it"
            ))),
            None => Ok(reply),
        });
        // A reply that is too long must fail before anything is proposed.
        match reply.and_then(|reply| Encoded::of(&reply, client.protocol, connection)) {
            Ok(encoded) => Ok(Ok(encoded)),
            Err(refused) => Err(Err(refused)),
        }
    }
}

/// The turns in which the scripts of a request run.
pub(super) struct OwnTurns<'a> {
    client: &'a Client,
    connection: &'a Arc<Connection>,
    visit: &'a mut Visit,
    /// The memory that the scripts keep while they wait for a turn.
    memory: Option<Portion>,
}

impl Turns<Refused> for OwnTurns<'_> {
    async fn next(&mut self, budget: &Budget) -> Result<(), Refused> {
        self.visit.ran(budget.spent_requests());
        self.memory = None;
        self.memory = self.connection.portion(&self.client.door.room, budget.taken_bytes());
        if self.memory.is_none() {
            return Err(no_room());
        }
        self.connection.next_turn().await;
        Ok(())
    }
}

fn no_room() -> Refused {
    let text = "ERR ringfence: this node has no room for more scripts that are large or take long";
    Refused::new(Kind::Overloaded, text)
}

impl Session {
    /// `SCRIPT LOAD text`, `SCRIPT EXISTS digest …`, `SCRIPT FLUSH`
    pub(super) fn script(&self, arguments: &[Bytes], visit: &mut Visit) -> Result<Done, Refused> {
        let scripts = &self.client.door.scripts;
        let subcommand = arguments[0].to_ascii_lowercase();
        let reply = match (&subcommand[..], &arguments[1..]) {
            (b"load", [text]) => {
                let (digest, _) = work::load(text, &mut self.client.from(visit, Context::Alone))?;
                Reply::bulk(digest.to_string())
            }
            (b"exists", digests @ [_, ..]) => Reply::Array(
                digests
                    .iter()
                    .map(|digest| {
                        let digest = Digest::parse(digest);
                        let is_known =
                            digest.is_some_and(|digest| scripts.get(visit.caller().name(), digest).is_some());
                        Reply::Integer(is_known.into())
                    })
                    .collect(),
            ),
            // Only the scripts of this principal.
            (b"flush", [] | [_]) => {
                scripts.flush(visit.caller().name());
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
