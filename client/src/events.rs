//! Server-sent events, as a browser reads them (HTML, "Server-sent events"), and what they tell of leases.

use ringfence_wire::{WatchEvent, WatchEventName};
use serde::Serialize;

/// The longest line and the most data of one event: a lease has at most 64 keys of 512 bytes.
const LONGEST: usize = 1 << 20;

/// A change of a lease, as far as it concerns the watched keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// What happened.
    pub kind: WatchEventName,
    /// To which lease, and which of its keys begin with the watched prefix.
    #[serde(flatten)]
    pub change: WatchEvent,
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
        let Some(kind) = WatchEventName::ALL.iter().find(|name| name.as_str() == self.event) else {
            return Ok(None);
        };
        Ok(Some(Event { kind: *kind, change: serde_json::from_str(&self.data)? }))
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{EndReason, Revision, Token};

    use super::*;

    fn frame(event: &str, data: &str) -> Frame {
        Frame { event: event.to_owned(), data: data.to_owned() }
    }

    /// What is read of `text`, which comes in pieces of so many bytes, and the last id.
    fn read(text: &str, piece: usize) -> (Vec<Frame>, Option<u64>) {
        let (mut parser, mut frames) = (Parser::after(Some(1)), Vec::new());
        for piece in text.as_bytes().chunks(piece) {
            parser.read(piece, |frame| frames.push(frame)).unwrap();
        }
        (frames, parser.last_id)
    }

    #[test]
    fn a_stream_is_read_as_browsers_read_it_however_it_is_cut() {
        let text = "\u{feff}retry: 500\nid: 4\n\n: a comment\nid: 5\nevent: granted\ndata: ä\ndata:  b\n\n\
                    event:crlf\r\ndata\r\n\r\ndata:x\rid\r\revent: lost\n\nid: no number\ndata: last\n\nid: 9\ndata: cut off";
        let expected = vec![frame("granted", "ä\n b"), frame("crlf", ""), frame("", "x"), frame("", "last")];
        for piece in 1..=text.len() {
            assert_eq!(read(text, piece), (expected.clone(), Some(5)), "in pieces of {piece} bytes");
        }
        assert_eq!(read("id: 7\n\n", 1), (vec![], Some(7)), "an id without data is no event, and counts");
        assert_eq!(read("id: 7\ndata: x\n", 1), (vec![], Some(1)), "only the empty line ends a frame");
    }

    #[test]
    fn a_stream_without_an_end_is_not_kept() {
        let long = vec![b'x'; LONGEST + 1];
        assert_eq!(Parser::default().read(&long, |_| ()), Err(TooLong));
        let mut parser = Parser::default();
        let line = format!("data: {}\n", "x".repeat(1_000));
        let read = (0..2_000).try_for_each(|_| parser.read(line.as_bytes(), |_| ()));
        assert_eq!(read, Err(TooLong));
    }

    #[test]
    fn a_change_tells_its_keys_and_one_of_an_unknown_kind_is_passed_over() {
        let data = r#"{"revision":7,"keys":[{"key":"a/b","mode":"shared","limit":3,"fence":5}],
            "token":6,"holder":"me","reason":"abandoned","more":1}"#;
        let Event { kind, change: event } = frame("released", data).event().unwrap().unwrap();
        assert_eq!(
            (kind, event.revision, event.token),
            (WatchEventName::Released, Revision(7), Some(Token(6)))
        );
        assert_eq!((event.keys[0].key.as_str(), event.keys[0].fence), ("a/b", Token(5)));
        assert_eq!(event.reason, Some(EndReason::Abandoned));
        let waits = r#"{"revision":8,"keys":[{"key":"a","mode":"exclusive","limit":null,"fence":5}],
            "token":null,"holder":null,"reason":null}"#;
        assert_eq!(frame("queued", waits).event().unwrap().unwrap().change.token, None);
        assert_eq!(frame("cut-off", "{}").event().unwrap(), None);
        assert!(frame("granted", "{}").event().is_err());
    }
}
