use super::Verb;
use super::words::{Unit, Words};
use crate::refused::Refused;
use crate::reply::Reply;

/// `EXPIRE key seconds`
pub(super) fn expire(words: &Words) -> Result<Verb, Refused> {
    verb(words, Unit::Seconds)
}

/// `PEXPIRE key milliseconds`
pub(super) fn pexpire(words: &Words) -> Result<Verb, Refused> {
    verb(words, Unit::Milliseconds)
}

/// A time of 0 or less ends the lock.
fn verb(words: &Words, unit: Unit) -> Result<Verb, Refused> {
    let (key, ms) = (words.key(0)?, words.ms(1, unit)?);
    if words.arguments.len() > 2 {
        return Err(Refused::unsupported("EXPIRE and PEXPIRE have no options here"));
    }
    let ttl = if ms > 0 { Some(words.ttl_of(ms)?) } else { None };
    Ok(Verb::new([key.clone()], move |transaction| {
        let is_held = match ttl {
            Some(ttl) => transaction.expire(&key, ttl)?,
            None => transaction.end(&key)?,
        };
        Ok(Reply::Integer(is_held.into()))
    }))
}
