//! One HTTP/1.1 connection, as thin as can be: it shares the cores with what it measures.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection that carries one request at a time.
pub(crate) struct Connection {
    stream: TcpStream,
    host: String,
    sent: Vec<u8>,
    received: Vec<u8>,
}

/// An answer, until the next request.
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, host: address.to_string(), sent: Vec::new(), received: Vec::new() })
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn call(&mut self, method: &str, path: &str, body: &str) -> io::Result<Answer<'_>> {
        use std::io::Write;
        self.sent.clear();
        let host = &self.host;
        write!(self.sent, "{method} {path} HTTP/1.1\r\nhost: {host}\r\n")?;
        if !body.is_empty() {
            write!(self.sent, "content-type: application/json\r\ncontent-length: {}\r\n", body.len())?;
        }
        write!(self.sent, "\r\n{body}")?;
        self.stream.write_all(&self.sent).await?;
        self.received.clear();
        loop {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some((status, from, to)) = whole(&self.received)? {
                return Ok(Answer { status, body: &self.received[from..to] });
            }
        }
    }
}

/// The status of an answer, and where its body begins and ends, once all of it is there.
fn whole(received: &[u8]) -> io::Result<Option<(u16, usize, usize)>> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let Some(head) = received.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&received[..head]).map_err(|_| malformed())?;
    let status = text.get(9..12).and_then(|status| status.parse().ok()).ok_or_else(malformed)?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let length = length.unwrap_or(Ok(0)).map_err(|_| malformed())?;
    let from = head + 4;
    Ok((received.len() >= from + length).then_some((status, from, from + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
        let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\nbody";
        for cut in 0..answer.len() {
            assert_eq!(whole(&answer[..cut]).unwrap(), None, "{cut}");
        }
        let (status, from, to) = whole(answer).unwrap().unwrap();
        assert_eq!((status, &answer[from..to]), (201, &b"body"[..]));
        let (status, from, to) = whole(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap();
        assert_eq!((status, from), (204, to));
        assert!(whole(b"HTTP/1.1 abc\r\n\r\n").is_err());
    }
}
