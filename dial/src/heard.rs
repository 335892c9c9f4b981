use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::names::Name;

/// A connection, or its reading half, that notes whether its address answers: when the first bytes arrive, or when it is dropped
/// before. The kernel of a process that hangs accepts connections, too. Of a connection with a handshake, only bytes that come
/// [through](Heard::through) it count: one that is refused is of no use.
#[derive(Debug)]
pub struct Heard<T> {
    stream: T,
    first: Option<First>,
}

/// The first bytes of a connection, which have not arrived.
#[derive(Debug)]
struct First {
    name: Arc<Name>,
    address: IpAddr,
    arrived: bool,
}

impl Drop for First {
    fn drop(&mut self) {
        self.name.heard(self.address, self.arrived);
    }
}

impl Heard<TcpStream> {
    /// A connection to an address of `name`, which has not answered yet.
    pub(crate) fn not_yet(stream: TcpStream, name: Arc<Name>, address: IpAddr) -> Self {
        Self { stream, first: Some(First { name, address, arrived: false }) }
    }

    /// The two directions, as of [`TcpStream::into_split`].
    pub fn into_split(self) -> (Heard<OwnedReadHalf>, OwnedWriteHalf) {
        let (reader, writer) = self.stream.into_split();
        (Heard { stream: reader, first: self.first }, writer)
    }
}

impl<S> Heard<S> {
    /// What `handshake` makes of the connection, which has not answered yet. If that fails, it never will.
    ///
    /// # Errors
    /// Those of the handshake.
    pub async fn through<T, E>(self, handshake: impl AsyncFnOnce(S) -> Result<T, E>) -> Result<Heard<T>, E> {
        let Self { stream, first } = self;
        Ok(Heard { stream: handshake(stream).await?, first })
    }
}

impl<T> Heard<T> {
    /// The connection itself. What is read from it is not noted.
    pub fn get_ref(&self) -> &T {
        &self.stream
    }
}

/// A connection of which nothing needs to be noted.
impl From<TcpStream> for Heard<TcpStream> {
    fn from(stream: TcpStream) -> Self {
        Self { stream, first: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Heard<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before
            && let Some(mut first) = this.first.take()
        {
            first.arrived = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Heard<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
