use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

/// How much of what a task may do before it yields a read of 4 KiB takes. tokio gives it 128 of these units.
const UNITS: usize = 8;

/// Bytes that are read at most before a client has said what it offers.
const MAX_HELLO: usize = 16 << 10;

/// A stream below TLS that lets others of its thread go first after some reads. rustls reads on as long as it finds no data for the
/// application, and a client could send half a megabyte of new keys at once, each of which takes microseconds.
///
/// It also bounds the bytes of the first message, which rustls keeps until the message is whole.
pub(super) struct Paced<S> {
    stream: S,
    /// Bytes that may still be read.
    left: usize,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, left: MAX_HELLO }
    }

    /// The first message is whole.
    pub(super) fn has_hello(&mut self) {
        self.left = usize::MAX;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::other("the first message of TLS is too long")));
        }
        // Nothing is read before the task is polled again.
        drop(ready!(poll_proceed(cx)));
        let (this, before) = (self.get_mut(), buffer.filled().len());
        let read = ready!(Pin::new(&mut this.stream).poll_read(cx, buffer));
        for _ in 0..UNITS {
            if let Poll::Ready(unit) = poll_proceed(cx) {
                unit.made_progress();
            }
        }
        this.left = this.left.saturating_sub(buffer.filled().len() - before);
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
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
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn others_go_first_after_some_reads() {
        let mut stream = Paced::new(&[7; 100][..]);
        for _ in 0..3 {
            tokio::task::yield_now().await;
            let reads = (0..100).take_while(|_| stream.read_u8().now_or_never().is_some()).count();
            assert!((10..=128 / UNITS).contains(&reads), "{reads}");
            // TLS asks again if it had some data.
            assert!(stream.read_u8().now_or_never().is_none());
        }
    }

    #[tokio::test]
    async fn a_first_message_that_does_not_end_is_not_kept() {
        let all = vec![7; 10 * MAX_HELLO];
        let mut read = Vec::new();
        let refused = Paced::new(&all[..]).read_to_end(&mut read).await.unwrap_err();
        assert!(refused.to_string().contains("too long"), "{refused}");
        assert!(read.len() < all.len(), "{}", read.len());
        let mut stream = Paced::new(&all[..]);
        stream.has_hello();
        assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), all.len());
    }
}
