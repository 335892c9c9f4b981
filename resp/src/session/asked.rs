use std::sync::Arc;

use bytes::Bytes;

use super::Session;
use crate::command::CommandName;
use crate::frame::Request;
use crate::refused::{Kind, Refused};
use crate::requester::{Requester, Visit};
use crate::work::Work;

/// A request that was read.
pub(crate) struct Asked {
    pub(super) name: &'static str,
    pub(super) command: CommandName,
    /// The first one is the name of the command.
    pub(super) arguments: Vec<Bytes>,
    pub(super) sent: Bytes,
    pub(super) visit: Visit,
    /// Its command on keys or its script, if that was read, too.
    pub(super) work: Option<Work>,
}

/// What was sent. `None`: it is empty, and gets no answer. An error: it is no request, and the connection closes.
pub(crate) type Read = Result<Option<Asked>, Refused>;

impl Session {
    /// Reads a request.
    pub(super) fn read(&mut self, sent: Bytes) -> Read {
        let Request { arguments, is_words } = Request::read(&sent)?;
        let Some(name) = arguments.first() else { return Ok(None) };
        let (name, command) = CommandName::of(name);
        let is_first = std::mem::take(&mut self.is_first);
        if is_words && !command.is_for_people(is_first) {
            let text = "ERR ringfence: lines of words are for PING, QUIT and a first AUTH: send arrays";
            return Err(Refused::new(Kind::Order, text));
        }
        let visit =
            Visit::new(Requester::new(Arc::clone(&self.client.door), self.client.remote.address, name));
        Ok(Some(Asked { name, command, arguments, sent, visit, work: None }))
    }
}
