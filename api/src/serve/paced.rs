use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

/// How much of what a task may do before it yields a read of 4 KiB takes. tokio gives it 128 of these units.
const UNITS: usize = 8;

/// A stream below TLS that lets others of its thread go first after some reads. rustls reads on as long as it finds no data for the
/// application, and a client could send half a megabyte of new keys at once, each of which takes microseconds.
pub(super) struct Paced<S>(pub(super) S);

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        // Nothing is read before the task is polled again.
        drop(ready!(poll_proceed(cx)));
        let read = ready!(Pin::new(&mut self.get_mut().0).poll_read(cx, buffer));
        for _ in 0..UNITS {
            if let Poll::Ready(unit) = poll_proceed(cx) {
                unit.made_progress();
            }
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn others_go_first_after_some_reads() {
        let mut stream = Paced(&[7; 100][..]);
        for _ in 0..3 {
            tokio::task::yield_now().await;
            let reads = (0..100).take_while(|_| stream.read_u8().now_or_never().is_some()).count();
            assert!((10..=128 / UNITS).contains(&reads), "{reads}");
            // TLS asks again if it had some data.
            assert!(stream.read_u8().now_or_never().is_none());
        }
    }
}
