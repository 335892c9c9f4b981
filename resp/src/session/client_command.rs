//! `CLIENT`: a client sets and reads the properties of its own connection. A subcommand whose promise would not be kept is refused.

use bytes::Bytes;
use ringfence_wire::Holder;

use super::client::Client;
use super::{Done, Session};
use crate::refused::{Kind, Refused};
use crate::reply::{Protocol, Reply};

/// The longest name that a client gives itself, in bytes.
const MAX_NAME: usize = 128;

impl Session {
    /// `CLIENT subcommand …`
    pub(super) fn client(&mut self, arguments: &[Bytes]) -> Result<Done, Refused> {
        let subcommand = arguments[0].to_ascii_lowercase();
        let rest = &arguments[1..];
        let reply = match (&subcommand[..], rest) {
            (b"id", []) => Reply::Integer(self.id as i64),
            (b"getname", []) => {
                self.client.name.as_ref().map_or(Reply::Null, |name| Reply::bulk(name.as_str().to_owned()))
            }
            (b"setname", [name]) => {
                self.client.name = checked_name(name)?;
                Reply::OK
            }
            (b"setinfo", [what, value]) => set_info(what, value)?,
            (b"info", []) => Reply::bulk(self.line()),
            // Lists this connection alone.
            (b"list", _) => Reply::bulk(self.line() + "\n"),
            // Here, these change nothing: a connection may still be closed to make room, and keys have no time of use.
            (b"no-touch" | b"no-evict", [mode]) if is_on(mode).is_some() => Reply::OK,
            (b"reply", [mode]) if is_on(mode) == Some(true) => Reply::OK,
            (b"tracking", [mode]) if is_on(mode) == Some(false) => Reply::OK,
            (b"tracking" | b"caching" | b"trackinginfo" | b"getredir", _) => {
                return Err(no("changes of keys are not reported here: watch keys over HTTP"));
            }
            (b"reply", _) => return Err(no("every command gets a reply")),
            (b"kill" | b"pause" | b"unpause" | b"unblock", _) => {
                return Err(no("a client cannot act on the connections of others"));
            }
            (b"maint_notifications", _) => return Err(no("there are no notices of maintenance")),
            _ => {
                return Err(Refused::new(
                    Kind::Unknown,
                    "ERR unknown subcommand or wrong number of arguments for 'client'",
                ));
            }
        };
        Ok(Done::Reply(reply))
    }

    fn line(&self) -> String {
        let (id, Client { remote, name, database, protocol, .. }) = (self.id, &self.client);
        let name = name.as_ref().map_or("", Holder::as_str);
        let version = if *protocol == Protocol::Resp3 { 3 } else { 2 };
        format!("id={id} addr={} name={name} db={database} resp={version}", remote.address)
    }
}

/// Checks the name that a client gives itself. `None`: the name is empty.
pub(super) fn checked_name(name: &[u8]) -> Result<Option<Holder>, Refused> {
    if name.len() > MAX_NAME {
        return Err(Refused::arguments("ERR ringfence: a client name has at most 128 bytes"));
    }
    let printable = str::from_utf8(name).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    let text = printable.ok_or_else(|| {
        Refused::arguments("ERR Client names cannot contain spaces, newlines or special characters.")
    })?;
    Ok(Holder::new(text).filter(|_| !text.is_empty()))
}

/// Checks the information and ignores it. Clients take an error for a failure to connect.
fn set_info(what: &Bytes, value: &Bytes) -> Result<Reply, Refused> {
    if ![&b"lib-name"[..], b"lib-ver"].iter().any(|known| what.eq_ignore_ascii_case(known)) {
        return Err(Refused::arguments("ERR Unrecognized option in CLIENT SETINFO"));
    }
    checked_name(value).map(|_| Reply::OK)
}

fn is_on(mode: &Bytes) -> Option<bool> {
    match &mode.to_ascii_lowercase()[..] {
        b"on" => Some(true),
        b"off" => Some(false),
        _ => None,
    }
}

fn no(why: &str) -> Refused {
    Refused::unsupported(why)
}
