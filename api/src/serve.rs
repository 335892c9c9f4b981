//! Serving HTTP/1.1: accepting, bounds on what connections take, and an end in order.
//!
//! Any client may be a stranger. What all clients together may take is bounded: descriptors by how many connections
//! there may be (`connections`), memory by what bodies and answers may hold (`budget`, `bodies`). Where a bound is reached,
//! those end first that are idle, or slow, for longest; a request that is worked on never does.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use ringfence_wire::ProblemKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::measure::{Closed, connections_closed_total};
use crate::problems::Failed;

mod bodies;
mod budget;
mod connections;
mod socket;
mod threads;

pub use bodies::Arriving;
pub(crate) use bodies::Late;
pub use connections::Connections;
pub use threads::Threads;

use bodies::Leaving;
use connections::Entered;
use socket::Socket;

/// How many bytes are buffered of a connection, each way: the head of a request has to fit.
const MOST_BUFFERED: usize = 32 << 10;
/// How many connections are told at a time that there is no room for them, and how long each has to hear it.
const MOST_REFUSED: usize = 32;
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// Answers requests that come to `listener` with `answer` until `draining` turns true; then waits, no longer than `within`,
/// for open requests to end. To be run on the first of `threads`, which accepts.
pub async fn serve<A, F>(
    listener: TcpListener,
    threads: Arc<Threads>,
    connections: Arc<Connections>,
    answer: A,
    mut draining: watch::Receiver<bool>,
    within: Duration,
) where
    A: Fn(Request<Arriving>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, Infallible>> + Send + 'static,
{
    let open = GracefulShutdown::new();
    let refusals = Arc::new(Semaphore::new(MOST_REFUSED));
    loop {
        let (stream, from) = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        let entered = tokio::select! {
            entered = connections.enter(from) => entered,
            _ = draining.wait_for(|draining| *draining) => None,
        };
        let Some(entered) = entered else {
            connections_closed_total(Closed::Refused).increment(1);
            if let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() {
                tokio::spawn(async move {
                    let _ = timeout(REFUSED_WITHIN, refuse(stream)).await;
                    drop(permit);
                });
            }
            continue;
        };
        // The thread that serves it is to be told when it is ready, and no other.
        let Ok(stream) = stream.into_std() else { continue };
        let (answer, watcher) = (answer.clone(), open.watcher());
        threads.serve(async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                connection(stream, entered, answer, watcher).await;
            }
        });
    }
    drop(listener);
    if timeout(within, open.shutdown()).await.is_err() {
        tracing::warn!("some requests were still open");
    }
}

/// Serves one connection until it ends.
async fn connection<A, F>(stream: TcpStream, entered: Entered, answer: A, watcher: Watcher)
where
    A: Fn(Request<Arriving>, SocketAddr) -> F,
    F: Future<Output = Result<Response, Infallible>>,
{
    let from = entered.0.from;
    let socket = Socket::new(stream, Arc::clone(&entered.0));
    let ear = socket.ear();
    let is_new = AtomicBool::new(true);
    let service = service_fn(|request: Request<Incoming>| {
        let (open, is_new) = (ear.connection().open(), is_new.swap(false, Ordering::Relaxed));
        let (ear, connections, answer) = (&ear, &entered.0.connections, &answer);
        async move {
            let only_reads = request.method().is_safe();
            if !only_reads && is_new {
                // tokio reads from a new socket before it has asked the system whether that is closed already.
                yield_now().await;
            }
            if !only_reads && request.body().is_end_stream() {
                ear.still_there().await;
            }
            let request =
                request.map(|body| Arriving::new(body, Arc::clone(ear), only_reads, Arc::clone(connections)));
            let response = answer(request, from).await?;
            Ok::<_, Infallible>(response.map(|body| Leaving::new(body, open, connections)))
        }
    });
    let mut builder = http1::Builder::new();
    // Answers are small: to copy one behind its head costs less than to write two pieces.
    builder.writev(false);
    // What is written to a client that does not read is kept for it up to here.
    builder.max_buf_size(MOST_BUFFERED);
    let mut serving = builder.serve_connection(TokioIo::new(socket), service);
    // A stop closes a connection that has read nothing. So a request that has arrived is read first; only after this pause is
    // it known here.
    yield_now().await;
    let first = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut serving).poll(cx))).await;
    let served = async {
        match first {
            Poll::Ready(result) => result,
            Poll::Pending => watcher.watch(serving).await,
        }
    };
    tokio::select! {
        biased;
        result = served => {
            if let Err(error) = result {
                tracing::debug!(%error, "HTTP connection ended");
            }
        }
        () = std::future::poll_fn(|cx| ear.poll_gone(cx)) => tracing::debug!("an HTTP client has gone"),
        reason = entered.0.over() => entered.closed(reason),
    }
}

