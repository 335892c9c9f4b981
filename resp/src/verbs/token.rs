use ringfence_service::Seen;

use super::Verb;
use super::words::Words;
use crate::refused::{Kind, Refused};
use crate::reply::Reply;

/// `RINGFENCE.TOKEN key value`: the token of the lock with this value, or nil if there is no such lock.
///
/// A client must show the value. Otherwise any client could get the token, and write as if it were the holder.
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
