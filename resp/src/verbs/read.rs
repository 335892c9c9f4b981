use ringfence_service::{Seen, Transaction};
use ringfence_wire::{Key, MIN_TTL_MS};

use super::Verb;
use super::words::{Unit, Words};
use crate::refused::Refused;
use crate::reply::Reply;

/// The value of a key that is held, and not by a lease with a value that the client may know.
pub(super) const HELD: &str = "ringfence:held-by-another";

/// `GET key`
pub(super) fn get(words: &Words) -> Result<Verb, Refused> {
    let key = words.key(0)?;
    Ok(Verb::new([key.clone()], move |transaction| {
        Ok(match transaction.see(&key)? {
            Seen::Free => Reply::Null,
            Seen::Own(value) => Reply::Bulk(value.as_bytes().to_vec().into()),
            Seen::Taken => Reply::Bulk(HELD.into()),
        })
    }))
}

/// `EXISTS key …`
pub(super) fn exists(words: &Words) -> Result<Verb, Refused> {
    let keys = words.keys()?;
    Ok(Verb::new(keys.clone(), move |transaction| {
        let mut count = 0;
        for key in &keys {
            count += i64::from(transaction.see(key)? != Seen::Free);
        }
        Ok(Reply::Integer(count))
    }))
}

/// `TYPE key`
pub(super) fn kind(words: &Words) -> Result<Verb, Refused> {
    let key = words.key(0)?;
    Ok(Verb::new([key.clone()], move |transaction| {
        let is_free = transaction.see(&key)? == Seen::Free;
        Ok(Reply::Status(if is_free { "none" } else { "string" }.into()))
    }))
}

/// `TTL key`
pub(super) fn ttl(words: &Words) -> Result<Verb, Refused> {
    time_left(words, Unit::Seconds)
}

/// `PTTL key`
pub(super) fn pttl(words: &Words) -> Result<Verb, Refused> {
    time_left(words, Unit::Milliseconds)
}

fn time_left(words: &Words, unit: Unit) -> Result<Verb, Refused> {
    let key = words.key(0)?;
    Ok(Verb::new([key.clone()], move |transaction| {
        let Some(ms) = time_left_ms(transaction, &key)? else { return Ok(Reply::Integer(-2)) };
        Ok(Reply::Integer(match unit {
            Unit::Milliseconds => ms,
            // Rounded, as Redis does.
            Unit::Seconds => (ms + 500) / 1_000,
        }))
    }))
}

/// `None`: the key is free. A time that nobody knows is a short one, after which to look again: that there is none (-1) would be wrong.
fn time_left_ms(transaction: &mut Transaction, key: &Key) -> Result<Option<i64>, Refused> {
    let known = transaction.time_left_ms(key)?;
    Ok(match (known, transaction.see(key)?) {
        (_, Seen::Free) => None,
        (Some(ms), _) => Some(i64::try_from(ms).unwrap_or(i64::MAX)),
        (None, _) => Some(MIN_TTL_MS.into()),
    })
}
