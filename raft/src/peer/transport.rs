//! The network as one node sees it: TCP, with TLS or without, or a simulator's.

use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ringfence_dial::{Heard, Target, tune};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::certificate::Certificate;

/// How long the other host may be silent. A stopped process does not count: its kernel answers.
pub(super) const GONE_AFTER: Duration = Duration::from_secs(3);
/// How long connecting may take: a little less than the caller allows, so that the error says what did not answer. A lookup that
/// takes longer goes on, and the next attempt uses what it finds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

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
    pub(super) fn plain(stream: Heard<TcpStream>, peer: String) -> Self {
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
                match tune(&stream, GONE_AFTER) {
                    Ok(()) => return Ok(Connection::plain(stream.into(), from.to_string())),
                    Err(error) => tracing::debug!(%from, %error, "peer connection ended"),
                }
            }
        })
    }
}

pub(super) async fn connected(address: &str) -> io::Result<Heard<TcpStream>> {
    let no_address = || io::Error::new(io::ErrorKind::InvalidInput, "it is not of the form host:port");
    let target = Target::parse(address).ok_or_else(no_address)?;
    let stream = target.connect(CONNECT_TIMEOUT).await?;
    tune(stream.get_ref(), GONE_AFTER)?;
    Ok(stream)
}
