//! `MULTI`, `WATCH` and `EXEC`: commands that are done together, if the watched keys have not changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use ringfence_http::{Connection, Portion};
use ringfence_script::Budget;
use ringfence_service::Transaction;
use ringfence_wire::Key;

use super::asked::Asked;
use super::perform::{Act, OwnTurns};
use super::{Done, Session};
use crate::command::CommandName;
use crate::frame::Request;
use crate::refused::{Kind, Refused};
use crate::reply::Reply;
use crate::requester::Visit;
use crate::verbs::{Answer, Context};
use crate::work::{self, Watched, Work};

/// The most commands behind MULTI.
const MAX_QUEUED: usize = 64;
/// The most bytes of all commands behind MULTI.
const MAX_QUEUED_BYTES: usize = 64 << 10;

/// What waits for EXEC.
#[derive(Default)]
pub(super) struct Pending {
    queue: Option<Queue>,
    watched: Vec<(Key, Watched)>,
    /// The memory of the queue and of the watched keys.
    portions: Vec<Portion>,
    /// A command was left out, so EXEC does nothing.
    is_spoiled: bool,
}

#[derive(Default)]
struct Queue {
    /// The requests, as they were sent.
    requests: Vec<Bytes>,
    bytes: usize,
}

impl Pending {
    pub(super) fn is_queueing(&self) -> bool {
        self.queue.is_some()
    }

    /// `MULTI`
    pub(super) fn begin(&mut self) -> Done {
        self.queue = Some(Queue::default());
        Done::Reply(Reply::OK)
    }

    /// Notes that a command was refused: without it, the transaction is another one, and EXEC does nothing.
    pub(super) fn refuse(&mut self, command: CommandName) {
        self.is_spoiled |= self.is_queueing() || command == CommandName::Watch;
    }

    /// Queues a request.
    pub(super) fn queue(&mut self, sent: &Bytes, portion: Option<Portion>) -> Result<Done, Refused> {
        let queue = self.queue.get_or_insert_default();
        let bytes = queue.bytes + sent.len();
        if queue.requests.len() == MAX_QUEUED || bytes > MAX_QUEUED_BYTES {
            let text = "ERR ringfence: at most 64 commands are queued behind MULTI, of 64 KiB together";
            return Err(Refused::arguments(text));
        }
        self.portions.push(portion.ok_or_else(no_room)?);
        queue.bytes = bytes;
        // A slice would keep all bytes that arrived with it.
        queue.requests.push(Bytes::copy_from_slice(sent));
        Ok(Done::Reply(Reply::Status("QUEUED".into())))
    }

    /// `UNWATCH`
    pub(super) fn unwatch(&mut self) -> Done {
        *self = Self::default();
        Done::Reply(Reply::OK)
    }
}

impl Session {
    /// `DISCARD`
    pub(super) fn discard(&mut self) -> Result<Done, Refused> {
        self.pending = Pending::default();
        Ok(Done::Reply(Reply::OK))
    }

    /// `WATCH key …`
    pub(super) async fn watch(
        &mut self,
        names: &[Bytes],
        visit: &mut Visit,
        connection: &Arc<Connection>,
    ) -> Result<Done, Refused> {
        let naming = self.client.naming();
        let keys: Vec<Key> = names.iter().map(|name| naming.key(name)).collect::<Result<_, _>>()?;
        let watched = &self.pending.watched;
        work::keys_of(keys.iter().chain(watched.iter().map(|(key, _)| key)))?;
        // A key that is watched already keeps its first state.
        let new: BTreeSet<Key> =
            keys.into_iter().filter(|key| watched.iter().all(|(known, _)| known != key)).collect();
        if new.is_empty() {
            return Ok(Done::Reply(Reply::OK));
        }
        let bytes = new.iter().map(|key| 64 + key.as_str().len()).sum();
        let portion = connection.portion(&self.client.door.room, bytes).ok_or_else(no_room)?;
        let mut seen = Vec::new();
        let keys = work::keys_of(&new)?;
        let look = Look { keys: &new, seen: &mut seen };
        let done = self.client.transact(visit, connection, &keys, look).await?;
        self.pending.watched.extend(seen);
        self.pending.portions.push(portion);
        Ok(done)
    }

    /// `EXEC`
    pub(super) async fn exec(
        &mut self,
        asked: &mut Asked,
        connection: &Arc<Connection>,
    ) -> Result<Done, Refused> {
        let visit = &mut asked.visit;
        let Pending { queue, watched, portions: _portions, is_spoiled } = std::mem::take(&mut self.pending);
        let queue = queue.unwrap_or_default();
        if is_spoiled {
            let text = "EXECABORT Transaction discarded because of previous errors.";
            return Err(Refused::new(Kind::Order, text));
        }
        let works = queue.requests.iter().map(|sent| {
            let request = Request::read(sent)?;
            Work::read(&request.arguments, &mut self.client.from(visit, Context::Queued))
        });
        let works: Vec<Work> = works.collect::<Result<_, _>>()?;
        let _scripts = self.client.room_for_scripts(connection, &works)?;
        let keys = works.iter().flat_map(Work::keys).chain(watched.iter().map(|(key, _)| key));
        let keys = work::keys_of(keys)?;
        self.client.transact(visit, connection, &keys, All { watched: &watched, works: &works }).await
    }
}

/// `WATCH`
struct Look<'a> {
    keys: &'a BTreeSet<Key>,
    seen: &'a mut Vec<(Key, Watched)>,
}

impl Act for Look<'_> {
    async fn act(&mut self, keys: &mut Transaction, _: &mut Budget, _: &mut OwnTurns<'_>) -> Answer {
        self.seen.clear();
        for key in self.keys {
            self.seen.push((key.clone(), Watched::look(keys, key)?));
        }
        Ok(Reply::OK)
    }
}

/// `EXEC`
struct All<'a> {
    watched: &'a [(Key, Watched)],
    works: &'a [Work],
}

impl Act for All<'_> {
    async fn act(&mut self, keys: &mut Transaction, budget: &mut Budget, turns: &mut OwnTurns<'_>) -> Answer {
        for (key, seen) in self.watched {
            if Watched::look(keys, key)? != *seen {
                return Ok(Reply::NullArray);
            }
        }
        let mut replies = Vec::with_capacity(self.works.len());
        for work in self.works {
            replies.push(work.run(keys, budget, turns).await.map_err(failed)?);
        }
        Ok(Reply::Array(replies))
    }
}

/// The error of EXEC after one command has failed. Redis would have done the other commands.
fn failed(refused: Refused) -> Refused {
    refused
        .reworded(|text| format!("EXECABORT ringfence: nothing was done, because one command failed: {text}"))
}

fn no_room() -> Refused {
    let text = "ERR ringfence: this node has no room for more commands behind MULTI, and keys of WATCH";
    Refused::new(Kind::Overloaded, text)
}
