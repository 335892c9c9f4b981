//! Serving HTTP/1.1: accepting, bounds on slow clients, and an end in order.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long a connection may be silent: nothing of an answer could be sent, as its client does not read, and no whole
/// head of a next request came.
const SILENCE: Duration = Duration::from_secs(75);
/// How many bytes are buffered of a connection, each way: the head of a request has to fit.
const MOST_BUFFERED: usize = 64 << 10;

/// Answers requests with `answer` until `draining` turns true; then waits, no longer than `within`, for open requests to
/// end.
pub async fn serve<A, F>(
    listener: Arc<TcpListener>,
    answer: A,
    mut draining: watch::Receiver<bool>,
    within: Duration,
) where
    A: Fn(Request<Incoming>, Open) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response, Infallible>> + Send + 'static,
{
    let mut builder = http1::Builder::new();
    // Answers are small: to copy one behind its head costs less than to write two pieces.
    builder.writev(false);
    // What is written to a client that does not read is kept for it up to here.
    builder.max_buf_size(MOST_BUFFERED);
    let connections = GracefulShutdown::new();
    loop {
        let (stream, from) = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        let (answer, idle) = (answer.clone(), Idle::default());
        let of_service = idle.clone();
        let service = service_fn(move |request| answer(request, of_service.open(from)));
        let io = TokioIo::new(Noticed { stream, idle: idle.clone() });
        let connection = connections.watch(builder.serve_connection(io, service));
        tokio::spawn(async move {
            tokio::select! {
                biased;
                result = connection => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "HTTP connection ended");
                    }
                }
                () = idle.too_long() => tracing::debug!("a silent HTTP connection was closed"),
            }
        });
    }
    drop(listener);
    if timeout(within, connections.shutdown()).await.is_err() {
        tracing::warn!("some requests were still open");
    }
}

/// Since when a connection owes no answer and sends nothing: `None` while it owes one. hyper's own bound starts and ends a timer for each
/// request; this is one for each connection.
#[derive(Clone)]
struct Idle(Arc<Mutex<Option<Instant>>>);

impl Default for Idle {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(Instant::now()))))
    }
}

impl Idle {
    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().expect("nothing that panics is done while it is locked")
    }

    /// A request has come from there.
    fn open(&self, from: SocketAddr) -> Open {
        *self.since() = None;
        Open { idle: self.clone(), from }
    }

    /// Something was sent.
    fn sent(&self) {
        if let Some(since) = &mut *self.since() {
            *since = Instant::now();
        }
    }

    /// Returns when the connection has been silent for [`SILENCE`].
    async fn too_long(&self) {
        loop {
            let until = self.since().unwrap_or_else(Instant::now) + SILENCE;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// A request that is not answered yet: its connection is not silent until this is dropped.
pub struct Open {
    idle: Idle,
    from: SocketAddr,
}

impl Open {
    /// The other end of its connection.
    pub(crate) fn from(&self) -> SocketAddr {
        self.from
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        *self.idle.since() = Some(Instant::now());
    }
}

/// A connection that notices when something of an answer goes out: one that takes long, or never ends, is not silent as
/// long as its client reads it.
struct Noticed {
    stream: TcpStream,
    idle: Idle,
}

impl AsyncRead for Noticed {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Noticed {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        if matches!(written, Poll::Ready(Ok(1..))) {
            this.idle.sent();
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                // Small answers must not wait for the acknowledgement of earlier ones.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY could not be set");
                }
                return (stream, from);
            }
            // Most likely too many open files: others may close theirs.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::{Body, Bytes};
    use axum::response::IntoResponse;
    use futures_util::{StreamExt, stream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Longer than a connection may be silent.
    const LONG: Duration = Duration::from_secs(200);

    /// Serves `answer` on a new address.
    async fn served<F>(answer: impl Fn(Request<Incoming>, Open) -> F + Clone + Send + 'static) -> SocketAddr
    where
        F: Future<Output = Result<Response, Infallible>> + Send + 'static,
    {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (_serving, ending) = watch::channel(false);
            serve(listener, answer, ending, SILENCE).await;
        });
        address
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_closed_that_asks_nothing_but_not_one_that_waits_for_its_answer() {
        let address = served(async |_, _open| {
            sleep(LONG).await;
            Ok(().into_response())
        })
        .await;
        let asked = async |text: &str| {
            let (mut client, mut answer) = (TcpStream::connect(address).await.unwrap(), String::new());
            let begun = Instant::now();
            client.write_all(text.as_bytes()).await.unwrap();
            client.read_to_string(&mut answer).await.unwrap();
            (answer.lines().next().map(str::to_owned), begun.elapsed().as_secs())
        };
        assert_eq!(asked("").await, (None, SILENCE.as_secs()));
        assert_eq!(asked("GET / HTTP/1.1\r\nhost: h").await, (None, SILENCE.as_secs()));
        let (answer, seconds) = asked("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
        assert_eq!(answer.as_deref(), Some("HTTP/1.1 200 OK"));
        assert_eq!(seconds, (LONG + SILENCE).as_secs());
    }

    /// An answer of many pieces, one after each `pause`.
    fn pieces(count: usize, bytes: usize, pause: Duration) -> Body {
        let piece = Bytes::from(vec![b'.'; bytes]);
        Body::from_stream(stream::iter(0..count).then(move |_| {
            let piece = piece.clone();
            async move {
                sleep(pause).await;
                Ok::<_, Infallible>(piece)
            }
        }))
    }

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_any_time_while_something_of_it_goes_out() {
        const PAUSE: Duration = Duration::from_secs(74);
        assert!(PAUSE < SILENCE);
        let address = served(async |_, _open| Ok(pieces(9, 1, PAUSE).into_response())).await;
        let (mut client, mut answer) = (TcpStream::connect(address).await.unwrap(), String::new());
        let begun = Instant::now();
        client.write_all(GET).await.unwrap();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.matches("1\r\n.\r\n").count(), 9);
        assert!(answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
        assert_eq!(begun.elapsed().as_secs(), (9 * PAUSE + SILENCE).as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_ends_with_its_connection() {
        let endless = async |_, _open| Ok(pieces(usize::MAX, 1 << 20, Duration::ZERO).into_response());
        let address = served(endless).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(GET).await.unwrap();
        sleep(2 * SILENCE).await;
        // What the system had taken of it still comes, and then the end.
        let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
        while let Ok(bytes @ 1..) = client.read(&mut buffer).await {
            read += bytes;
            assert!(read < 1 << 30, "it goes on");
        }
    }
}
