use ringfence_lease::Value;
use ringfence_service::{CannotDo, Seen};
use ringfence_wire::Key;

use super::Verb;
use super::words::{Words, syntax};
use crate::refused::Refused;
use crate::reply::Reply;

/// `DEL key …` or `UNLINK`
pub(super) fn del(words: &Words) -> Result<Verb, Refused> {
    let keys = words.keys()?;
    Ok(Verb::new(keys.clone(), move |transaction| {
        // All keys or none: a script may catch the error and go on.
        for key in &keys {
            if transaction.see(key)? == Seen::Taken {
                return Err(CannotDo::Taken.into());
            }
        }
        let mut count = 0;
        for key in &keys {
            count += i64::from(transaction.end(key)?);
        }
        Ok(Reply::Integer(count))
    }))
}

/// `GETDEL key`
pub(super) fn getdel(words: &Words) -> Result<Verb, Refused> {
    let key = words.key(0)?;
    Ok(Verb::new([key.clone()], move |transaction| {
        let value = match transaction.see(&key)? {
            Seen::Free => return Ok(Reply::Null),
            Seen::Own(value) => Reply::bulk(value.as_bytes().to_vec()),
            Seen::Taken => return Err(CannotDo::Taken.into()),
        };
        transaction.end(&key)?;
        Ok(value)
    }))
}

/// `DELEX key [IFEQ value]`
pub(super) fn delex(words: &Words) -> Result<Verb, Refused> {
    match words.arguments.len() {
        1 => del(words),
        3 if words.is(1, "ifeq") => Ok(if_equal(words.key(0)?, words.value(2)?)),
        3 if ["ifne", "ifdeq", "ifdne"].iter().any(|option| words.is(1, option)) => {
            Err(Refused::unsupported("DELEX has the option IFEQ here"))
        }
        _ => Err(syntax()),
    }
}

/// `DELIFEQ key value`
pub(super) fn delifeq(words: &Words) -> Result<Verb, Refused> {
    Ok(if_equal(words.key(0)?, words.value(1)?))
}

fn if_equal(key: Key, value: Value) -> Verb {
    Verb::new([key.clone()], move |transaction| {
        let is_equal = matches!(transaction.see(&key)?, Seen::Own(own) if *own == value);
        Ok(Reply::Integer((is_equal && transaction.end(&key)?).into()))
    })
}