/// Says that there is no room. What is sent before it is read through, as the answer would be lost otherwise.
async fn refuse(mut stream: TcpStream) -> std::io::Result<()> {
    let failed = Failed::new(
        ProblemKind::Unavailable,
        "this node has as many connections as it takes, and all are in use: ask another node, or come again",
    );
    let problem =
        serde_json::to_vec(&failed.into_problem()).expect("problems have nothing that JSON cannot say");
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        problem.len()
    );
    stream.write_all(&[head.as_bytes(), &problem].concat()).await?;
    stream.shutdown().await?;
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
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
    use std::sync::atomic::AtomicUsize;

    use axum::body::{Body, Bytes};
    use axum::response::IntoResponse;
    use futures_util::{StreamExt, stream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use tokio::net::TcpSocket;
    use tokio::time::Instant;

    use super::connections::{HEAD_WITHIN, SILENCE};
    use super::*;

    /// Longer than a connection may be silent.
    const LONG: Duration = Duration::from_secs(200);

    /// Serves `answer` on a new address.
    async fn served<F>(
        answer: impl Fn(Request<Arriving>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    ) -> SocketAddr
    where
        F: Future<Output = Result<Response, Infallible>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (_serving, ending) = watch::channel(false);
            let (threads, connections) = (Arc::new(Threads::here()), Connections::new(100));
            serve(listener, threads, connections, answer, ending, SILENCE).await;
        });
        address
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_closed_that_asks_nothing_but_not_one_that_waits_for_its_answer() {
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
        assert_eq!(asked("").await, (None, SILENCE.as_secs()));
        assert_eq!(asked("GET / HTTP/1.1\r\nhost: h").await, (None, HEAD_WITHIN.as_secs()));
        let (answer, seconds) = asked("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
        assert_eq!(answer.as_deref(), Some("HTTP/1.1 200 OK"));
        assert_eq!(seconds, (LONG + SILENCE).as_secs());
    }

    /// A stop once closed connections without an answer that had been handed to a busy thread.
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
        let serving = serve(listener, threads, Arc::clone(&connections), answer, stopping, SILENCE);
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
        let address = served(async |_, _from| Ok(pieces(9, 1, PAUSE).into_response())).await;
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
        let endless = async |_, _from| Ok(pieces(usize::MAX, 1 << 20, Duration::ZERO).into_response());
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

    /// How many bytes of answers there are.
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
    async fn large_answers_that_are_not_read_make_room_for_others() {
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
        // Long before they would be closed for their silence.
        let deadline = Instant::now() + SILENCE / 3;
        while HELD.load(Ordering::Relaxed) > 64 << 20 {
            assert!(Instant::now() < deadline, "all are kept");
            sleep(Duration::from_millis(5)).await;
        }
        let (mut client, mut answer) = (TcpStream::connect(address).await.unwrap(), vec![0; BYTES]);
        client.write_all(GET).await.unwrap();
        client.read_exact(&mut answer).await.unwrap();
    }
}
