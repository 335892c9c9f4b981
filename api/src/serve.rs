//! Serving HTTP/1.1: accepting, bounds on slow clients, and an end in order.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How long a connection may be silent between requests, and a request's head may take.
const SILENCE: Duration = Duration::from_secs(75);

/// Answers requests with `answer` until `draining` turns true; then waits, no longer than `within`, for open requests to
/// end.
pub async fn serve<A, F>(
    listener: Arc<TcpListener>,
    answer: A,
    mut draining: watch::Receiver<bool>,
    within: Duration,
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response, Infallible>> + Send + 'static,
{
    let mut builder = http1::Builder::new();
    // Answers are small: to copy one behind its head costs less than to write two pieces.
    builder.writev(false).timer(TokioTimer::new()).header_read_timeout(SILENCE);
    let connections = GracefulShutdown::new();
    loop {
        let stream = tokio::select! {
            stream = accept(&listener) => stream,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        let service = service_fn(answer.clone());
        let connection = connections.watch(builder.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "HTTP connection ended");
            }
        });
    }
    drop(listener);
    if timeout(within, connections.shutdown()).await.is_err() {
        tracing::warn!("some requests were still open");
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Small answers must not wait for the acknowledgement of earlier ones.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY could not be set");
                }
                return stream;
            }
            // Most likely too many open files: others may close theirs.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
