use ringfence_service::{CannotDo, Seen, Transaction};
use ringfence_wire::Key;

use super::Verb;
use super::read;
use super::words::{Context, Unit, Words, syntax};
use crate::refused::Refused;
use crate::reply::Reply;

/// The condition for the change: what time the lock must have had, or that it had none.
#[derive(Clone, Copy, Debug, Default)]
struct When {
    none: bool,
    any: bool,
    shorter: bool,
    longer: bool,
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`
pub(super) fn expire(words: &Words) -> Result<Verb, Refused> {
    verb(words, Unit::Seconds)
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`
pub(super) fn pexpire(words: &Words) -> Result<Verb, Refused> {
    verb(words, Unit::Milliseconds)
}

/// A time of 0 or less ends the lock.
fn verb(words: &Words, unit: Unit) -> Result<Verb, Refused> {
    let (key, when) = (words.key(0)?, When::read(words)?);
    let ms = words.ms(1, unit)?;
    let ttl = if ms > 0 { Some(words.ttl_of(ms)?) } else { None };
    Ok(Verb::new([key.clone()], move |transaction| {
        if transaction.see(&key)? == Seen::Free || !when.holds(transaction, &key, ms)? {
            return Ok(Reply::Integer(0));
        }
        let is_held = match ttl {
            Some(ttl) => transaction.expire(&key, ttl)?,
            None => transaction.end(&key)?,
        };
        Ok(Reply::Integer(is_held.into()))
    }))
}

impl When {
    fn read(words: &Words) -> Result<Self, Refused> {
        let mut when = Self::default();
        for at in 2..words.arguments.len() {
            match () {
                () if words.is(at, "nx") => when.none = true,
                () if words.is(at, "xx") => when.any = true,
                () if words.is(at, "gt") => when.shorter = true,
                () if words.is(at, "lt") => when.longer = true,
                () => {
                    let option = String::from_utf8_lossy(&words.arguments[at]);
                    return Err(Refused::arguments(format!("ERR Unsupported option {option}")));
                }
            }
        }
        if when.none && (when.any || when.shorter || when.longer) {
            return Err(Refused::arguments(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if when.shorter && when.longer {
            return Err(Refused::arguments("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(when)
    }

    /// Whether a held key whose new time is `ms` meets the condition.
    fn holds(self, transaction: &mut Transaction, key: &Key, ms: i64) -> Result<bool, Refused> {
        let is_endless = transaction.is_endless(key);
        if self.none && !is_endless || self.any && is_endless {
            return Ok(false);
        }
        if !self.shorter && !self.longer || is_endless {
            return Ok(!self.shorter);
        }
        if transaction.see(key)? == Seen::Taken {
            return Err(CannotDo::Taken.into());
        }
        let left = read::time_left_ms(transaction, key)?.unwrap_or(0);
        Ok(if self.shorter { left < ms } else { left > ms })
    }
}

/// `PERSIST key`: a later command of the request must give the lock a time again.
pub(super) fn persist(words: &Words) -> Result<Verb, Refused> {
    if words.context == Context::Alone {
        return Err(Refused::unsupported("a lock needs a time after which it ends"));
    }
    let key = words.key(0)?;
    Ok(Verb::new([key.clone()], move |transaction| {
        let has_time = !transaction.is_endless(&key) && transaction.expire(&key, None)?;
        Ok(Reply::Integer(has_time.into()))
    }))
}

/// `GETEX key [EX seconds | PX milliseconds]`
pub(super) fn getex(words: &Words) -> Result<Verb, Refused> {
    let unit = match words.arguments.len() {
        1 => return read::get(words),
        3 if words.is(1, "ex") => Unit::Seconds,
        3 if words.is(1, "px") => Unit::Milliseconds,
        3 if words.is(1, "exat") || words.is(1, "pxat") => {
            return Err(Refused::unsupported("no wall clock decides when a lock ends: use PX or EX"));
        }
        2 if words.is(1, "persist") => {
            return Err(Refused::unsupported("a lock needs a time after which it ends: use PX or EX"));
        }
        _ => return Err(syntax()),
    };
    let (key, ttl) = (words.key(0)?, words.ttl(2, unit)?);
    Ok(Verb::new([key.clone()], move |transaction| {
        let value = match transaction.see(&key)? {
            Seen::Free => return Ok(Reply::Null),
            Seen::Own(value) => Reply::bulk(value.as_bytes().to_vec()),
            Seen::Taken => return Err(CannotDo::Taken.into()),
        };
        transaction.expire(&key, ttl)?;
        Ok(value)
    }))
}
