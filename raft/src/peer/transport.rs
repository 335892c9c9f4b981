//! The network as one node sees it: TCP, with TLS or without, or a simulator's.

use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::tls::Certificate;

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
    /// What the other end has shown of itself, if the transport asks for it.
    pub certificate: Option<Certificate>,
}

impl Connection {
    /// A connection over TCP without TLS, to `peer`.
    pub(super) fn plain(stream: TcpStream, peer: String) -> Self {
        let (reader, writer) = stream.into_split();
        Self { peer, reader: Box::new(reader), writer: Box::new(writer), certificate: None }
    }
}

/// One direction of a [`Connection`].
pub type ByteReader = Box<dyn AsyncRead + Send + Sync + Unpin>;
/// The other direction.
pub type ByteWriter = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// TCP, with the listener of this node.
pub struct Tcp(pub TcpListener);

impl Transport for Tcp {
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        let address = address.to_owned();
        Box::pin(async move { Ok(Connection::plain(connected(&address).await?, address)) })
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move {
            loop {
                let (stream, from) = self.0.accept().await?;
                match tuned(stream) {
                    Ok(stream) => return Ok(Connection::plain(stream, from.to_string())),
                    Err(error) => tracing::debug!(%from, %error, "peer connection ended"),
                }
            }
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that connects")]
pub(super) async fn connected(address: &str) -> io::Result<TcpStream> {
    tuned(TcpStream::connect(address).await?)
}

/// Sends small messages at once, and detects in seconds that the other host is gone, where TCP itself takes minutes.
pub(super) fn tuned(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT_MS)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1))?;
    sockopt::set_socket_keepalive(&stream, true)?;
    Ok(stream)
}
