//! A small HTTP/1.1 client that can also send invalid requests.

use std::net::SocketAddr;

use ringfence_wire::Problem;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// One connection to a server.
pub(crate) struct Connection(BufReader<TcpStream>);

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// The bytes of a request with `Host` and `Content-Length`.
pub(crate) fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: ringfence.test:7400\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n", body.len());
    [text.as_bytes(), body].concat()
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    /// The next response. One to HEAD has no body, whatever its length says.
    pub(crate) async fn receive(&mut self, to_head: bool) -> Response {
        let mut response = self.receive_head().await;
        if !to_head && response.status != 204 && response.status != 304 {
            let length =
                response.header("content-length").expect("every answer says its length").parse().unwrap();
            response.body = vec![0; length];
            self.0.read_exact(&mut response.body).await.unwrap();
        }
        response
    }

    /// The next chunk of a chunked response; `None` at its end.
    pub(crate) async fn receive_piece(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(&self.line().await, 16).unwrap();
        let mut piece = vec![0; length];
        self.0.read_exact(&mut piece).await.unwrap();
        assert_eq!(self.line().await, "");
        (length > 0).then_some(piece)
    }

    /// The head of the next response.
    pub(crate) async fn receive_head(&mut self) -> Response {
        let first = self.line().await;
        let status = first.strip_prefix("HTTP/1.1 ").expect(&first)[..3].parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").expect(&line);
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Response { status, headers, body: Vec::new() }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        line.strip_suffix("\r\n").expect("the connection stays open").to_owned()
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body of a response that must have this status.
    pub(crate) fn expect<T: DeserializeOwned>(&self, status: u16) -> T {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The problem in a response that must have this name.
    pub(crate) fn problem(&self, name: &str) -> Problem {
        let body: Value = self.json();
        assert_eq!(body["type"], format!("urn:ringfence:problem:{name}"), "{body}");
        assert_eq!(body["status"], self.status, "the status line and the body agree");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        self.json()
    }
}
