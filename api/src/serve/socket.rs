//! A connection's socket, and detection of a client that hangs up while its request is handled.
//!
//! hyper notices a hang-up only while it has no byte of a next request. A line break behind a body is enough to hide the
//! hang-up, and then a lease would be granted to nobody. So the [`Reader`] looks for the end of the stream behind up to
//! [`MAX_AHEAD`] such bytes, which it keeps for hyper. A client that sends more while it waits for a response and then hangs
//! up is noticed only when the response is written.
//!
//! A client that shuts down only its sending side counts as gone: the two cannot be distinguished.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::connections::Connection;

/// Bytes that are read before hyper asks for them.
const MAX_AHEAD: usize = 16 << 10;

/// What hyper reads from and writes to.
pub(super) struct Socket {
    reader: Arc<Reader>,
    writer: OwnedWriteHalf,
}

/// The reading half, shared by hyper and hang-up detection.
pub(super) struct Reader {
    connection: Arc<Connection>,
    input: Mutex<Input>,
}

struct Input {
    stream: OwnedReadHalf,
    /// Bytes read that hyper has not asked for yet.
    ahead: BytesMut,
    is_closed: bool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        let (stream, writer) = stream.into_split();
        let input = Mutex::new(Input { stream, ahead: BytesMut::new(), is_closed: false });
        Self { reader: Arc::new(Reader { connection, input }), writer }
    }

    pub(super) fn reader(&self) -> Arc<Reader> {
        Arc::clone(&self.reader)
    }
}

impl Reader {
    fn input(&self) -> MutexGuard<'_, Input> {
        self.input.lock().expect("nothing panics while the input is locked")
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Ready when the client has hung up while a handler works on its request.
    pub(super) fn poll_hangup(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.connection.is_handling() {
            return Poll::Pending;
        }
        let mut input = self.input();
        while !input.is_closed && input.ahead.len() < MAX_AHEAD {
            let mut piece = [0; 1024];
            let mut piece = ReadBuf::new(&mut piece);
            let read = ready!(Pin::new(&mut input.stream).poll_read(cx, &mut piece));
            input.is_closed = read.is_err() || piece.filled().is_empty();
            input.ahead.extend_from_slice(piece.filled());
            // hyper, which is polled before this, may be waiting for these bytes.
            cx.waker().wake_by_ref();
        }
        if input.is_closed { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns at once; after a hang-up never, and the same poll ends the connection.
    pub(super) async fn check_connected(&self) {
        std::future::poll_fn(
            |cx| if self.poll_hangup(cx).is_ready() { Poll::Pending } else { Poll::Ready(()) },
        )
        .await;
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let mut input = self.reader.input();
        if input.ahead.is_empty() && !input.is_closed {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut input.stream).poll_read(cx, buffer))?;
            input.is_closed = buffer.filled().len() == before;
        } else {
            let bytes = input.ahead.len().min(buffer.remaining());
            buffer.put_slice(&input.ahead[..bytes]);
            input.ahead.advance(bytes);
        }
        if !input.is_closed {
            self.reader.connection.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.writer).poll_write(cx, bytes);
        match written {
            Poll::Ready(Ok(1..)) => this.reader.connection.sent(),
            Poll::Pending => this.reader.connection.blocked(),
            Poll::Ready(_) => {}
        }
        written
    }

    /// hyper flushes when it has written all that it buffered.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.writer).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            this.reader.connection.flushed();
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().writer).poll_shutdown(cx)
    }
}
