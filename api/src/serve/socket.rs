//! A connection's socket, and the end of it that comes while a request is worked on.
//!
//! hyper looks for that end only while it has no byte of a next request: a line break behind a body is enough for it to
//! miss it, and what was asked for is then granted to nobody. So here it is looked for behind up to [`MOST_AHEAD`] such
//! bytes, which are kept for hyper. A client that sends more than these while it waits for an answer, and goes, is
//! noticed when it is answered.
//!
//! A client that shuts down only its sending side has gone, too: nothing tells the two apart.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::connections::Connection;

/// How many bytes are read before hyper asks for them.
const MOST_AHEAD: usize = 16 << 10;

/// What hyper reads from and writes to.
pub(super) struct Socket {
    ear: Arc<Ear>,
    mouth: OwnedWriteHalf,
}

/// The reading side.
pub(super) struct Ear {
    connection: Arc<Connection>,
    half: Mutex<Half>,
}

struct Half {
    stream: OwnedReadHalf,
    ahead: BytesMut,
    is_over: bool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        let (stream, mouth) = stream.into_split();
        let half = Mutex::new(Half { stream, ahead: BytesMut::new(), is_over: false });
        Self { ear: Arc::new(Ear { connection, half }), mouth }
    }

    pub(super) fn ear(&self) -> Arc<Ear> {
        Arc::clone(&self.ear)
    }
}

impl Ear {
    fn half(&self) -> MutexGuard<'_, Half> {
        self.half.lock().expect("nothing that panics is done while it is locked")
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Ready when the client has gone whose request is worked on.
    pub(super) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.connection.is_working() {
            return Poll::Pending;
        }
        let mut half = self.half();
        while !half.is_over && half.ahead.len() < MOST_AHEAD {
            let mut piece = [0; 1024];
            let mut piece = ReadBuf::new(&mut piece);
            let read = ready!(Pin::new(&mut half.stream).poll_read(cx, &mut piece));
            half.is_over = read.is_err() || piece.filled().is_empty();
            half.ahead.extend_from_slice(piece.filled());
            // hyper may wait for them: it is asked before this is.
            cx.waker().wake_by_ref();
        }
        if half.is_over { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns at once, and never where the client is known to have gone: then the connection ends in the same step.
    pub(super) async fn still_there(&self) {
        std::future::poll_fn(
            |cx| if self.poll_gone(cx).is_ready() { Poll::Pending } else { Poll::Ready(()) },
        )
        .await;
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let mut half = self.ear.half();
        if half.ahead.is_empty() && !half.is_over {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut half.stream).poll_read(cx, buffer))?;
            half.is_over = buffer.filled().len() == before;
        } else {
            let bytes = half.ahead.len().min(buffer.remaining());
            buffer.put_slice(&half.ahead[..bytes]);
            half.ahead.advance(bytes);
        }
        if !half.is_over {
            self.ear.connection.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.mouth).poll_write(cx, bytes);
        if matches!(written, Poll::Ready(Ok(1..))) {
            this.ear.connection.sent();
        }
        written
    }

    /// hyper flushes once all that it has buffered is written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.mouth).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            this.ear.connection.flushed();
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().mouth).poll_shutdown(cx)
    }
}
