use ringfence_lease::Value;
use ringfence_service::{Seen, Transaction};
use ringfence_wire::{Key, MAX_TTL_MS, MIN_TTL_MS, Ttl};

use super::Verb;
use super::words::{Context, Unit, Words, syntax};
use crate::refused::Refused;
use crate::reply::Reply;

/// What the key must have before it is set.
#[derive(Clone, Debug, PartialEq, Eq)]
enum When {
    /// Nothing.
    Free,
    /// Anything.
    Held,
    /// This value.
    Equal(Value),
    /// Anything or nothing.
    Always,
}

/// The time that a lock gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    Is(Ttl),
    /// The time that it had before.
    Kept,
    /// None: a later command of the request must give it one.
    None,
}

/// `SET key value [NX | XX | IFEQ old] EX seconds | PX milliseconds | KEEPTTL`
pub(super) fn set(words: &Words) -> Result<Verb, Refused> {
    let (key, value) = (words.key(0)?, words.value(1)?);
    let (mut when, mut time, mut at) = (None, None, 2);
    while at < words.arguments.len() {
        let is_repeated = if let Some(condition) = condition(words, &mut at)? {
            when.replace(condition).is_some()
        } else if words.is(at, "keepttl") {
            time.replace(Time::Kept).is_some()
        } else {
            let unit = unit(words, at)?;
            at += 1;
            time.replace(Time::Is(words.ttl(at, unit)?)).is_some()
        };
        if is_repeated {
            return Err(syntax());
        }
        at += 1;
    }
    // A new lock has no time to keep.
    let is_endless = matches!((&when, time), (_, None) | (Some(When::Free), Some(Time::Kept)));
    if is_endless && words.context == Context::Alone {
        return Err(Refused::unsupported("a lock needs a time after which it ends: add PX or EX"));
    }
    verb(words, key, value, when.unwrap_or(When::Always), time.unwrap_or(Time::None))
}

/// `SETNX key value`
pub(super) fn setnx(words: &Words) -> Result<Verb, Refused> {
    if words.context == Context::Alone {
        return Err(Refused::unsupported(
            "a lock needs a time after which it ends: use SET with NX, and PX or EX, or PEXPIRE in the same transaction",
        ));
    }
    let set = verb(words, words.key(0)?, words.value(1)?, When::Free, Time::None)?;
    Ok(Verb::new(set.keys().to_vec(), move |transaction| {
        Ok(Reply::Integer((set.run(transaction)? == Reply::OK).into()))
    }))
}

/// `SETEX key seconds value`
pub(super) fn setex(words: &Words) -> Result<Verb, Refused> {
    verb(words, words.key(0)?, words.value(2)?, When::Always, Time::Is(words.ttl(1, Unit::Seconds)?))
}

/// `PSETEX key milliseconds value`
pub(super) fn psetex(words: &Words) -> Result<Verb, Refused> {
    verb(words, words.key(0)?, words.value(2)?, When::Always, Time::Is(words.ttl(1, Unit::Milliseconds)?))
}

/// The condition at argument `at`, which moves to its last word.
fn condition(words: &Words, at: &mut usize) -> Result<Option<When>, Refused> {
    Ok(match () {
        () if words.is(*at, "nx") => Some(When::Free),
        () if words.is(*at, "xx") => Some(When::Held),
        () if words.is(*at, "ifeq") => {
            *at += 1;
            words.arguments.get(*at).ok_or_else(syntax)?;
            Some(When::Equal(words.value(*at)?))
        }
        () => None,
    })
}

/// The unit of the time after argument `at`.
fn unit(words: &Words, at: usize) -> Result<Unit, Refused> {
    let is_any = |options: &[&str]| options.iter().any(|option| words.is(at, option));
    match () {
        () if words.is(at, "px") => Ok(Unit::Milliseconds),
        () if words.is(at, "ex") => Ok(Unit::Seconds),
        () if is_any(&["pxat", "exat"]) => {
            Err(Refused::unsupported("no wall clock decides when a lock ends: use PX or EX"))
        }
        () if is_any(&["get", "ifne", "ifdeq", "ifdne"]) => {
            Err(Refused::unsupported("SET has the options NX, XX, IFEQ, PX, EX and KEEPTTL here"))
        }
        () => Err(syntax()),
    }
}

fn verb(words: &Words, key: Key, value: Value, when: When, time: Time) -> Result<Verb, Refused> {
    // A script can look at the key first.
    if when == When::Always && words.context != Context::Script {
        return Err(Refused::unsupported(
            "SET without NX, XX or IFEQ would take the lock away from its holder",
        ));
    }
    Ok(Verb::new([key.clone()], move |transaction| {
        let is_set = match (transaction.see(&key)?, &when) {
            (Seen::Free, When::Free | When::Always) => {
                transaction.acquire(&key, value.clone(), time.given())?;
                true
            }
            (Seen::Free, When::Held | When::Equal(_)) | (_, When::Free) => false,
            (Seen::Own(old), When::Equal(expected)) if old != expected => false,
            (Seen::Taken, When::Equal(_)) => false,
            (_, When::Held | When::Equal(_) | When::Always) => {
                replace(transaction, &key, &value, time)?;
                true
            }
        };
        Ok(if is_set { Reply::Status("OK".into()) } else { Reply::Null })
    }))
}

impl Time {
    fn given(self) -> Option<Ttl> {
        match self {
            Self::Is(ttl) => Some(ttl),
            Self::Kept | Self::None => None,
        }
    }
}

/// Gives the key to a new lease, unless the value is the same. The token of a new lease makes that of the old one stale.
fn replace(transaction: &mut Transaction, key: &Key, value: &Value, time: Time) -> Result<(), Refused> {
    let is_same = matches!(transaction.see(key)?, Seen::Own(old) if old == value);
    if is_same {
        if time != Time::Kept {
            transaction.expire(key, time.given())?;
        }
        return Ok(());
    }
    let ttl = match (time, transaction.is_endless(key)) {
        (Time::Kept, false) => transaction.time_left_ms(key)?.map(rest),
        (time, _) => time.given(),
    };
    transaction.end(key)?;
    transaction.acquire(key, value.clone(), ttl)?;
    Ok(())
}

/// The time that is left of a lease, as the time-to-live of a new one.
fn rest(ms: u64) -> Ttl {
    let ms = u32::try_from(ms).unwrap_or(MAX_TTL_MS).clamp(MIN_TTL_MS, MAX_TTL_MS);
    Ttl::from_ms(ms).expect("it is between the shortest and the longest")
}
