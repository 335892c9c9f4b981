use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads in a row, of 4 KiB each.
const READS: u8 = 4;

/// A stream below TLS that lets others of its thread go first after a few reads. rustls reads on as long as it finds no data for
/// the application, and a client could send half a megabyte of new keys at once, each of which takes microseconds.
pub(super) struct Paced<S> {
    stream: S,
    reads: u8,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, reads: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.reads == READS {
            this.reads = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        this.reads = if read.is_ready() { this.reads + 1 } else { 0 };
        read
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
    async fn others_go_first_after_a_few_reads() {
        let mut stream = Paced::new(&[7; 100][..]);
        for _ in 0..3 {
            for _ in 0..READS {
                assert_eq!(stream.read_u8().now_or_never().unwrap().unwrap(), 7);
            }
            assert!(stream.read_u8().now_or_never().is_none());
        }
        // It goes on by itself.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), 100 - 3 * usize::from(READS));
    }
}
