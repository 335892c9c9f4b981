//! A connection's socket, and detection of a client that hangs up while its request is handled.
//!
//! hyper notices a hang-up only while it has no byte of a next request. A line break behind a body is enough to hide the
//! hang-up, and then a lease would be granted to nobody. So the [`Reader`] looks for the end of the stream behind up to
//! [`MAX_AHEAD`] such bytes, which it keeps. A client that sends more while it waits for a response and then hangs
//! up is noticed only when the response is written.
//!
//! A client that shuts down only its sending side counts as gone: the two cannot be distinguished.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::coop::unconstrained;
use tokio_rustls::server::TlsStream;

use crate::connections::{Connection, InFlight};
use crate::paced::{MAX_AHEAD, Paced};
use crate::turns::{Turn, Turns};

/// How long a client may take to read the last response.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The stream that hyper or a dialog reads and writes.
pub(super) struct Socket(Arc<Reader>);

/// A connection's stream.
pub(super) enum Stream {
    Plain(Paced),
    Encrypted(Box<TlsStream<Paced>>),
}

/// The stream, shared with hang-up detection.
pub(super) struct Reader {
    connection: Arc<Connection>,
    input: Mutex<Input>,
}

struct Input {
    stream: Stream,
    /// Bytes read that nobody has asked for yet.
    ahead: BytesMut,
    is_closed: bool,
}

impl Socket {
    pub(super) fn new(stream: Stream, connection: Arc<Connection>) -> Self {
        let input = Mutex::new(Input { stream, ahead: BytesMut::new(), is_closed: false });
        Self(Arc::new(Reader { connection, input }))
    }

    pub(super) fn reader(&self) -> Arc<Reader> {
        Arc::clone(&self.0)
    }
}

impl Stream {
    fn paced(&mut self) -> &mut Paced {
        match self {
            Self::Plain(stream) => stream,
            Self::Encrypted(stream) => stream.get_mut().0,
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl Reader {
    fn input(&self) -> MutexGuard<'_, Input> {
        self.input.lock().expect("nothing panics while the input is locked")
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Begins a request: waits for its turn, and until the responses to earlier requests are sent.
    pub(super) async fn begin(&self, turns: &Arc<Turns>) -> InFlight {
        if let Some(turn) = self.ask(turns) {
            turn.await;
        }
        let in_flight = self.connection.begin().await;
        self.allow_ahead();
        in_flight
    }

    /// Asks for the turn of a request; `None` if it is one at once.
    pub(super) fn ask(&self, turns: &Arc<Turns>) -> Option<Turn> {
        let turn = turns.ask(self.connection.tenant());
        if turn.is_some() {
            self.connection.waits_for_turn();
        }
        turn
    }

    /// Ready when the client has hung up while a handler works on its request.
    pub(super) fn poll_hangup(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.connection.is_handling() {
            return Poll::Pending;
        }
        let mut input = self.input();
        ready!(input.poll_ahead(cx));
        if !input.is_closed {
            return Poll::Pending;
        }
        self.connection.hung_up();
        Poll::Ready(())
    }

    /// Whether the client has hung up while its request was handled.
    pub(super) async fn is_gone(&self) -> bool {
        let _ = poll_fn(|cx| Poll::Ready(self.poll_hangup(cx))).await;
        self.connection.is_gone()
    }

    /// Whether bytes have arrived that were not read, even without a turn.
    pub(super) fn has_arrived(&self, cx: &mut Context<'_>) -> bool {
        let mut input = self.input();
        input.stream.paced().allow_ahead();
        let _ = input.poll_ahead(cx);
        !input.ahead.is_empty()
    }

    /// Marks a connection that speaks another protocol than HTTP. It may be silent for long, so TCP probes the client.
    pub(super) fn becomes_dialog(&self) {
        if let Err(error) = self.input().stream.paced().keep_alive() {
            tracing::debug!(%error, "cannot set SO_KEEPALIVE");
        }
        self.connection.becomes_dialog();
    }

    /// A request has begun, or all of its body has arrived: what is behind it tells whether its client hangs up.
    pub(super) fn allow_ahead(&self) {
        self.input().stream.paced().allow_ahead();
    }

    /// Returns at once; after a hang-up never, and the same poll ends the connection.
    pub(super) async fn check_connected(&self) {
        poll_fn(|cx| if self.poll_hangup(cx).is_ready() { Poll::Pending } else { Poll::Ready(()) }).await;
    }
}

impl Input {
    /// Reads ahead. Ready at the end of the stream, or if there is no room for more.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.is_closed && self.ahead.len() < MAX_AHEAD {
            let mut piece = [0; 1024];
            let mut piece = ReadBuf::new(&mut piece);
            // A task that has done much in this poll, or whose turn is over, would not see a hang-up that is there.
            self.stream.paced().read_ahead(true);
            let read = pin!(unconstrained(poll_fn(|cx| self.stream.poll_read(cx, &mut piece)))).poll(cx);
            self.stream.paced().read_ahead(false);
            let read = ready!(read);
            self.is_closed = read.is_err() || piece.filled().is_empty();
            self.ahead.extend_from_slice(piece.filled());
            // The task may have polled the reader of these bytes before this.
            cx.waker().wake_by_ref();
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let mut input = self.0.input();
        if input.ahead.is_empty() && !input.is_closed {
            let before = buffer.filled().len();
            ready!(input.stream.poll_read(cx, buffer))?;
            input.is_closed = buffer.filled().len() == before;
        } else {
            let bytes = input.ahead.len().min(buffer.remaining());
            buffer.put_slice(&input.ahead[..bytes]);
            input.ahead.advance(bytes);
        }
        if !input.is_closed {
            self.0.connection.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.0.input().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        match written {
            Poll::Ready(Ok(1..)) => self.0.connection.sent(),
            Poll::Pending => self.0.connection.blocked(),
            Poll::Ready(_) => {}
        }
        written
    }

    /// Called when all that was buffered is written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        let flushed = match &mut self.0.input().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        };
        match flushed {
            Poll::Ready(Ok(())) => self.0.connection.flushed(),
            // All of the response is encrypted, and the client does not read it.
            Poll::Pending => self.0.connection.blocked(),
            Poll::Ready(_) => {}
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        match &mut self.0.input().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Ends a stream after its last response. It reads what the client still sends: closing a socket with unread bytes resets the connection, and
/// the client would lose the response.
pub(super) async fn end(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.shutdown().await?;
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::coop::{consume_budget, has_budget_remaining};

    use super::*;
    use crate::connections::Connections;
    use crate::turns::Turns;

    #[tokio::test]
    async fn a_task_that_has_done_much_and_whose_turn_is_over_sees_a_hangup() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, from) = listener.accept().await.unwrap();
        drop(client);
        stream.readable().await.unwrap();
        let admitted = Connections::new(1).admit(from).await;
        let turns = Arc::<Turns>::default();
        while turns.ask(admitted.0.tenant()).is_none() {}
        let mut paced = Paced::plain(stream, &turns, &admitted.0);
        paced.has_hello();
        paced.has_shaken_hands();
        let socket = Socket::new(Stream::Plain(paced), Arc::clone(&admitted.0));
        let _in_flight = admitted.0.begin().await;
        socket.reader().allow_ahead();
        tokio::task::yield_now().await;
        while has_budget_remaining() {
            consume_budget().await;
        }
        let hangup = poll_fn(|cx| socket.reader().poll_hangup(cx)).now_or_never();
        assert!(hangup.is_some());
    }
}
