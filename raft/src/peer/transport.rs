//! The network as one node sees it: TCP, or a simulator's.

use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// How long sent data may stay unacknowledged by the other kernel, in milliseconds. A stopped process does not count: its
/// kernel answers.
const USER_TIMEOUT_MS: u32 = 3_000;

/// How a node connects to its peers, and they to it.
pub trait Transport: Send + Sync {
    /// Connects to the node that listens at `address`. The caller bounds the time. The future does not keep this node's port:
    /// the node may stop meanwhile.
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>>;

    /// Waits for a connection from another node.
    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>>;
}

/// A byte stream in each direction: a preface of 10 bytes, then messages, each of which begins with its length and its
/// checksum, a `u32` each in little endian. The length counts the bytes after the two.
pub struct Connection {
    /// The other end, for the log.
    pub peer: String,
    /// Bytes from the other end.
    pub reader: ByteReader,
    /// Bytes to the other end. Dropping it ends them.
    pub writer: ByteWriter,
}

/// One direction of a [`Connection`].
pub type ByteReader = Box<dyn AsyncRead + Send + Sync + Unpin>;
/// The other direction.
pub type ByteWriter = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// TCP, with the listener of this node.
pub struct Tcp(pub TcpListener);

impl Transport for Tcp {
    #[expect(clippy::disallowed_methods, reason = "the one place that connects")]
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        let address = address.to_owned();
        Box::pin(async move { tuned(TcpStream::connect(&address).await?, address) })
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move {
            loop {
                let (stream, from) = self.0.accept().await?;
                match tuned(stream, from.to_string()) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => tracing::debug!(%from, %error, "peer connection ended"),
                }
            }
        })
    }
}

/// Sends small messages at once, and detects in seconds that the other host is gone, where TCP itself takes minutes.
fn tuned(stream: TcpStream, peer: String) -> io::Result<Connection> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT_MS)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1))?;
    sockopt::set_socket_keepalive(&stream, true)?;
    let (reader, writer) = stream.into_split();
    Ok(Connection { peer, reader: Box::new(reader), writer: Box::new(writer) })
}
