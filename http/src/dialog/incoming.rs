//! Reads requests.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;
use tokio::task::yield_now;

use super::Dialog;
use crate::connections::Portion;
use crate::socket::{Reader, Socket};
use crate::turns::{PER_TURN, Turn, Turns};

/// The longest request, in bytes. A longer one closes the connection.
pub(super) const MAX_REQUEST: usize = 128 << 10;

/// What has arrived of the requests that have not begun.
pub(super) struct Incoming {
    reader: Arc<Reader>,
    turns: Arc<Turns>,
    draining: watch::Receiver<bool>,
    pub(super) received: BytesMut,
    /// How many bytes of an unfinished request `portion` counts.
    pub(super) kept: usize,
    pub(super) portion: Option<Portion>,
    /// The next request, which waits for its turn. `Err` is the last response.
    next: Option<Result<Bytes, Bytes>>,
    turn: Option<Turn>,
}

impl Incoming {
    pub(super) fn new(reader: Arc<Reader>, turns: Arc<Turns>, draining: watch::Receiver<bool>) -> Self {
        let (received, kept, portion, next, turn) = (BytesMut::new(), 0, None, None, None);
        Self { reader, turns, draining, received, kept, portion, next, turn }
    }

    /// Waits for the next request, and for its turn. `Err` is the last response, and `None` the end of the connection. Nothing is lost if
    /// the future is dropped.
    pub(super) async fn next(
        &mut self,
        dialog: &mut impl Dialog,
        socket: &mut Socket,
    ) -> io::Result<Option<Result<Bytes, Bytes>>> {
        while self.next.is_none() {
            if !self.received.is_empty() {
                self.reader.connection().received();
                match dialog.frame(&self.received) {
                    Ok(Some(length)) => self.next = Some(Ok(self.take(length))),
                    Ok(None) => self.keep()?,
                    Err(last) => self.next = Some(Err(last)),
                }
            }
            if self.next.is_some() {
                self.turn = self.reader.ask(&self.turns);
            } else if !self.read(socket).await? {
                return Ok(None);
            }
        }
        while let Some(turn) = &mut self.turn {
            // A response may have been sent since the turn was given.
            let is_over = self.turns.has_looked_since(turn.await);
            self.turn = if is_over { self.reader.ask(&self.turns) } else { None };
        }
        Ok(self.next.take())
    }

    /// Takes a whole request. It is copied, so that a dialog that keeps a part of it does not keep the bytes of other requests.
    fn take(&mut self, length: usize) -> Bytes {
        let request = Bytes::copy_from_slice(&self.received[..length]);
        self.received.advance(length);
        if self.portion.is_some() {
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
            connection.keep_request(&mut self.portion, PER_TURN);
            self.kept += PER_TURN;
            connection.received_much();
        }
        Ok(())
    }

    /// Reads more bytes. `false`: the stream has ended, or the server stops and no request has begun to arrive.
    async fn read(&mut self, socket: &mut Socket) -> io::Result<bool> {
        let is_idle = self.received.is_empty();
        if is_idle {
            // Gives back the memory of large requests.
            self.received = BytesMut::new();
        }
        tokio::select! {
            // First, so that a request that arrived before the stop is answered.
            biased;
            read = read(socket, &mut self.received) => return read,
            _ = self.draining.wait_for(|draining| *draining), if is_idle => {}
        }
        // Lets the driver see what has arrived in the meantime.
        yield_now().await;
        if !poll_fn(|cx| Poll::Ready(self.reader.has_arrived(cx))).await {
            return Ok(false);
        }
        read(socket, &mut self.received).await
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
