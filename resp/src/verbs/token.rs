use ringfence_service::Seen;

use super::Verb;
use super::words::Words;
use crate::refused::{Kind, Refused};
use crate::reply::Reply;

/// `RINGFENCE.TOKEN key value`: the fencing token of the lock with this value, for its holder. Nothing, if the lock is no more.
///
/// Whoever does not know the value is not the holder, and could only pass a token off as its own.
pub(super) fn token(words: &Words) -> Result<Verb, Refused> {
    let (key, value) = (words.key(0)?, words.value(1)?);
    Ok(Verb::new([key.clone()], move |transaction| {
        if !matches!(transaction.see(&key)?, Seen::Own(own) if *own == value) {
            return Ok(Reply::Null);
        }
        match transaction.token(&key, &value)? {
            Some(token) => Ok(Reply::Integer(i64::try_from(token.0).unwrap_or(i64::MAX))),
            None => Err(Refused::new(
                Kind::Order,
                "ERR ringfence: the lock has its token once this request is done: ask in the next one",
            )),
        }
    }))
}
