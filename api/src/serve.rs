//! Serving HTTP/1.1: accepting, bounds on slow clients, and an end in order.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long a connection may be silent: from an answer, which has to be read meanwhile, to the whole head of the next
/// request.
const SILENCE: Duration = Duration::from_secs(75);

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
    let connections = GracefulShutdown::new();
    loop {
        let (stream, from) = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        let (answer, idle) = (answer.clone(), Idle::default());
        let of_service = idle.clone();
        let service = service_fn(move |request| answer(request, of_service.open(from)));
        let connection = connections.watch(builder.serve_connection(TokioIo::new(stream), service));
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

/// Since when a connection owes no answer: `None` while it owes one. hyper's own bound starts and ends a timer for each
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
    use axum::response::IntoResponse;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Longer than a connection may be silent.
    const LONG: Duration = Duration::from_secs(200);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_closed_that_asks_nothing_but_not_one_that_waits_for_its_answer() {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let answer = async |_: Request<Incoming>, _open: Open| {
            sleep(LONG).await;
            Ok(().into_response())
        };
        let (_serving, ending) = watch::channel(false);
        tokio::spawn(serve(listener, answer, ending, SILENCE));
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
}
