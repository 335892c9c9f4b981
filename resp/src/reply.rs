//! Replies, and their encoding in both versions of the protocol.

use bytes::Bytes;

/// How deep a reply may be nested.
pub(crate) const MAX_NESTING: usize = 32;

/// A reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Status(Bytes),
    /// The text of an error, which begins with its code.
    Error(Bytes),
    Integer(i64),
    Bulk(Bytes),
    Null,
    /// A null array. Only the old protocol encodes it differently from a null string.
    NullArray,
    Bool(bool),
    Array(Vec<Reply>),
    /// Pairs of keys and values. In the old protocol, an array in which they alternate.
    Map(Vec<(Reply, Reply)>),
}

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp2,
    Resp3,
}

/// A reply is longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Reply {
    pub(crate) const OK: Self = Self::Status(Bytes::from_static(b"OK"));

    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self::Error(Bytes::from(text.into()))
    }

    pub(crate) fn bulk(bytes: impl Into<Bytes>) -> Self {
        Self::Bulk(bytes.into())
    }

    /// Appends its bytes to `out`, which may become `limit` bytes long. Otherwise `out` stays as it was.
    pub(crate) fn encode(&self, protocol: Protocol, out: &mut Vec<u8>, limit: usize) -> Result<(), TooLong> {
        let before = out.len();
        let mut encoder = Encoder { protocol, out, limit };
        let encoded = encoder.reply(self);
        if encoded.is_err() {
            out.truncate(before);
        }
        encoded
    }
}

struct Encoder<'a> {
    protocol: Protocol,
    out: &'a mut Vec<u8>,
    limit: usize,
}

impl Encoder<'_> {
    fn reply(&mut self, reply: &Reply) -> Result<(), TooLong> {
        let is_new = self.protocol == Protocol::Resp3;
        match reply {
            Reply::Status(text) => self.line(b'+', text),
            Reply::Error(text) => self.line(b'-', text),
            Reply::Integer(number) => self.number(b':', *number),
            Reply::Bulk(bytes) => {
                self.number(b'$', bytes.len() as i64)?;
                self.add(bytes)?;
                self.add(b"\r\n")
            }
            Reply::Null | Reply::NullArray if is_new => self.add(b"_\r\n"),
            Reply::Null => self.add(b"$-1\r\n"),
            Reply::NullArray => self.add(b"*-1\r\n"),
            Reply::Bool(value) if is_new => self.add(if *value { b"#t\r\n" } else { b"#f\r\n" }),
            Reply::Bool(value) => self.number(b':', i64::from(*value)),
            Reply::Array(items) => {
                self.number(b'*', items.len() as i64)?;
                items.iter().try_for_each(|item| self.reply(item))
            }
            Reply::Map(pairs) => {
                match is_new {
                    true => self.number(b'%', pairs.len() as i64)?,
                    false => self.number(b'*', 2 * pairs.len() as i64)?,
                }
                pairs.iter().try_for_each(|(key, value)| {
                    self.reply(key)?;
                    self.reply(value)
                })
            }
        }
    }

    fn number(&mut self, kind: u8, number: i64) -> Result<(), TooLong> {
        self.add(&[kind])?;
        self.add(number.to_string().as_bytes())?;
        self.add(b"\r\n")
    }

    /// Adds a line. Line ends in `text` become spaces.
    fn line(&mut self, kind: u8, text: &[u8]) -> Result<(), TooLong> {
        self.add(&[kind])?;
        let start = self.out.len();
        self.add(text)?;
        for byte in &mut self.out[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.add(b"\r\n")
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.limit.saturating_sub(self.out.len()) < bytes.len() {
            return Err(TooLong);
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }
}
