//! Requests that do not wait for each other: a client may share a connection among its threads.
//!
//! These are commands on keys, and small scripts, outside MULTI, that name no key of a request which is being answered. All others are done
//! alone. Of these, what was read is kept, and for what they were counted. Whether they may be done is decided once they are alone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use ringfence_http::{Answer, Begun, Connection};
use ringfence_service::{BYTES_OF_A_REQUEST, Keys};
use ringfence_wire::Key;

use super::Session;
use super::asked::{Asked, Read};
use crate::command::CommandName;
use crate::refused::Refused;
use crate::verbs::Context;
use crate::work::{self, Work};

/// The keys of the requests that are being answered.
#[derive(Clone, Default)]
pub(super) struct NamedKeys(Arc<Mutex<BTreeSet<Key>>>);

/// The keys of one request, until this is dropped.
struct Named {
    keys: Keys,
    among: NamedKeys,
}

impl Session {
    /// Begins to answer a request.
    pub(crate) fn begin(
        &mut self,
        sent: Bytes,
        connection: &Arc<Connection>,
    ) -> Begun<impl Future<Output = Answer> + Send + use<>, Read> {
        let read = self.read(sent);
        let Ok(Some(mut asked)) = read else { return Begun::Alone(read) };
        let Some(beside) = self.beside(&mut asked) else {
            asked.visit.waits();
            return Begun::Alone(Ok(Some(asked)));
        };
        let mut visit = asked.visit;
        self.client.owns(connection, Some(visit.caller()));
        let (client, connection) = (self.client.clone(), Arc::clone(connection));
        Begun::Beside(async move {
            let done = match beside {
                Ok((named, work)) => client.transact(&mut visit, &connection, &named.keys, &work).await,
                Err(refused) => Err(refused),
            };
            client.conclude(done, visit, &connection).await
        })
    }

    /// What a request does beside others, if it may be beside them.
    fn beside(&self, asked: &mut Asked) -> Option<Result<(Named, Work), Refused>> {
        let is_large = asked.sent.len() >= BYTES_OF_A_REQUEST;
        if asked.command != CommandName::Work || self.pending.is_queueing() || is_large {
            return None;
        }
        self.admit(asked, self.credential).ok()?;
        let Asked { name, arguments, visit, work: kept, .. } = asked;
        let work = CommandName::check(name, arguments.len() - 1)
            .and_then(|()| Work::read(arguments, &mut self.client.from(visit, Context::Alone)))
            .and_then(|work| Ok((work::keys_of(work.keys())?, work)));
        match work {
            Ok((_, work)) if work.is_large() => None,
            Ok((keys, work)) => {
                let named = if work.keys().is_empty() { None } else { self.named.add(keys) };
                match named {
                    Some(named) => Some(Ok((named, work))),
                    None => {
                        *kept = Some(work);
                        None
                    }
                }
            }
            Err(refused) => Some(Err(refused)),
        }
    }
}

impl NamedKeys {
    /// `None`: one of the keys is named already.
    fn add(&self, keys: Keys) -> Option<Named> {
        let mut all = self.all();
        if keys.iter().any(|key| all.contains(key)) {
            return None;
        }
        all.extend(keys.iter().cloned());
        Some(Named { keys, among: self.clone() })
    }

    fn all(&self) -> MutexGuard<'_, BTreeSet<Key>> {
        self.0.lock().expect("nothing panics while the keys are locked")
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut all = self.among.all();
        for key in self.keys.iter() {
            all.remove(key);
        }
    }
}
