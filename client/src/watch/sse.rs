//! Server-sent events, parsed as a browser does (HTML, "Server-sent events").

/// The longest line, and the most data of one event: a lease has at most 64 keys of 512 bytes.
const MAX_BYTES: usize = 1 << 20;

/// One event of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Frame {
    pub(super) event: String,
    pub(super) data: String,
}

/// Cuts a stream into frames. Bytes arrive in any pieces.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    after_return: bool,
    is_past_start: bool,
    frame: Frame,
    /// The id of the unfinished frame.
    id: Option<u64>,
    /// The id of the last whole frame that had one.
    pub(super) last_id: Option<u64>,
}

impl Parser {
    /// Goes on after the event `last_id`.
    pub(super) fn after(last_id: Option<u64>) -> Self {
        Self { last_id, ..Self::default() }
    }

    /// Reads on. Returns every whole frame with data, or why this is no stream of events.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, &'static str> {
        let mut frames = Vec::new();
        for &byte in bytes {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.after_return = byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    frames.extend(self.end_line(&line));
                }
                _ => {
                    self.after_return = false;
                    self.line.push(byte);
                }
            }
            if self.line.len() > MAX_BYTES || self.frame.data.len() > MAX_BYTES {
                return Err("an event without an end");
            }
        }
        Ok(frames)
    }

    /// Reads a line. Returns the frame that it ends.
    fn end_line(&mut self, line: &[u8]) -> Option<Frame> {
        let line = String::from_utf8_lossy(line);
        let line = if self.is_past_start { &line } else { line.trim_start_matches('\u{feff}') };
        self.is_past_start = true;
        if line.is_empty() {
            self.last_id = self.id.take().or(self.last_id);
            let mut frame = std::mem::take(&mut self.frame);
            // A frame without data has an id, but is no event.
            return frame.data.pop().map(|_| frame);
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
            // A comment, which keeps the connection alive; `retry`, for browsers; or a field of the future.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(event: &str, data: &str) -> Frame {
        Frame { event: event.to_owned(), data: data.to_owned() }
    }

    /// The frames of `text`, which arrives in pieces of this many bytes, and the last id.
    fn read(text: &str, piece: usize) -> (Vec<Frame>, Option<u64>) {
        let mut parser = Parser::after(Some(1));
        let frames = text.as_bytes().chunks(piece).flat_map(|piece| parser.read(piece).unwrap()).collect();
        (frames, parser.last_id)
    }

    #[test]
    fn a_stream_is_parsed_as_browsers_do_however_it_is_cut() {
        let text = "\u{feff}retry: 500\nid: 4\n\n: a comment\nid: 5\nevent: granted\ndata: ä\ndata:  b\n\n\
                    event:crlf\r\ndata\r\n\r\ndata:x\rid\r\revent: lost\n\nid: no number\ndata: last\n\nid: 9\ndata: cut off";
        let expected = vec![frame("granted", "ä\n b"), frame("crlf", ""), frame("", "x"), frame("", "last")];
        for piece in 1..=text.len() {
            assert_eq!(read(text, piece), (expected.clone(), Some(5)), "in pieces of {piece} bytes");
        }
        assert_eq!(read("id: 7\n\n", 1), (vec![], Some(7)), "an id without data is no event, but counts");
        assert_eq!(read("id: 7\ndata: x\n", 1), (vec![], Some(1)), "only the empty line ends a frame");
    }

    #[test]
    fn a_frame_without_an_end_is_not_buffered() {
        let long = vec![b'x'; MAX_BYTES + 1];
        assert!(Parser::default().read(&long).is_err());
        let mut parser = Parser::default();
        let line = format!("data: {}\n", "x".repeat(1_000));
        let read = (0..2_000).try_for_each(|_| parser.read(line.as_bytes()).map(drop));
        assert!(read.is_err());
    }
}
