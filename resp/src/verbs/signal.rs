//! Commands by which the release script of a library wakes waiters.
//!
//! Waiters would sleep in SUBSCRIBE or BLPOP, which are refused. So there are no waiters, and a message or a push has no effect: no element is
//! stored, and the key stays free. This cannot be told from Redis if the script has deleted the key before, and only sets its time after.
//! Any other use of a list is refused: it may be a lock.

use std::collections::BTreeMap;
use std::mem;

use ringfence_wire::Key;

use super::words::{Context, Words};
use super::{Answer, Verb};
use crate::refused::Refused;
use crate::reply::Reply;

/// The keys that a script has deleted, and whether it has pushed to them since.
#[derive(Debug, Default)]
pub(crate) struct Signals(BTreeMap<Key, bool>);

impl Signals {
    /// Looks at a command before it runs. If it is about a list, this is its answer.
    pub(crate) fn answer(&mut self, verb: &Verb, elements: usize) -> Option<Answer> {
        let keys = verb.keys();
        let is_list = keys.iter().any(|key| self.0.get(key) == Some(&true));
        match verb.name {
            "expire" | "pexpire" if is_list => Some(Ok(Reply::Integer(1))),
            "lpush" | "rpush" => {
                let deleted = keys.first().and_then(|key| self.0.get_mut(key));
                Some(match deleted.is_some_and(|is_pushed| !mem::replace(is_pushed, true)) {
                    true => Ok(Reply::Integer(elements as i64)),
                    false => Err(no_list()),
                })
            }
            _ if is_list => Some(Err(no_list())),
            "del" | "unlink" => {
                self.0.extend(keys.iter().map(|key| (key.clone(), false)));
                None
            }
            "set" | "setex" | "psetex" | "setnx" => {
                self.0.retain(|key, _| !keys.contains(key));
                None
            }
            _ => None,
        }
    }
}

/// `PUBLISH channel message`, in a script. No client receives it.
pub(super) fn publish(words: &Words) -> Result<Verb, Refused> {
    check(words)?;
    Ok(Verb::new([], |_| Ok(Reply::Integer(0))))
}

/// `LPUSH key element …` or `RPUSH`, in a script: see [`Signals`].
pub(super) fn push(words: &Words) -> Result<Verb, Refused> {
    check(words)?;
    Ok(Verb::new([words.key(0)?], |_| Err(no_list())))
}

fn no_list() -> Refused {
    Refused::unsupported(
        "there are no lists: a script may only DEL a key, push to it once, and set its time, as if to wake waiters",
    )
}

fn check(words: &Words) -> Result<(), Refused> {
    match words.context {
        Context::Script => Ok(()),
        Context::Alone | Context::Queued => {
            Err(Refused::unsupported("nobody can wait for a message or an element here, so none is sent"))
        }
    }
}
