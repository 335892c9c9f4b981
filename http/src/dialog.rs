//! Connections that speak another protocol than HTTP: one request after the other, each with one response.
//!
//! The bounds for strangers are those of HTTP. A request begins in a turn of its owner. While it is handled, the bytes after it are not read,
//! except to see whether the client hangs up. Large requests and responses take shares of the same memory. The same phases (`connections`)
//! limit the time: a whole request counts as the head of a request of HTTP.

use std::future::{pending, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::budget::Share;
use crate::connections::{Connection, Connections, InFlight};
use crate::encryption::Tls;
use crate::socket::{END_TIMEOUT, Reader, Socket, end};
use crate::threads::Threads;
use crate::turns::{PER_TURN, Pace, Turns, in_turns};
use crate::{Open, Protocol, Remote, serve_all};

/// The longest request, in bytes. A longer one closes the connection.
const MAX_REQUEST: usize = 128 << 10;

/// The server's side of a connection.
pub trait Dialog: Send + 'static {
    /// The length of the first request in `received`, which is not empty; `None` if the end of the request has not arrived. Then the next
    /// call has the same bytes and more, so a dialog should remember how far it has read.
    ///
    /// # Errors
    /// The bytes are no request. The error is the last response, and the connection closes.
    fn frame(&mut self, received: &[u8]) -> Result<Option<usize>, Bytes>;

    /// Answers a request. The future is dropped if the connection must close, but not if the client hangs up: all that it has sent is
    /// answered, though perhaps not sent, as a release must reach others all the same. A request that only its client needs can ask
    /// [`Connection::is_gone`].
    fn answer(&mut self, request: Bytes, connection: &Arc<Connection>) -> impl Future<Output = Reply> + Send;
}

/// The response to a request.
pub struct Reply {
    /// May be empty.
    pub bytes: Bytes,
    /// Whether the connection closes after it.
    pub is_last: bool,
    /// Called once the kernel has all of the bytes, and else dropped. If the client has hung up before, they are not sent.
    pub sent: Option<Box<dyn FnOnce() + Send>>,
}

/// Begins a dialog for each connection.
#[derive(Clone)]
struct Dialogs<B>(B);

/// Serves the connections of `listener`, each with a dialog from `begin`, until `draining` turns true. Then waits up to `within` for open
/// requests to end. With `tls`, connections are encrypted. Runs on the first of `threads`, which accepts.
///
/// A connection that belongs to a principal may be idle for any time.
pub async fn serve_dialogs<D: Dialog>(
    listener: TcpListener,
    tls: Option<Tls>,
    threads: Arc<Threads>,
    connections: Arc<Connections>,
    begin: impl Fn(Arc<Remote>) -> D + Clone + Send + Sync + 'static,
    draining: watch::Receiver<bool>,
    within: Duration,
) {
    serve_all(listener, tls, threads, connections, Dialogs(begin), draining, within).await;
}

