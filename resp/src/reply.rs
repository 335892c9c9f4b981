//! Replies, and their encoding in both versions of the protocol.

pub(crate) use ringfence_script::Reply;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp2,
    Resp3,
}

/// A reply is longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Protocol {
    /// Appends the bytes of a reply to `out`, which may become `limit` bytes long. Otherwise `out` stays as it was.
    pub(crate) fn encode(self, reply: &Reply, out: &mut Vec<u8>, limit: usize) -> Result<(), TooLong> {
        let before = out.len();
        let mut encoder = Encoder { protocol: self, out, limit };
        let encoded = encoder.reply(reply);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_encoded_within_a_limit() {
        let reply = Reply::Array(vec![
            Reply::OK,
            Reply::error("ERR a\r\nb"),
            Reply::Integer(-5),
            Reply::bulk("a\r\n"),
            Reply::Null,
            Reply::NullArray,
            Reply::Bool(true),
            Reply::Map(vec![(Reply::bulk("k"), Reply::Bool(false))]),
        ]);
        let encoded = |protocol: Protocol, limit| {
            let mut out = b"before".to_vec();
            let result = protocol.encode(&reply, &mut out, limit);
            (String::from_utf8(out).unwrap(), result)
        };
        let old = "before*8\r\n+OK\r\n-ERR a  b\r\n:-5\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n:1\r\n*2\r\n$1\r\nk\r\n:0\r\n";
        let new =
            "before*8\r\n+OK\r\n-ERR a  b\r\n:-5\r\n$3\r\na\r\n\r\n_\r\n_\r\n#t\r\n%1\r\n$1\r\nk\r\n#f\r\n";
        for (protocol, bytes) in [(Protocol::Resp2, old), (Protocol::Resp3, new)] {
            assert_eq!(encoded(protocol, bytes.len()), (bytes.to_owned(), Ok(())));
            for limit in 0..bytes.len() {
                assert_eq!(encoded(protocol, limit), ("before".to_owned(), Err(TooLong)));
            }
        }
    }
}
