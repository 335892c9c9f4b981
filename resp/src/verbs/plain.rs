//! Commands that read no key.

use super::Verb;
use super::words::Words;
use crate::frame::integer;
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

/// `SELECT database`, in a script: that of the connection.
pub(super) fn select(words: &Words) -> Result<Verb, Refused> {
    if integer(&words.arguments[0]) != Some(words.naming.database.into()) {
        return Err(Refused::unsupported(
            "a script uses the database of its connection, and cannot select another",
        ));
    }
    Ok(Verb::new([], |_| Ok(Reply::OK)))
}
