//! The HTTP/1.1 server: accepts connections, bounds what they take, and drains on shutdown. It knows nothing of what is served.
//!
//! Clients are not trusted. All connections together are bounded: descriptors by the number of connections, which the owners of
//! connections share ([`Connections`]), memory by the size of buffered bodies (`budget`, `bodies`) and of requests
//! that are being handled (`handled`), and time by turns, which owners take one after the other, too (`turns`).

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
use tokio::sync::watch;
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

mod bodies;
mod budget;
mod connections;
mod dialog;
mod encryption;
mod handled;
mod measure;
mod owner;
mod paced;
mod queue;
mod socket;
#[cfg(test)]
mod tests;
mod threads;
mod turns;

pub use bodies::{RequestBody, Shed, without_share};
pub use connections::{Connection, Connections};
pub use dialog::{Dialog, Reply};
pub use encryption::Tls;
pub use measure::METRICS;
pub use threads::Threads;

use connections::Admitted;
use encryption::Opened;
use measure::HANDSHAKES_FAILED;
use socket::Socket;
use turns::{Turns, in_turns};

/// Bytes buffered per connection and direction. The head of a request must fit.
const MAX_BUFFER: usize = 32 << 10;
/// Bytes that the kernel keeps of a connection in each direction: those not sent yet, and those not read.
const MAX_KERNEL: usize = 64 << 10;

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
    loop {
        let (stream, from) = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        let admitted = tokio::select! {
            admitted = connections.admit(from) => admitted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        // Moves the socket to the reactor of the thread that will serve it.
        let Ok(stream) = stream.into_std() else { continue };
        let (answer, watcher, tls) = (answer.clone(), open.watcher(), tls.clone());
        let ending = draining.clone();
        threads.serve(|turns| async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve_connection(stream, tls, admitted, turns, answer, watcher, ending).await;
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
    turns: Arc<Turns>,
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
        opened = encryption::open(stream, tls, &turns, &admitted.0) => opened,
        reason = admitted.0.until_closed() => return admitted.log_close(reason),
        // It has sent no request, and a stop does not wait for it.
        _ = draining.wait_for(|draining| *draining) => return,
    };
    let Opened { stream, distrusted, is_encrypted, names } = match opened {
        Ok(opened) => opened,
        Err(error) => {
            HANDSHAKES_FAILED.get().increment(1);
            return tracing::debug!(%from, %error, "a TLS handshake failed");
        }
    };
    let remote = Arc::new(Remote { address: from, is_encrypted, names });
    let socket = Socket::new(stream, Arc::clone(&admitted.0));
    let reader = socket.reader();
    let is_new = AtomicBool::new(true);
    let service = service_fn(|request: Request<Incoming>| {
        let is_new = is_new.swap(false, Ordering::Relaxed);
        let (reader, connections, answer, turns) = (&reader, &admitted.0.connections, &answer, &turns);
        let remote = Arc::clone(&remote);
        async move {
            if let Some(turn) = turns.ask(reader.connection().owner()) {
                reader.connection().waits_for_turn();
                // Nobody drops the other end while it waits.
                let _ = turn.await;
            }
            let in_flight = reader.connection().begin().await;
            reader.allow_ahead();
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
            let owner = || reader.connection().owner();
            let response = in_turns(turns, owner, answer(request, remote)).await?;
            Ok::<_, Infallible>(bodies::chunked(response, in_flight, connections, turns))
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
    // However much the connection does in a poll, they look at the clock.
    let (closed, distrusted) = (unconstrained(admitted.0.until_closed()), unconstrained(distrusted));
    tokio::select! {
        // hyper first: `poll_hangup` takes only what hyper has not read.
        biased;
        result = served => {
            if let Err(error) = result {
                tracing::debug!(%error, "HTTP connection ended");
            }
        }
        () = std::future::poll_fn(|cx| reader.poll_hangup(cx)) => tracing::debug!("an HTTP client closed its connection"),
        reason = closed => admitted.log_close(reason),
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
