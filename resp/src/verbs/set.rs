use ringfence_lease::Value;
use ringfence_service::{Seen, Transaction};
use ringfence_wire::{Key, Ttl};

use super::Verb;
use super::words::{Place, Unit, Words, syntax};
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

/// `SET key value [NX | XX | IFEQ old] EX seconds | PX milliseconds`
pub(super) fn set(words: &Words) -> Result<Verb, Refused> {
    let (key, value) = (words.key(0)?, words.value(1)?);
    let (mut when, mut ttl, mut at) = (None, None, 2);
    while at < words.arguments.len() {
        let is_repeated = if let Some(condition) = condition(words, &mut at)? {
            when.replace(condition).is_some()
        } else {
            let unit = unit(words, at)?;
            at += 1;
            ttl.replace(words.ttl(at, unit)?).is_some()
        };
        if is_repeated {
            return Err(syntax());
        }
        at += 1;
    }
    let Some(ttl) = ttl else {
        return Err(Refused::unsupported("a lock needs a time after which it ends: add PX or EX"));
    };
    verb(words, key, value, when.unwrap_or(When::Always), ttl)
}

/// `SETEX key seconds value`
pub(super) fn setex(words: &Words) -> Result<Verb, Refused> {
    verb(words, words.key(0)?, words.value(2)?, When::Always, words.ttl(1, Unit::Seconds)?)
}

/// `PSETEX key milliseconds value`
pub(super) fn psetex(words: &Words) -> Result<Verb, Refused> {
    verb(words, words.key(0)?, words.value(2)?, When::Always, words.ttl(1, Unit::Milliseconds)?)
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
        () if is_any(&["keepttl", "get", "ifne", "ifdeq", "ifdne"]) => {
            Err(Refused::unsupported("SET has the options NX, XX, IFEQ, PX and EX here"))
        }
        () => Err(syntax()),
    }
}

fn verb(words: &Words, key: Key, value: Value, when: When, ttl: Ttl) -> Result<Verb, Refused> {
    // A script can look at the key first.
    if when == When::Always && words.place != Place::Script {
        return Err(Refused::unsupported(
            "SET without NX, XX or IFEQ would take the lock away from its holder",
        ));
    }
    Ok(Verb::new([key.clone()], move |transaction| {
        let is_set = match (transaction.see(&key)?, &when) {
            (Seen::Free, When::Free | When::Always) => {
                transaction.acquire(&key, value.clone(), ttl)?;
                true
            }
            (Seen::Free, When::Held | When::Equal(_)) | (_, When::Free) => false,
            (Seen::Own(old), When::Equal(expected)) if old != expected => false,
            (Seen::Taken, When::Equal(_)) => false,
            (_, When::Held | When::Equal(_) | When::Always) => {
                replace(transaction, &key, &value, ttl)?;
                true
            }
        };
        Ok(if is_set { Reply::Status("OK".into()) } else { Reply::Null })
    }))
}

/// Gives the key to a new lease, unless the value is the same. The token of a new lease makes that of the old one stale.
fn replace(transaction: &mut Transaction, key: &Key, value: &Value, ttl: Ttl) -> Result<(), Refused> {
    let is_same = matches!(transaction.see(key)?, Seen::Own(old) if old == value);
    if is_same {
        transaction.expire(key, ttl)?;
    } else {
        transaction.end(key)?;
        transaction.acquire(key, value.clone(), ttl)?;
    }
    Ok(())
}
