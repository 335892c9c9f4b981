//! The ends of connections, as a node has them.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use ringfence_raft::{Connection, NodeId, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

use super::{End, Network, WINDOW};
use crate::messages::{CHANNEL_AT, PREFACE};

/// How long a connection attempt hangs when nothing answers.
const NOTHING_ANSWERS: Duration = Duration::from_secs(3_600);

pub(super) struct Port {
    pub(super) network: Network,
    pub(super) node: NodeId,
    pub(super) is_on: Arc<AtomicBool>,
    pub(super) accepted: tokio::sync::Mutex<mpsc::UnboundedReceiver<Connection>>,
}

impl Transport for Port {
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        let (network, node, is_on) = (self.network.clone(), self.node, Arc::clone(&self.is_on));
        let address = address.to_owned();
        Box::pin(async move {
            let connection = if is_on.load(Relaxed) { network.connect(node, &address) } else { None };
            match connection {
                Some(connection) => connection,
                None => {
                    tokio::time::sleep(NOTHING_ANSWERS).await;
                    Err(ErrorKind::TimedOut.into())
                }
            }
        })
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async {
            let accepted = self.accepted.lock().await.recv().await;
            accepted.ok_or_else(|| io::Error::other("another listens at this address"))
        })
    }
}

pub(super) struct Reader {
    pub(super) network: Network,
    pub(super) direction: usize,
}

impl AsyncRead for Reader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.network.lock();
        let direction = &mut state.directions[self.direction];
        if direction.end == End::Reset {
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        if direction.readable.is_empty() {
            if direction.end == End::Closed && direction.queue.is_empty() {
                return Poll::Ready(Ok(()));
            }
            direction.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = into.remaining().min(direction.readable.len());
        let (first, second) = direction.readable.as_slices();
        into.put_slice(&first[..count.min(first.len())]);
        into.put_slice(&second[..count.saturating_sub(first.len())]);
        direction.readable.drain(..count);
        Poll::Ready(Ok(()))
    }
}

/// A reader that is gone resets what is sent to it.
impl Drop for Reader {
    fn drop(&mut self) {
        self.network.refuse(self.direction);
    }
}

pub(super) struct Writer {
    pub(super) network: Network,
    pub(super) direction: usize,
    pub(super) is_on: Arc<AtomicBool>,
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.network.lock();
        let direction = &mut state.directions[self.direction];
        match direction.end {
            End::Open if !self.is_on.load(Relaxed) => return Poll::Ready(Ok(bytes.len())),
            End::Open => {}
            End::Silent => return Poll::Ready(Ok(bytes.len())),
            End::Closed | End::Reset => return Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
        }
        if direction.in_flight >= WINDOW {
            direction.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        direction.partial.extend_from_slice(bytes);
        if !direction.has_begun && !direction.is_back {
            direction.channel = direction.partial.get(PREFACE + CHANNEL_AT).copied();
            let channel = direction.channel;
            let other = direction.other;
            state.directions[other].channel = channel;
        }
        while let Some(message) = state.directions[self.direction].next_message() {
            state.send(self.direction, message);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.network.close(self.direction);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A process that has stopped between two operations says nothing more.
        self.network.close(self.direction);
    }
}
