//! The HTTP/1.1 server: accepts connections, bounds their resources, and drains on shutdown.
//!
//! Clients are not trusted, so all connections together are bounded: descriptors by the number of connections
//! (`connections`), memory by the size of buffered bodies (`budget`, `bodies`). At a bound, the connections that have been
//! idle or slow for longest are closed, but none that a handler is working for, unless it waits. Each thread computes one TLS
//! handshake at a time, and does other work in between (`encryption`).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::response::Response;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use ringfence_tls::Name;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::measure::{CloseReason, connections_closed_total, handshakes_failed_total};

mod bodies;
mod budget;
mod connections;
mod encryption;
mod paced;
mod refusal;
mod socket;
mod threads;

pub use bodies::RequestBody;
pub(crate) use bodies::Shed;
pub(crate) use connections::Connection;
pub use connections::Connections;
pub use encryption::Tls;
pub use threads::Threads;

use bodies::ResponseBody;
use connections::Admitted;
use encryption::Opened;
use refusal::{no_room, refuse};
use socket::Socket;

/// Bytes buffered per connection and direction. The head of a request must fit.
const MAX_BUFFER: usize = 32 << 10;
/// Bytes that the kernel keeps of a connection in each direction: those not sent yet, and those not read.
const MAX_KERNEL: usize = 64 << 10;
/// Connections that are being refused at one time.
const MAX_REFUSALS: usize = 32;

/// The other side of a connection.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Its address.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub is_encrypted: bool,
    /// The names in its certificate, which is verified; empty if it has none.
    pub names: Arc<[Name]>,
}

/// Serves the connections of `listener` with the handler `answer` until `draining` turns true, then waits up to `within` for
/// open requests to end. With `tls` they are encrypted. Runs on the first of `threads`, which accepts.
pub async fn serve<A, F>(
    listener: TcpListener,
    tls: Option<Tls>,
    threads: Arc<Threads>,
    connections: Arc<Connections>,
    answer: A,
    mut draining: watch::Receiver<bool>,
    within: Duration,
) where
    A: Fn(Request<RequestBody>, Arc<Remote>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, Infallible>> + Send + 'static,
{
    let open = GracefulShutdown::new();
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let (stream, from) = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        let admitted = tokio::select! {
            admitted = connections.admit(from) => admitted,
            _ = draining.wait_for(|draining| *draining) => None,
        };
        let Some(admitted) = admitted else {
            connections_closed_total(CloseReason::Refused).increment(1);
            if let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() {
                tokio::spawn(async move {
                    refuse(stream, no_room()).await;
                    drop(permit);
                });
            }
            continue;
        };
        // Moves the socket to the reactor of the thread that will serve it.
        let Ok(stream) = stream.into_std() else { continue };
        let (answer, watcher, tls) = (answer.clone(), open.watcher(), tls.clone());
        let ending = draining.clone();
        threads.serve(async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve_connection(stream, tls, admitted, answer, watcher, ending).await;
            }
        });
    }
    drop(listener);
    if timeout(within, open.shutdown()).await.is_err() {
        tracing::warn!("stopped although some requests had no response yet");
    }
}

