//! What libraries do in their release to wake those who wait, as far as it is true that nobody does.
//!
//! A waiter sleeps in SUBSCRIBE or BLPOP, which are refused, so no client can sleep here. A message then reaches nobody, and a push wakes
//! nobody. Its element would stay for the next waiter, to no avail: it leaves nothing, and a key that is only pushed to stays free.

use ringfence_service::Seen;

use super::Verb;
use super::words::{Place, Words};
use crate::refused::{Kind, Refused};
use crate::reply::Reply;

/// `PUBLISH channel message`, in a script: nobody receives it.
pub(super) fn publish(words: &Words) -> Result<Verb, Refused> {
    check(words)?;
    Ok(Verb::new([], |_| Ok(Reply::Integer(0))))
}

/// `LPUSH key element …` or `RPUSH`, in a script: the length of a list that nobody reads.
pub(super) fn push(words: &Words) -> Result<Verb, Refused> {
    check(words)?;
    let (key, count) = (words.key(0)?, words.arguments.len() - 1);
    Ok(Verb::new([key.clone()], move |transaction| match transaction.see(&key)? {
        Seen::Free => Ok(Reply::Integer(count as i64)),
        Seen::Own(_) | Seen::Taken => Err(Refused::new(
            Kind::Taken,
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        )),
    }))
}

fn check(words: &Words) -> Result<(), Refused> {
    match words.place {
        Place::Script => Ok(()),
        Place::Alone | Place::Queued => {
            Err(Refused::unsupported("nobody can wait for a message or an element here, so none is sent"))
        }
    }
}
