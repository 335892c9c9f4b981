//! A node that is played by the test.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Bounds what should take far less.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// It takes requests one after the other, each on a connection of its own.
pub(crate) struct Played(TcpListener);

/// A request that it got.
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    stream: TcpStream,
}

impl Played {
    pub(crate) async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    /// The next connections, on which nothing is said.
    pub(crate) async fn connections(&self, count: usize) -> Vec<TcpStream> {
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(timeout(SOON, self.0.accept()).await.unwrap().unwrap().0);
        }
        connections
    }

    /// The next request, with its body read.
    pub(crate) async fn asked(&self) -> Asked {
        let (mut stream, _) = timeout(SOON, self.0.accept()).await.unwrap().unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap().into());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.unwrap();
        let mut words = head.split(' ').map(str::to_owned);
        Asked { method: words.next().unwrap(), path: words.next().unwrap(), body, stream }
    }
}

impl Asked {
    pub(crate) async fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Answers, and closes the connection.
    pub(crate) async fn answer(mut self, status: &str, body: &str) {
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        // Whoever asked may be gone.
        let _ = self.stream.write_all(answer.as_bytes()).await;
    }
}