impl<B, D> Protocol for Dialogs<B>
where
    B: Fn(Arc<Remote>) -> D + Clone + Send + Sync + 'static,
    D: Dialog,
{
    const ENDS_WITH_CLIENT: bool = false;

    async fn serve(self, open: Open) {
        let Open { socket, remote, turns, watcher: _watcher, draining } = open;
        let reader = socket.reader();
        reader.becomes_dialog();
        let dialog = self.0(remote);
        let (received, kept) = (BytesMut::new(), 0);
        let course = Course { dialog, socket, reader, turns, draining, received, kept, share: None };
        if let Err(error) = course.run().await {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// A dialog, with the state of its connection.
struct Course<D> {
    dialog: D,
    socket: Socket,
    reader: Arc<Reader>,
    turns: Arc<Turns>,
    draining: watch::Receiver<bool>,
    /// Bytes of requests that were not answered yet.
    received: BytesMut,
    /// How many bytes of an unfinished request `share` counts.
    kept: usize,
    share: Option<Share<Connection>>,
}

impl<D: Dialog> Course<D> {
    async fn run(mut self) -> io::Result<()> {
        // tokio reads from a new socket before it has polled the system for a close.
        yield_now().await;
        // Without an answer, the next one would be taken for it.
        let mut is_mute = false;
        while let Some(request) = self.next().await? {
            let in_flight = self.reader.begin(&self.turns).await;
            let reply = match request {
                Ok(request) => self.answer(request).await,
                Err(bytes) => Some(Reply { bytes, is_last: true, sent: None }),
            };
            let is_last = reply.as_ref().is_some_and(|reply| reply.is_last);
            let is_gone = self.reader.is_gone().await;
            match reply {
                Some(reply) if !(is_mute || is_gone && reply.sent.is_some()) => {
                    if let Err(error) = self.send(reply, in_flight).await {
                        tracing::debug!(%error, "a client does not get its answers any more");
                        self.reader.connection().hung_up();
                        is_mute = true;
                    }
                }
                _ => {
                    drop(in_flight);
                    is_mute = true;
                }
            }
            if is_last {
                return timeout(END_TIMEOUT, end(self.socket)).await?;
            }
            if is_mute {
                self.reader.connection().flushed();
            }
        }
        timeout(END_TIMEOUT, self.socket.shutdown()).await?
    }

    /// Waits for the next request. `Err` is the last response, and `None` the end of the connection.
    async fn next(&mut self) -> io::Result<Option<Result<Bytes, Bytes>>> {
        loop {
            if !self.received.is_empty() {
                self.reader.connection().received();
                match self.dialog.frame(&self.received) {
                    Ok(Some(length)) => return Ok(Some(Ok(self.take(length)))),
                    Ok(None) => self.keep()?,
                    Err(last) => return Ok(Some(Err(last))),
                }
            }
            if !self.read().await? {
                return Ok(None);
            }
        }
    }

    /// Takes a whole request. It is copied, so that a dialog that keeps a part of it does not keep the bytes of other requests.
    fn take(&mut self, length: usize) -> Bytes {
        let request = Bytes::copy_from_slice(&self.received[..length]);
        self.received.advance(length);
        if self.share.is_some() {
            self.received = BytesMut::from(&self.received[..]);
        }
        self.kept = 0;
        request
    }

    /// Accounts for the bytes of an unfinished request.
    fn keep(&mut self) -> io::Result<()> {
        if self.received.len() > MAX_REQUEST {
            return Err(io::Error::other("a request is too long"));
        }
        let connection = self.reader.connection();
        while self.received.len() > self.kept + PER_TURN {
            let budget = &connection.connections.request_bodies;
            // The buffer may be twice as large as the bytes in it.
            self.share.get_or_insert_with(|| budget.share(connection.owner(), connection)).grow(2 * PER_TURN);
            self.kept += PER_TURN;
            connection.received_much();
        }
        Ok(())
    }

    /// Reads more bytes. `false`: the stream has ended, or the server stops and no request has begun.
    async fn read(&mut self) -> io::Result<bool> {
        let is_idle = self.received.is_empty();
        if is_idle {
            // Gives back the memory of large requests.
            self.received = BytesMut::new();
        }
        tokio::select! {
            // First, so that a request that arrived before the stop is answered.
            biased;
            read = read(&mut self.socket, &mut self.received) => return read,
            _ = self.draining.wait_for(|draining| *draining), if is_idle => {}
        }
        // Lets the driver see what has arrived in the meantime.
        yield_now().await;
        if !poll_fn(|cx| Poll::Ready(self.reader.has_arrived(cx))).await {
            return Ok(false);
        }
        read(&mut self.socket, &mut self.received).await
    }

    /// `None`: it was large, and there was no memory for it before its client hung up.
    async fn answer(&mut self, request: Bytes) -> Option<Reply> {
        let connection = self.reader.connection();
        if request.len() > PER_TURN {
            tokio::select! {
                biased;
                is_given = connection.handles(request.len()) => if !is_given {
                    // The connection is about to be closed.
                    return pending().await;
                },
                () = poll_fn(|cx| self.reader.poll_hangup(cx)) => return None,
            }
        }
        self.share = None;
        self.reader.is_gone().await;
        let owner = || connection.owner();
        Some(in_turns(&self.turns, owner, self.dialog.answer(request, connection)).await)
    }

    /// Sends a response in pieces, each in a turn of its own.
    async fn send(&mut self, reply: Reply, in_flight: InFlight) -> io::Result<()> {
        let Reply { bytes, sent, .. } = reply;
        in_flight.respond();
        let connection = self.reader.connection();
        let _share = (bytes.len() > PER_TURN).then(|| {
            let share = connection.connections.response_bodies.share(connection.owner(), connection);
            share.grow(bytes.len());
            share
        });
        let mut pace = Pace::new(&self.turns);
        for piece in bytes.chunks(PER_TURN) {
            poll_fn(|cx| pace.poll(cx, || connection.owner())).await;
            self.socket.write_all(piece).await?;
            pace.took(piece.len());
        }
        drop(in_flight);
        self.socket.flush().await?;
        if let Some(sent) = sent {
            sent();
        }
        Ok(())
    }
}

/// Reads what has arrived, at most as much as a turn allows. `false`: the stream has ended. While nothing arrives, no buffer is allocated.
async fn read(socket: &mut Socket, received: &mut BytesMut) -> io::Result<bool> {
    poll_fn(|cx| {
        let mut piece = [MaybeUninit::uninit(); PER_TURN];
        let mut piece = ReadBuf::uninit(&mut piece);
        ready!(Pin::new(&mut *socket).poll_read(cx, &mut piece))?;
        received.extend_from_slice(piece.filled());
        Poll::Ready(Ok(!piece.filled().is_empty()))
    })
    .await
}

#[cfg(test)]
mod tests;
