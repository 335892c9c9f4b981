//! A client that sends any bytes, and shows replies as text.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Far longer than any request here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(to).await.unwrap()))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// The reply to a command, as text.
    pub(crate) async fn command(&mut self, arguments: &[&str]) -> String {
        self.send(&array(arguments)).await;
        self.receive().await
    }

    /// The reply to a command whose arguments have no spaces.
    pub(crate) async fn call(&mut self, line: &str) -> String {
        self.command(&line.split(' ').collect::<Vec<_>>()).await
    }

    /// The next reply: `+OK`, `-ERR …`, `:1`, `text`, `nil`, `[a, b]`, `{a: b}`.
    pub(crate) async fn receive(&mut self) -> String {
        timeout(PATIENCE, self.reply()).await.expect("a reply comes in time")
    }

    async fn reply(&mut self) -> String {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).await.unwrap_or(0);
        if read == 0 {
            return "closed".to_owned();
        }
        let line = line.strip_suffix("\r\n").unwrap_or_else(|| panic!("{line:?} does not end"));
        let count = line[1..].parse::<i64>();
        match (line.as_bytes()[0], count) {
            (b'+' | b'-' | b':', _) => line.to_owned(),
            (b'$' | b'*', Ok(-1)) => "nil".to_owned(),
            (b'_', _) => "nil".to_owned(),
            (b'$', Ok(length)) => {
                let mut bytes = vec![0; length as usize + 2];
                self.0.read_exact(&mut bytes).await.unwrap();
                String::from_utf8_lossy(bytes.strip_suffix(b"\r\n").unwrap()).into_owned()
            }
            (b'*', Ok(count)) => format!("[{}]", self.replies(count).await.join(", ")),
            (b'%', Ok(count)) => {
                let replies = self.replies(2 * count).await;
                let pairs = replies.chunks(2).map(|pair| format!("{}: {}", pair[0], pair[1]));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }
            _ => panic!("{line:?} is no reply"),
        }
    }

    async fn replies(&mut self, count: i64) -> Vec<String> {
        let mut replies = Vec::new();
        for _ in 0..count {
            replies.push(Box::pin(self.reply()).await);
        }
        replies
    }
}

/// The bytes of a command whose arguments have no spaces.
pub(crate) fn line(line: &str) -> Vec<u8> {
    array(&line.split(' ').collect::<Vec<_>>())
}

/// The bytes of a command.
pub(crate) fn array(arguments: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n{argument}\r\n", argument.len()).into_bytes());
    }
    bytes
}
