//! Server-sent events, as a browser reads them (HTML, "Server-sent events"), and what they tell of leases.

use ringfence_wire::{EndReason, Holder, Key, ModeName, Revision, Token};
use serde::{Deserialize, Serialize};

/// The longest line and the most data of one event: a lease has at most 64 keys of 512 bytes.
const LONGEST: usize = 1 << 20;

/// A change of a lease, as far as it concerns the watched keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The revision that the change made.
    pub revision: Revision,
    /// The keys of the lease that begin with the watched prefix.
    pub keys: Vec<EventKey>,
    /// The token of the lease; `None` where it was never granted.
    pub token: Option<Token>,
    /// The public label of its holder.
    pub holder: Option<Holder>,
    /// Of an end: how it ended, where the cluster says more than the kind does.
    pub reason: Option<EndReason>,
}

/// What happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EventKind {
    /// It was granted.
    Granted,
    /// It took its place in the queue.
    Queued,
    /// Its holder gave it back.
    Released,
    /// Its time-to-live ran out.
    Expired,
    /// An operator ended it.
    Revoked,
    /// It left the queue and was not granted.
    Left,
}

/// A key of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventKey {
    /// The key.
    pub key: Key,
    /// How the lease has it, or wanted it.
    #[serde(default)]
    pub mode: ModeName,
    /// With which limit.
    #[serde(default)]
    pub limit: Option<std::num::NonZeroU32>,
    /// The key's fence after the change: every token below it is dead.
    pub fence: Token,
}

/// The data of an event, as the cluster writes it.
#[derive(Deserialize)]
struct Data {
    revision: Revision,
    keys: Vec<EventKey>,
    #[serde(default)]
    token: Option<Token>,
    #[serde(default)]
    holder: Option<Holder>,
    #[serde(default)]
    reason: Option<EndReason>,
}

/// One frame of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Frame {
    pub(crate) event: String,
    pub(crate) data: String,
}

/// Cuts a stream into frames. Bytes come in any pieces.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    after_return: bool,
    is_past_start: bool,
    frame: Frame,
    /// Of the frame that is being read.
    id: Option<u64>,
    /// The id of the last whole frame that had one.
    pub(crate) last_id: Option<u64>,
}

/// A stream that is no stream of events.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Parser {
    /// Goes on after the event `last_id`.
    pub(crate) fn after(last_id: Option<u64>) -> Self {
        Self { last_id, ..Self::default() }
    }

    /// Reads on, and calls `each` with every whole frame that has data.
    pub(crate) fn read(&mut self, bytes: &[u8], mut each: impl FnMut(Frame)) -> Result<(), TooLong> {
        for &byte in bytes {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.after_return = byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    self.end_line(&line, &mut each);
                }
                _ => {
                    self.after_return = false;
                    self.line.push(byte);
                }
            }
            if self.line.len() > LONGEST || self.frame.data.len() > LONGEST {
                return Err(TooLong);
            }
        }
        Ok(())
    }

    fn end_line(&mut self, line: &[u8], each: &mut impl FnMut(Frame)) {
        let line = String::from_utf8_lossy(line);
        let line = if self.is_past_start { &line } else { line.trim_start_matches('\u{feff}') };
        self.is_past_start = true;
        if line.is_empty() {
            self.last_id = self.id.take().or(self.last_id);
            let mut frame = std::mem::take(&mut self.frame);
            // A frame without data tells the id, and is no event.
            if frame.data.pop().is_some() {
                each(frame);
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.frame.event = value.to_owned(),
            "data" => {
                self.frame.data.push_str(value);
                self.frame.data.push('\n');
            }
            "id" => self.id = value.parse().ok().or(self.id),
            // A comment, which keeps the connection alive; `retry`, for browsers; or what is not known yet.
            _ => {}
        }
    }
}

impl Frame {
    /// The change that it tells of; `None` where it tells of something else.
    pub(crate) fn event(&self) -> serde_json::Result<Option<Event>> {
        let kind = match self.event.as_str() {
            "granted" => EventKind::Granted,
            "queued" => EventKind::Queued,
            "released" => EventKind::Released,
            "expired" => EventKind::Expired,
            "revoked" => EventKind::Revoked,
            "left" => EventKind::Left,
            _ => return Ok(None),
        };
        let Data { revision, keys, token, holder, reason } = serde_json::from_str(&self.data)?;
        Ok(Some(Event { kind, revision, keys, token, holder, reason }))
    }
}
