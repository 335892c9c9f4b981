//! A node that a test scripts.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// A bound for what should take far less.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Takes one request per connection.
pub(crate) struct ScriptedNode(TcpListener);

/// A request that it received.
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    stream: TcpStream,
}

impl ScriptedNode {
    pub(crate) async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    /// The next connections. Nothing is written to them.
    pub(crate) async fn connections(&self, count: usize) -> Vec<TcpStream> {
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(timeout(SOON, self.0.accept()).await.unwrap().unwrap().0);
        }
        connections
    }

    /// The next request.
    pub(crate) async fn receive(&self) -> Received {
        let (mut stream, _) = timeout(SOON, self.0.accept()).await.unwrap().unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap().into());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.unwrap();
        let mut words = head.split(' ').map(str::to_owned);
        Received { method: words.next().unwrap(), path: words.next().unwrap(), body, stream }
    }
}

impl Received {
    pub(crate) async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Responds, and closes the connection.
    pub(crate) async fn respond(mut self, status: &str, body: &str) {
        let length = body.len();
        let response =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        // The client may be gone.
        let _ = self.stream.write_all(response.as_bytes()).await;
    }
}
