//! Commands by which the release script of a library wakes waiters.
//!
//! Waiters would sleep in SUBSCRIBE or BLPOP, which are refused. So there are no waiters, and a message or a push has no effect. A push stores
//! no element, either: the key stays free.

use ringfence_service::Seen;

use super::Verb;
use super::words::{Place, Words};
use crate::refused::{Kind, Refused};
use crate::reply::Reply;

/// `PUBLISH channel message`, in a script. No client receives it.
pub(super) fn publish(words: &Words) -> Result<Verb, Refused> {
    check(words)?;
    Ok(Verb::new([], |_| Ok(Reply::Integer(0))))
}

/// `LPUSH key element …` or `RPUSH`, in a script. Answers the number of elements, and stores none.
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