/// Serves one connection until it closes.
async fn serve_connection<A, F>(
    stream: TcpStream,
    tls: Option<Tls>,
    admitted: Admitted,
    answer: A,
    watcher: Watcher,
    mut draining: watch::Receiver<bool>,
) where
    A: Fn(Request<RequestBody>, Arc<Remote>) -> F,
    F: Future<Output = Result<Response, Infallible>>,
{
    let from = admitted.0.from;
    let opened = tokio::select! {
        // Whatever has arrived before a stop is answered.
        biased;
        opened = encryption::open(stream, tls) => opened,
        reason = admitted.0.until_closed() => return admitted.log_close(reason),
        // It has sent no request, and a stop does not wait for it.
        _ = draining.wait_for(|draining| *draining) => return,
    };
    let Opened { stream, distrusted, is_encrypted, names } = match opened {
        Ok(opened) => opened,
        Err(error) => {
            handshakes_failed_total().increment(1);
            return tracing::debug!(%from, %error, "a TLS handshake failed");
        }
    };
    let remote = Arc::new(Remote { address: from, is_encrypted, names });
    let socket = Socket::new(stream, Arc::clone(&admitted.0));
    let reader = socket.reader();
    let is_new = AtomicBool::new(true);
    let service = service_fn(|request: Request<Incoming>| {
        let is_new = is_new.swap(false, Ordering::Relaxed);
        let (reader, connections, answer) = (&reader, &admitted.0.connections, &answer);
        let remote = Arc::clone(&remote);
        async move {
            let in_flight = reader.connection().begin().await;
            let only_reads = request.method().is_safe();
            if !only_reads && is_new {
                // tokio reads from a new socket before it has polled the system for a close.
                yield_now().await;
            }
            // Nobody reads the body of a DELETE.
            if !only_reads && (request.body().is_end_stream() || request.method() == Method::DELETE) {
                reader.check_connected().await;
            }
            let request = request
                .map(|body| RequestBody::new(body, Arc::clone(reader), only_reads, Arc::clone(connections)));
            let response = answer(request, remote).await?;
            Ok::<_, Infallible>(response.map(|body| ResponseBody::new(body, in_flight, connections)))
        }
    });
    let mut builder = http1::Builder::new();
    // Responses are small: copying the body behind the head costs less than a vectored write.
    builder.writev(false);
    builder.max_buf_size(MAX_BUFFER);
    let mut serving = builder.serve_connection(TokioIo::new(socket), service);
    // A graceful stop closes a connection that has read nothing, so read a request that has arrived first. The yield lets the
    // driver see it.
    yield_now().await;
    let first = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut serving).poll(cx))).await;
    let served = async {
        match first {
            Poll::Ready(result) => result,
            Poll::Pending => watcher.watch(serving).await,
        }
    };
    tokio::select! {
        // hyper first: `poll_hangup` takes only what hyper has not read.
        biased;
        result = served => {
            if let Err(error) = result {
                tracing::debug!(%error, "HTTP connection ended");
            }
        }
        () = std::future::poll_fn(|cx| reader.poll_hangup(cx)) => tracing::debug!("an HTTP client closed its connection"),
        reason = admitted.0.until_closed() => admitted.log_close(reason),
        () = distrusted => tracing::info!(%from, "closed a connection whose certificate is no longer trusted"),
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                // Without it, a small response waits for the ACK of the one before (Nagle's algorithm).
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "cannot set TCP_NODELAY");
                }
                // The kernel keeps megabytes by default, and that memory is the node's, too.
                let socket = SockRef::from(&stream);
                let bounded = socket
                    .set_tcp_notsent_lowat(MAX_KERNEL as u32)
                    .and(socket.set_recv_buffer_size(MAX_KERNEL));
                if let Err(error) = bounded {
                    tracing::debug!(%error, "cannot bound the buffers of a socket");
                }
                return (stream, from);
            }
            // Most likely too many open files: others may close theirs.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicUsize;

    use axum::body::{Body, Bytes};
    use axum::response::IntoResponse;
    use futures_util::{StreamExt, stream};
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use tokio::net::TcpSocket;
    use tokio::time::Instant;

    use super::connections::{HEAD_TIMEOUT, IDLE_TIMEOUT};
    use super::*;

    const MAX_CONNECTIONS: usize = 100;
    /// Longer than the idle timeout.
    const LONG: Duration = Duration::from_secs(200);

    /// Serves `answer` on a new address.
    async fn served<F>(
        answer: impl Fn(Request<RequestBody>, Arc<Remote>) -> F + Clone + Send + Sync + 'static,
    ) -> SocketAddr
    where
        F: Future<Output = Result<Response, Infallible>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (_serving, ending) = watch::channel(false);
            let (threads, connections) = (Arc::new(Threads::here()), Connections::new(MAX_CONNECTIONS));
            serve(listener, None, threads, connections, answer, ending, IDLE_TIMEOUT).await;
        });
        address
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_closed_but_not_one_that_waits_for_its_response() {
        let address = served(async |_, _from| {
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
        assert_eq!(asked("").await, (None, IDLE_TIMEOUT.as_secs()));
        assert_eq!(asked("GET / HTTP/1.1\r\nhost: h").await, (None, HEAD_TIMEOUT.as_secs()));
        let (answer, seconds) = asked("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
        assert_eq!(answer.as_deref(), Some("HTTP/1.1 200 OK"));
        assert_eq!(seconds, (LONG + IDLE_TIMEOUT).as_secs());
    }

    /// A stop once closed connections on a busy thread without a response.
    #[tokio::test]
    async fn a_request_that_arrived_before_the_stop_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let threads = Arc::new(Threads::start(1).unwrap());
        let connections = Connections::new(100);
        let (stop, stopping) = watch::channel(false);
        let (go_on, gate) = std::sync::mpsc::channel::<()>();
        threads.serve(async move {
            let _ = gate.recv();
        });
        let answer = async |_, _from| Ok(().into_response());
        let serving =
            serve(listener, None, threads, Arc::clone(&connections), answer, stopping, IDLE_TIMEOUT);
        let serving = tokio::spawn(serving);
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        while connections.count().0 == 0 {
            yield_now().await;
        }
        stop.send_replace(true);
        // The listener is closed: the stop is under way.
        while TcpStream::connect(address).await.is_ok() {
            yield_now().await;
        }
        drop(go_on);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        serving.await.unwrap();
    }

    /// A body of many pieces, each after a `pause`.
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

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_cannot_ask_for_ever_more_responses() {
        const REQUESTS: usize = 2_000;
        let handled = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&handled);
        // If nobody reads a body that waits for `100 Continue`, hyper begins the next request before it has sent the response.
        let address = served(move |_, _from| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok(([("large", "v".repeat(8 << 10))], ()).into_response()) }
        })
        .await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 << 10).unwrap();
        let mut client = socket.connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx";
        client.write_all(&request.repeat(REQUESTS)).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let unread = handled.load(Ordering::Relaxed);
        assert!((1..REQUESTS / 4).contains(&unread), "{unread}");
        let mut answers = Vec::new();
        while handled.load(Ordering::Relaxed) < REQUESTS {
            assert!(client.read_buf(&mut answers).await.unwrap() > 0);
        }
    }

    /// They were executed if the end of a chunked body, or of one that nobody reads, and that of the stream arrived together. The
    /// line break hides the end of the stream from hyper.
    #[tokio::test]
    async fn a_request_whose_client_hung_up_is_not_executed() {
        let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (Arc::clone(&begun), Arc::clone(&done));
        let address = served(move |request: Request<RequestBody>, _from| {
            let (begun, done) = (Arc::clone(&counts.0), Arc::clone(&counts.1));
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                if request.method() == Method::POST {
                    request.into_body().collect().await.unwrap();
                }
                done.fetch_add(1, Ordering::Relaxed);
                Ok(().into_response())
            }
        })
        .await;
        for (first, rest) in [
            ("POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n", "0\r\n\r\n\r\n"),
            (
                "GET / HTTP/1.1\r\nhost: h\r\n\r\n",
                "DELETE / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx\r\n",
            ),
        ] {
            let before = begun.load(Ordering::Relaxed);
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(first.as_bytes()).await.unwrap();
            while begun.load(Ordering::Relaxed) == before {
                yield_now().await;
            }
            client.write_all(rest.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answers = Vec::new();
            client.read_to_end(&mut answers).await.unwrap();
        }
        // The GET.
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn a_response_may_take_any_time_while_it_makes_progress() {
        const PAUSE: Duration = Duration::from_secs(74);
        assert!(PAUSE < IDLE_TIMEOUT);
        let address = served(async |_, _from| Ok(pieces(9, 1, PAUSE).into_response())).await;
        let (mut client, mut answer) = (TcpStream::connect(address).await.unwrap(), String::new());
        let begun = Instant::now();
        client.write_all(GET).await.unwrap();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.matches("1\r\n.\r\n").count(), 9);
        assert!(answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
        assert_eq!(begun.elapsed().as_secs(), (9 * PAUSE + IDLE_TIMEOUT).as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_read_its_response_is_closed() {
        let endless = async |_, _from| Ok(pieces(usize::MAX, 1 << 20, Duration::ZERO).into_response());
        let address = served(endless).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(GET).await.unwrap();
        sleep(2 * IDLE_TIMEOUT).await;
        // What the kernel had buffered still arrives, and then the end.
        let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
        while let Ok(bytes @ 1..) = client.read(&mut buffer).await {
            read += bytes;
            assert!(read < 1 << 30, "the response does not end");
        }
    }

    /// They once held all connections until the idle timeout.
    #[tokio::test]
    async fn clients_that_do_not_read_make_room_for_others() {
        let address =
            served(async |_, _from| Ok(pieces(usize::MAX, 1 << 20, Duration::ZERO).into_response())).await;
        let mut unread = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(GET).await.unwrap();
            client.readable().await.unwrap();
            unread.push(client);
        }
        let begun = Instant::now();
        loop {
            let (mut client, mut status) = (TcpStream::connect(address).await.unwrap(), [0; 12]);
            client.write_all(GET).await.unwrap();
            client.read_exact(&mut status).await.unwrap();
            if &status == b"HTTP/1.1 200" {
                break;
            }
            assert!(begun.elapsed() < IDLE_TIMEOUT * 2 / 3, "{status:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Bytes held by response bodies.
    static HELD: AtomicUsize = AtomicUsize::new(0);

    struct Held(Vec<u8>);

    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.fetch_sub(self.0.len(), Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn unread_large_responses_are_dropped_to_make_room() {
        const BYTES: usize = 16 << 20;
        let address = served(async |_, _from| {
            HELD.fetch_add(BYTES, Ordering::Relaxed);
            Ok(Body::from(Bytes::from_owner(Held(vec![b'.'; BYTES]))).into_response())
        })
        .await;
        let mut unread = Vec::new();
        for _ in 0..10 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4_096).unwrap();
            let mut client = socket.connect(address).await.unwrap();
            client.write_all(GET).await.unwrap();
            client.readable().await.unwrap();
            unread.push(client);
        }
        // Long before the idle timeout closes them.
        let deadline = Instant::now() + IDLE_TIMEOUT * 2 / 3;
        while HELD.load(Ordering::Relaxed) > 64 << 20 {
            assert!(Instant::now() < deadline, "every body is still held");
            sleep(Duration::from_millis(5)).await;
        }
        let (mut client, mut answer) = (TcpStream::connect(address).await.unwrap(), vec![0; BYTES]);
        client.write_all(GET).await.unwrap();
        client.read_exact(&mut answer).await.unwrap();
    }
}
