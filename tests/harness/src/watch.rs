//! A watch of one node, read strictly by the contract.

use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use ringfence_wire::{CutOff, Revision, WatchEvent, WatchEventName};
use serde::de::DeserializeOwned;

use crate::connection::Connection;
use crate::error::{Failure, Fate};

/// The events of one watch. Dropping it closes its connection.
#[derive(Debug)]
pub struct Watch {
    body: Incoming,
    text: BytesMut,
    last: Option<Revision>,
    _connection: Connection,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// A lease has changed.
    Change(WatchEventName, WatchEvent),
    /// The node ends the watch: this is the last event.
    CutOff(CutOff),
}

impl Watch {
    pub(crate) fn new(connection: Connection, body: Incoming) -> Self {
        Self { body, text: BytesMut::new(), last: None, _connection: connection }
    }

    /// The last `id`, to resume from.
    pub fn last(&self) -> Option<Revision> {
        self.last
    }

    /// The next event; `None` at a regular end of the stream.
    pub async fn next(&mut self) -> Result<Option<Watched>, Failure> {
        loop {
            if let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
                let block = self.text.split_to(end + 2);
                let block = std::str::from_utf8(&block).map_err(|error| malformed(&error))?;
                if let Some(watched) = self.read(block)? {
                    return Ok(Some(watched));
                }
                continue;
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.text.extend(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(Failure::new(Fate::Unknown, error.to_string())),
                None if self.text.is_empty() => return Ok(None),
                None => return Err(malformed(&"the stream ends within an event")),
            }
        }
    }

    /// Reads a block of lines; `None` where it is not an event.
    fn read(&mut self, block: &str) -> Result<Option<Watched>, Failure> {
        let (mut name, mut id, mut data) = (None, None, None);
        for line in block.lines().filter(|line| !line.is_empty()) {
            match line.split_once(": ") {
                Some(("event", text)) => name = Some(text),
                Some(("id", text)) => id = Some(Revision(text.parse().map_err(|error| malformed(&error))?)),
                Some(("data", text)) => data = Some(text),
                Some(("retry", _)) => {}
                _ => return Err(malformed(&format!("a line {line:?}"))),
            }
        }
        if id < self.last && id.is_some() {
            return Err(malformed(&format!("an id of {id:?} after {:?}", self.last)));
        }
        self.last = id.or(self.last);
        let Some(data) = data else { return Ok(None) };
        let name = name.unwrap_or_default();
        if name == CutOff::NAME {
            return Ok(Some(Watched::CutOff(json(data)?)));
        }
        let event: WatchEvent = json(data)?;
        if id != Some(event.revision) {
            return Err(malformed(&format!("an event {} with the id {id:?}", event.revision)));
        }
        let known = WatchEventName::ALL.iter().find(|known| known.as_str() == name);
        known
            .map(|known| Some(Watched::Change(*known, event)))
            .ok_or_else(|| malformed(&format!("an event {name:?}")))
    }
}

fn json<T: DeserializeOwned>(data: &str) -> Result<T, Failure> {
    serde_json::from_str(data).map_err(|error| malformed(&format!("{error} in {data:?}")))
}

fn malformed(what: &dyn std::fmt::Display) -> Failure {
    Failure::new(Fate::Malformed, format!("a watch sent {what}"))
}
