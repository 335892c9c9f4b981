//! Connections that speak HTTP/1.1.

use std::convert::Infallible;
use std::future::poll_fn;
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
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::yield_now;

use crate::bodies::{self, RequestBody};
use crate::connections::Connections;
use crate::encryption::Tls;
use crate::threads::Threads;
use crate::turns::in_turns;
use crate::{Open, Protocol, Remote, serve_all};

/// Bytes buffered per connection and direction. The head of a request must fit.
const MAX_BUFFER: usize = 32 << 10;

/// HTTP/1.1, with this handler.
#[derive(Clone)]
struct Http<A>(A);

/// Serves the connections of `listener` with the handler `answer` until `draining` turns true. Then waits up to `within` for open requests
/// to end. With `tls`, connections are encrypted. Runs on the first of `threads`, which accepts.
pub async fn serve<A, F>(
    listener: TcpListener,
    tls: Option<Tls>,
    threads: Arc<Threads>,
    connections: Arc<Connections>,
    answer: A,
    draining: watch::Receiver<bool>,
    within: Duration,
) where
    A: Fn(Request<RequestBody>, Arc<Remote>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, Infallible>> + Send + 'static,
{
    serve_all(listener, tls, threads, connections, Http(answer), draining, within).await;
}

impl<A, F> Protocol for Http<A>
where
    A: Fn(Request<RequestBody>, Arc<Remote>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, Infallible>> + Send + 'static,
{
    const ENDS_WITH_CLIENT: bool = true;

    async fn serve(self, open: Open) {
        let Open { socket, remote, turns, watcher, .. } = open;
        let (reader, answer) = (socket.reader(), self.0);
        let is_new = AtomicBool::new(true);
        let service = service_fn(|request: Request<Incoming>| {
            let is_new = is_new.swap(false, Ordering::Relaxed);
            let (reader, answer, turns) = (&reader, &answer, &turns);
            let remote = Arc::clone(&remote);
            async move {
                let in_flight = reader.begin(turns).await;
                let only_reads = request.method().is_safe();
                if !only_reads && is_new {
                    // tokio reads from a new socket before it has polled the system for a close.
                    yield_now().await;
                }
                // Nobody reads the body of a DELETE.
                if !only_reads && (request.body().is_end_stream() || request.method() == Method::DELETE) {
                    reader.check_connected().await;
                }
                let request = request.map(|body| RequestBody::new(body, Arc::clone(reader), only_reads));
                let tenant = || reader.connection().tenant();
                let response = in_turns(turns, tenant, answer(request, remote)).await?;
                Ok::<_, Infallible>(bodies::chunked(response, in_flight, turns))
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
        let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut serving).poll(cx))).await;
        let result = match first {
            Poll::Ready(result) => result,
            Poll::Pending => watcher.watch(serving).await,
        };
        if let Err(error) = result {
            tracing::debug!(%error, "HTTP connection ended");
        }
    }
}

#[cfg(test)]
mod tests;
