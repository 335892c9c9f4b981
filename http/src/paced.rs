//! A socket that is read in turns.
//!
//! What is read is work before it is a request: TLS decrypts it, and may compute new keys for every few bytes without any data for the
//! application; chunks of one byte are parsed one by one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connections::Connection;
use super::turns::{Pace, Turns};

/// Bytes that are read before they are asked for, as they arrive and as they are decrypted.
pub(super) const MAX_AHEAD: usize = 16 << 10;
/// Bytes that are read at most before a client has said what it offers.
const MAX_HELLO: usize = 16 << 10;

/// How long a client may be silent before TCP probes it, how often it does so, and how many times.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 6;

/// A connected socket.
pub(super) struct Paced {
    stream: TcpStream,
    connection: Arc<Connection>,
    pace: Pace,
    /// What is read is kept until it is asked for.
    is_ahead: bool,
    /// Bytes that may still be read so for the current request. Of some messages of TLS any number may come, with no data.
    may_read_ahead: usize,
    handshake: Handshake,
}

/// How far a handshake is.
enum Handshake {
    /// The first message is arriving. TLS keeps it until it is whole, so at most this many more bytes are read.
    Hello(usize),
    /// All that arrives may be a reason to compute for long.
    Goes,
    Done,
}

impl Paced {
    /// A connection without TLS.
    pub(super) fn plain(stream: TcpStream, turns: &Arc<Turns>, connection: &Arc<Connection>) -> Self {
        let (connection, pace) = (Arc::clone(connection), Pace::new(turns));
        Self { stream, connection, pace, is_ahead: false, may_read_ahead: 0, handshake: Handshake::Done }
    }

    /// One that begins with the handshake of TLS.
    pub(super) fn encrypted(stream: TcpStream, turns: &Arc<Turns>, connection: &Arc<Connection>) -> Self {
        Self { handshake: Handshake::Hello(MAX_HELLO), ..Self::plain(stream, turns, connection) }
    }

    /// Makes TCP probe a client that is silent. If no probe gets an answer, the socket fails.
    pub(super) fn keep_alive(&self) -> io::Result<()> {
        let asking = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
        SockRef::from(&self.stream).set_tcp_keepalive(&asking.with_retries(KEEPALIVE_RETRIES))
    }

    /// The first message is whole.
    pub(super) fn has_hello(&mut self) {
        self.handshake = Handshake::Goes;
        self.pace.end();
    }

    pub(super) fn has_shaken_hands(&mut self) {
        self.handshake = Handshake::Done;
    }

    /// A request begins, or all of its body has arrived.
    pub(super) fn allow_ahead(&mut self) {
        self.may_read_ahead = MAX_AHEAD;
    }

    /// Whether reads need no turn, so that they tell whether there is something to read.
    pub(super) fn read_ahead(&mut self, is_ahead: bool) {
        self.is_ahead = is_ahead;
    }

    /// Waits until there is something to read, and then for a turn.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pace.is_over() {
            ready!(self.stream.poll_read_ready(cx))?;
        }
        self.pace.poll(cx, || self.connection.tenant()).map(Ok)
    }

    fn has_read(&mut self, bytes: usize) {
        self.pace.took(bytes);
        if self.is_ahead {
            self.may_read_ahead = self.may_read_ahead.saturating_sub(bytes);
        }
        match &mut self.handshake {
            Handshake::Hello(left) => *left = left.saturating_sub(bytes),
            Handshake::Goes => self.pace.end(),
            Handshake::Done => {}
        }
    }
}

impl AsyncRead for Paced {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Handshake::Hello(0) = this.handshake {
            return Poll::Ready(Err(io::Error::other("the first message of TLS is too long")));
        }
        match this.is_ahead {
            true if this.may_read_ahead == 0 => return Poll::Pending,
            true => {}
            false => ready!(this.poll_turn(cx))?,
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        this.has_read(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Paced {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::connections::Connections;
    use crate::turns::PER_TURN;

    /// A socket from which all of `bytes` can be read, and the turns that it takes.
    async fn socket(bytes: usize) -> (Paced, Arc<Turns>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, from) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            client.write_all(&vec![7; bytes]).await.unwrap();
            std::future::pending::<()>().await;
        });
        let (turns, admitted) = (Arc::default(), Connections::new(1).admit(from).await);
        (Paced::plain(stream, &turns, &admitted.0), turns)
    }

    #[tokio::test]
    async fn whoever_sends_much_is_read_in_turns() {
        let (mut socket, turns) = socket(3 * PER_TURN).await;
        let mut bytes = vec![0; PER_TURN];
        for _ in 0..2 {
            socket.read_exact(&mut bytes).await.unwrap();
            socket.stream.readable().await.unwrap();
            while turns.ask(socket.connection.tenant()).is_none() {}
            assert!(socket.read_u8().now_or_never().is_none(), "there are no more turns now");
        }
        socket.read_exact(&mut bytes).await.unwrap();
    }

    #[tokio::test]
    async fn each_read_of_a_handshake_behind_its_first_message_needs_a_turn() {
        let (mut socket, turns) = socket(3).await;
        socket.has_hello();
        socket.stream.readable().await.unwrap();
        while turns.ask(socket.connection.tenant()).is_none() {}
        assert!(socket.read_u8().now_or_never().is_none(), "there are no more turns now");
        assert_eq!(socket.read_u8().await.unwrap(), 7);
        while turns.ask(socket.connection.tenant()).is_none() {}
        assert!(socket.read_u8().now_or_never().is_none());
        socket.has_shaken_hands();
        assert_eq!(socket.read_u16().await.unwrap(), 0x0707);
    }

    #[tokio::test]
    async fn a_first_message_that_does_not_end_is_not_kept() {
        let (mut socket, _turns) = socket(10 * MAX_HELLO).await;
        socket.handshake = Handshake::Hello(MAX_HELLO);
        let mut read = Vec::new();
        let refused = socket.read_to_end(&mut read).await.unwrap_err();
        assert!(refused.to_string().contains("too long"), "{refused}");
        assert!(read.len() < 10 * MAX_HELLO, "{}", read.len());
    }

    #[tokio::test]
    async fn only_so_much_of_a_request_is_read_outside_turns() {
        let (mut socket, _turns) = socket(3 * MAX_AHEAD).await;
        socket.stream.readable().await.unwrap();
        socket.read_ahead(true);
        assert!(socket.read_u8().now_or_never().is_none(), "no request has begun");
        for _ in 0..2 {
            socket.allow_ahead();
            let mut bytes = vec![0; MAX_AHEAD];
            socket.read_exact(&mut bytes).await.unwrap();
            assert!(socket.read_u8().now_or_never().is_none());
        }
    }

    #[tokio::test]
    async fn the_system_asks_a_silent_client_whether_it_is_there() {
        let (socket, _turns) = socket(0).await;
        socket.keep_alive().unwrap();
        let socket = SockRef::from(&socket.stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_RETRIES);
    }
}
