//! A lean HTTP/1.1 client for load generators, which share the machine's cores with what they measure.

use std::io::{self, Write};
use std::net::SocketAddr;

use ringfence_wire::{AcquireRequest, LeaseId};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a connection reads from and writes to.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A keep-alive connection for one request at a time, with reused buffers.
///
/// It reads bodies with a `content-length` only. For streams, and to learn whether a request was sent, use
/// [`Client`](crate::Client).
pub struct HttpConnection {
    stream: Box<dyn Stream>,
    /// The headers of every request.
    headers: String,
    sent: Vec<u8>,
    received: Vec<u8>,
}

/// An answer, valid until the next request.
#[derive(Clone, Copy, Debug)]
pub struct HttpAnswer<'a> {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: &'a [u8],
}

impl HttpConnection {
    /// Connects to `address`.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream, address, None))
    }

    /// Uses `stream`, which is connected to `address`, for requests with this credential.
    pub fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        address: SocketAddr,
        credential: Option<&str>,
    ) -> Self {
        let credential = credential.map(|secret| format!("authorization: Bearer {secret}\r\n"));
        let headers = format!("host: {address}\r\n{}", credential.unwrap_or_default());
        Self { stream: Box::new(stream), headers, sent: Vec::new(), received: Vec::new() }
    }

    /// Sends a request and reads the whole answer.
    pub async fn call(&mut self, method: &str, path: &str, body: &str) -> io::Result<HttpAnswer<'_>> {
        self.sent.clear();
        let headers = &self.headers;
        write!(self.sent, "{method} {path} HTTP/1.1\r\n{headers}")?;
        if !body.is_empty() {
            write!(self.sent, "content-type: application/json\r\ncontent-length: {}\r\n", body.len())?;
        }
        write!(self.sent, "\r\n{body}")?;
        self.stream.write_all(&self.sent).await?;
        self.stream.flush().await?;
        self.received.clear();
        loop {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some((status, from, to)) = parse(&self.received)? {
                return Ok(HttpAnswer { status, body: &self.received[from..to] });
            }
        }
    }

    /// Sends a GET and returns the connection once it is answered with 200; the body is left to be read.
    pub async fn stream(address: SocketAddr, path: &str) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").as_bytes()).await?;
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).await?;
            head.extend(byte);
        }
        match head.starts_with(b"HTTP/1.1 200 ") {
            true => Ok(stream),
            false => Err(io::Error::other(String::from_utf8_lossy(&head).into_owned())),
        }
    }

    /// The body of the answer to a request; any status but `wanted` is an error that quotes the answer.
    pub async fn expect(&mut self, wanted: u16, method: &str, path: &str, body: &str) -> io::Result<&[u8]> {
        let HttpAnswer { status, body } = self.call(method, path, body).await?;
        if status == wanted {
            return Ok(body);
        }
        let path = path.get(..60).unwrap_or(path);
        let body = String::from_utf8_lossy(&body[..body.len().min(300)]);
        Err(io::Error::other(format!("{method} {path}: {status}, not {wanted}: {body}")))
    }
}

/// Sends an acquire on a connection of its own, and does not read the answer.
///
/// # Panics
/// Where it cannot be sent.
pub fn send_acquire(address: SocketAddr, lease: LeaseId, request: &AcquireRequest) -> std::net::TcpStream {
    let body = serde_json::to_string(request).expect("requests contain nothing that JSON cannot say");
    let length = body.len();
    let head =
        format!("PUT /v1/leases/{lease} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n");
    let sent = std::net::TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all((head + &body).as_bytes())?;
        Ok(stream)
    });
    sent.unwrap_or_else(|error| panic!("{address}: {error}"))
}

/// The status of an answer and the range of its body, once all of it is here.
fn parse(received: &[u8]) -> io::Result<Option<(u16, usize, usize)>> {
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
    fn an_answer_is_complete_with_its_last_byte() {
        let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\nbody";
        for cut in 0..answer.len() {
            assert_eq!(parse(&answer[..cut]).unwrap(), None, "{cut}");
        }
        let (status, from, to) = parse(answer).unwrap().unwrap();
        assert_eq!((status, &answer[from..to]), (201, &b"body"[..]));
        let (status, from, to) = parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap();
        assert_eq!((status, from), (204, to));
        assert!(parse(b"HTTP/1.1 abc\r\n\r\n").is_err());
    }
}
