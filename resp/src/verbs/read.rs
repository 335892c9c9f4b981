use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use ringfence_service::{Seen, Transaction};
use ringfence_wire::{Key, MIN_TTL_MS};

use super::Verb;
use super::words::{Unit, Words};
use crate::refused::Refused;
use crate::reply::Reply;

/// The value of a key that is held, if the client may not see the value or there is none.
pub(super) const HELD: &str = "ringfence:held-by-another";

/// `GET key`
pub(super) fn get(words: &Words) -> Result<Verb, Refused> {
    let key = words.key(0)?;
    Ok(Verb::new([key.clone()], move |transaction| {
        Ok(shown(transaction.see(&key)?).map_or(Reply::Null, |value| Reply::bulk(value.to_vec())))
    }))
}

/// `MGET key …`
pub(super) fn mget(words: &Words) -> Result<Verb, Refused> {
    let keys = words.keys()?;
    Ok(Verb::new(keys.clone(), move |transaction| {
        // In a script, a key may be there thousands of times: its value is copied once.
        let mut values = BTreeMap::new();
        for key in &keys {
            if let Entry::Vacant(place) = values.entry(key) {
                let value = shown(transaction.see(key)?);
                place.insert(value.map_or(Reply::Null, |value| Reply::bulk(value.to_vec())));
            }
        }
        Ok(Reply::Array(keys.iter().map(|key| values[key].clone()).collect()))
    }))
}

/// `GETRANGE key first last`: a part of the value. Bytes are counted from 0, or back from the end with numbers below 0.
pub(super) fn getrange(words: &Words) -> Result<Verb, Refused> {
    let (key, first, last) = (words.key(0)?, words.integer(1)?, words.integer(2)?);
    Ok(Verb::new([key.clone()], move |transaction| {
        let value = shown(transaction.see(&key)?).unwrap_or_default();
        Ok(Reply::bulk(part(value, first, last).to_vec()))
    }))
}

/// The bytes from `first` to `last`, as Redis counts them.
fn part(value: &[u8], first: i64, last: i64) -> &[u8] {
    if first < 0 && last < 0 && first > last {
        return &[];
    }
    let length = i64::try_from(value.len()).unwrap_or(i64::MAX);
    let from_start = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at.min(length) };
    let (first, behind) = (from_start(first), from_start(last).saturating_add(1).min(length));
    let place = |at: i64| usize::try_from(at).unwrap_or(0);
    value.get(place(first)..place(behind)).unwrap_or_default()
}

/// The value of a key as clients see it. `None`: the key is free.
fn shown(seen: Seen<'_>) -> Option<&[u8]> {
    match seen {
        Seen::Free => None,
        Seen::Own(value) => Some(value.as_bytes()),
        Seen::Taken => Some(HELD.as_bytes()),
    }
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
            // Redis rounds, too.
            Unit::Seconds if ms >= 0 => (ms + 500) / 1_000,
            Unit::Seconds => ms,
        }))
    }))
}

/// The time until the lock ends; `None` if the key is free; -1 if this request has not given the lock a time yet. For an unknown time,
/// returns a short one, so that the client looks again soon.
pub(super) fn time_left_ms(transaction: &mut Transaction, key: &Key) -> Result<Option<i64>, Refused> {
    let known = transaction.time_left_ms(key)?;
    if transaction.is_endless(key) {
        return Ok(Some(-1));
    }
    Ok(match (known, transaction.see(key)?) {
        (_, Seen::Free) => None,
        (Some(ms), _) => Some(i64::try_from(ms).unwrap_or(i64::MAX)),
        (None, _) => Some(MIN_TTL_MS.into()),
    })
}
