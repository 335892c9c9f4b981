//! Requests that do not wait for each other: a client may share a connection among its threads.
//!
//! These are commands on keys, and small scripts, outside MULTI, that name no key of a request which is being answered. All others are done
//! alone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use ringfence_http::{Answer, Connection};
use ringfence_service::{BYTES_OF_A_REQUEST, Keys};
use ringfence_wire::Key;

use super::{Session, check_rights};
use crate::command::Command;
use crate::frame::Request;
use crate::verbs::Place;
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
    /// Answers a request beside others. `None`: it must be done alone, and [`Session::answer`] is next.
    pub(crate) fn answer_beside(
        &mut self,
        sent: &Bytes,
        connection: &Arc<Connection>,
    ) -> Option<impl Future<Output = Answer> + Send + use<>> {
        if self.pending.is_queueing() || sent.len() >= BYTES_OF_A_REQUEST {
            return None;
        }
        let Request { arguments, is_words } = Request::read(sent).ok()?;
        let (name, command) = Command::of(arguments.first()?);
        if is_words || command != Command::Work {
            return None;
        }
        let caller = self.caller().ok()?;
        check_rights(&caller, command).ok()?;
        self.peer.node.service.count_request(&caller).ok()?;
        self.is_counted = true;
        let work = Command::check(name, arguments.len() - 1)
            .and_then(|()| Work::read(&arguments, self.peer.from(&caller, Place::Alone)))
            .and_then(|work| Ok((work::keys_of(work.keys())?, work)));
        let work = match work {
            Ok((_, work)) if work.keys().is_empty() || work.is_large() => return None,
            Ok((keys, work)) => Ok((self.named.add(keys)?, work)),
            Err(refused) => Err(refused),
        };
        (self.is_counted, self.is_first) = (false, false);
        self.peer.owns(connection, Some(&caller));
        let (peer, mut open, connection) = (self.peer.clone(), self.peer.open(name), Arc::clone(connection));
        open.is_of(caller.principal());
        Some(async move {
            let done = match work {
                Ok((named, work)) => {
                    peer.transact(peer.turns(&caller, &connection), &named.keys, &work).await
                }
                Err(refused) => Err(refused),
            };
            peer.conclude(done, open, Some(&caller), &connection).await
        })
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
