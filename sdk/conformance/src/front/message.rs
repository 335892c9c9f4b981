//! HTTP/1.1 as clients and nodes speak it: messages with a length, one after the other.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// More than the longest renewal of a thousand leases, or its answer.
const MAX_MESSAGE: usize = 8 << 20;

/// A connection of either side.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A request or a response.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The request line, or the status line.
    pub(super) first: String,
    /// With names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A connection, and what of it was read beyond the last message.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    read: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), read: Vec::new() }
    }

    /// The next message; `None` at the end of the connection, or at what is no such message.
    pub(super) async fn message(&mut self) -> Option<Message> {
        loop {
            if let Some((message, length)) = parse(&self.read) {
                self.read.drain(..length);
                return Some(message);
            }
            if self.read.len() > MAX_MESSAGE || self.stream.read_buf(&mut self.read).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// Returns once the other side has closed: `true`, or has sent more: `false`. May be abandoned.
    pub(super) async fn is_closed(&mut self) -> bool {
        if !self.read.is_empty() {
            return false;
        }
        !matches!(self.stream.read_buf(&mut self.read).await, Ok(length) if length > 0)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }
}

/// A message at the beginning of `bytes`, and its length.
fn parse(bytes: &[u8]) -> Option<(Message, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let first = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(Some(0), |(_, length)| length.parse().ok())?;
    let body = bytes.get(end + 4..end + 4 + length)?.to_vec();
    Some((Message { first, headers, body }, end + 4 + length))
}
