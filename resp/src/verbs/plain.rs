//! Commands that read no key.

use super::Verb;
use super::words::Words;
use crate::refused::Refused;
use crate::reply::Reply;

/// `PING [message]`
pub(super) fn ping(words: &Words) -> Result<Verb, Refused> {
    let reply = match words.arguments.first() {
        Some(message) => Reply::Bulk(message.clone()),
        None => Reply::Status("PONG".into()),
    };
    Ok(Verb::new([], move |_| Ok(reply.clone())))
}

/// `ECHO message`
pub(super) fn echo(words: &Words) -> Result<Verb, Refused> {
    let reply = Reply::Bulk(words.arguments[0].clone());
    Ok(Verb::new([], move |_| Ok(reply.clone())))
}
