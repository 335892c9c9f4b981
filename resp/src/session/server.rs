//! Commands by which clients examine a server before they use it.

use bytes::Bytes;

use super::login::REDIS;
use super::{Done, Session};
use crate::frame::integer;
use crate::refused::{Kind, Refused};
use crate::reply::Reply;

/// `INFO [section …]`
pub(super) fn info(sections: &[Bytes]) -> Done {
    let version = env!("CARGO_PKG_VERSION");
    let all = [
        (
            "server",
            format!(
                "redis_version:{REDIS}\r\nredis_mode:standalone\r\narch_bits:{}\r\nringfence_version:{version}\r\n",
                usize::BITS
            ),
        ),
        ("persistence", "loading:0\r\naof_enabled:1\r\n".to_owned()),
        ("replication", "role:master\r\nconnected_slaves:0\r\n".to_owned()),
        ("cluster", "cluster_enabled:0\r\n".to_owned()),
    ];
    let is_asked = |name: &str| {
        let is = |section: &Bytes, name: &str| section.eq_ignore_ascii_case(name.as_bytes());
        let is_any =
            |section: &Bytes| ["all", "default", "everything", name].iter().any(|name| is(section, name));
        sections.is_empty() || sections.iter().any(is_any)
    };
    let shown = all.iter().filter(|(name, _)| is_asked(name));
    let shown = shown.map(|(name, lines)| format!("# {}{}\r\n{lines}", name[..1].to_uppercase(), &name[1..]));
    Done::Reply(Reply::bulk(shown.collect::<Vec<_>>().join("\r\n")))
}

/// `ROLE`
pub(super) fn role() -> Done {
    Done::Reply(Reply::Array(vec![Reply::bulk("master"), Reply::Integer(0), Reply::Array(Vec::new())]))
}

/// `COMMAND …`: the list of commands is empty, as on servers that are older than the command.
pub(super) fn command(arguments: &[Bytes]) -> Result<Done, Refused> {
    let is = |name: &str| arguments.first().is_some_and(|own| own.eq_ignore_ascii_case(name.as_bytes()));
    Ok(Done::Reply(match () {
        () if arguments.is_empty() || is("list") => Reply::Array(Vec::new()),
        () if is("count") => Reply::Integer(0),
        () if is("docs") => Reply::Map(Vec::new()),
        () if is("info") => Reply::Array(vec![Reply::NullArray; arguments.len() - 1]),
        () => return Err(Refused::unsupported("commands are not described here")),
    }))
}

/// `CONFIG GET pattern …`: there is nothing to configure here.
pub(super) fn config(arguments: &[Bytes]) -> Result<Done, Refused> {
    match arguments[0].eq_ignore_ascii_case(b"get") {
        true => Ok(Done::Reply(Reply::Map(Vec::new()))),
        false => Err(Refused::unsupported("there is nothing to configure here")),
    }
}

pub(super) fn no_cluster() -> Refused {
    Refused::new(Kind::Unsupported, "ERR This instance has cluster support disabled")
}

impl Session {
    /// `WAIT replicas milliseconds`: the number of other nodes that have every answered request on disk.
    pub(super) fn wait(&self, arguments: &[Bytes]) -> Result<Done, Refused> {
        if arguments.iter().any(|argument| integer(argument).is_none_or(|number| number < 0)) {
            return Err(Refused::no_integer());
        }
        Ok(Done::Reply(Reply::Integer(self.client.door.service.copies() as i64)))
    }
}
