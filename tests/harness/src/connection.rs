//! HTTP/1.1 over reused connections.
//!
//! Unlike a ready-made client, it reports whether any byte of a failed request was sent.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::error::{Failure, Fate};
use crate::namespace::Namespace;

/// A raw answer.
#[derive(Clone, Debug)]
pub struct RawAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// The idle connections to one node.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Shared with those that are [separate](Connections::separate).
    address: Arc<Mutex<SocketAddr>>,
    /// Where to connect from, unless from this process's namespace.
    namespace: Option<Arc<Namespace>>,
    /// With their addresses.
    idle: Mutex<Vec<(SocketAddr, Connection)>>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

/// Abandoning a request must close its connection at once: that is how the node learns of it.
impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connections {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address: Arc::new(Mutex::new(address)), namespace: None, idle: Mutex::default() }
    }

    /// Separate connections to the node's present address.
    pub(crate) fn detached(&self) -> Self {
        Self { namespace: self.namespace.clone(), ..Self::new(self.address()) }
    }

    /// Moves these connections, and those that are separate, to `address`.
    pub(crate) fn lead_to(&self, address: SocketAddr) {
        *self.address.lock().expect("no panic while the address is locked") = address;
    }

    pub(crate) fn address(&self) -> SocketAddr {
        *self.address.lock().expect("no panic while the address is locked")
    }

    /// Separate connections to the same node.
    pub(crate) fn separate(&self) -> Self {
        let (address, namespace) = (Arc::clone(&self.address), self.namespace.clone());
        Self { address, namespace, idle: Mutex::default() }
    }

    pub(crate) fn inside(namespace: &Arc<Namespace>, address: SocketAddr) -> Self {
        Self { namespace: Some(Arc::clone(namespace)), ..Self::new(address) }
    }

    /// Sends a request and reads the whole answer, before `deadline`.
    pub(crate) async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        deadline: Instant,
    ) -> Result<RawAnswer, Failure> {
        let address = self.address();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", address.to_string())
            .body(Full::new(body))
            .map_err(|error| Failure::new(Fate::NotDone, format!("not a request: {error}")))?;
        loop {
            let mut connection = self.connection(address, deadline).await?;
            let answer = async {
                let response = connection.sender.try_send_request(request.clone()).await;
                let response =
                    response.map_err(|error| (error.message().is_none(), error.error().to_string()))?;
                let (head, body) = response.into_parts();
                let body = body.collect().await.map_err(|error| (true, error.to_string()))?.to_bytes();
                Ok(RawAnswer { status: head.status.as_u16(), headers: head.headers, body })
            };
            match timeout_at(deadline, answer).await {
                Ok(Ok(answer)) => {
                    self.idle().push((address, connection));
                    return Ok(answer);
                }
                // The node had closed it while it was idle.
                Ok(Err((false, _))) => {}
                Ok(Err((true, why))) => return Err(Failure::new(Fate::Unknown, why)),
                Err(_) => return Err(Failure::new(Fate::Unknown, "no answer in time")),
            }
        }
    }

    /// Sends a GET on a new connection and returns the stream of its answer, or the whole of an answer other than 200.
    pub(crate) async fn stream_of(
        &self,
        path: &str,
        deadline: Instant,
    ) -> Result<Result<(Connection, Incoming), RawAnswer>, Failure> {
        let address = self.address();
        let request = Request::builder().uri(path).header("host", address.to_string());
        let request = request
            .body(Full::default())
            .map_err(|error| Failure::new(Fate::NotDone, format!("not a request: {error}")))?;
        let unknown = |error: hyper::Error| Failure::new(Fate::Unknown, error.to_string());
        let mut connection = self.separate().connection(address, deadline).await?;
        let answer = async {
            let (head, body) = connection.sender.send_request(request).await.map_err(unknown)?.into_parts();
            if head.status == 200 {
                return Ok(Ok(body));
            }
            let body = body.collect().await.map_err(unknown)?.to_bytes();
            Ok(Err(RawAnswer { status: head.status.as_u16(), headers: head.headers, body }))
        };
        match timeout_at(deadline, answer).await {
            Ok(answer) => Ok(answer?.map(|body| (connection, body))),
            Err(_) => Err(Failure::new(Fate::Unknown, "no answer in time")),
        }
    }

    async fn connection(&self, address: SocketAddr, deadline: Instant) -> Result<Connection, Failure> {
        while let Some((to, connection)) = self.pop() {
            if to == address && !connection.driver.is_finished() && connection.sender.is_ready() {
                return Ok(connection);
            }
        }
        let not_done = |error: &dyn std::error::Error| Failure::new(Fate::NotDone, error.to_string());
        let connect = async {
            let stream = self.connect(address).await.map_err(|error| not_done(&error))?;
            stream.set_nodelay(true).map_err(|error| not_done(&error))?;
            let (sender, driver) = handshake(TokioIo::new(stream)).await.map_err(|error| not_done(&error))?;
            // The request that it carries shows how it ended.
            let driver = tokio::spawn(async move { drop(driver.await) });
            Ok(Connection { sender, driver })
        };
        timeout_at(deadline, connect)
            .await
            .unwrap_or_else(|_| Err(Failure::new(Fate::NotDone, "no connection in time")))
    }

    pub(crate) async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        match &self.namespace {
            None => TcpStream::connect(address).await,
            // A socket stays in the namespace that it was made in.
            Some(namespace) => namespace.inside(TcpSocket::new_v4)?.connect(address).await,
        }
    }

    fn pop(&self) -> Option<(SocketAddr, Connection)> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(SocketAddr, Connection)>> {
        self.idle.lock().expect("no panic while the connections are locked")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn get(connections: &Connections, within_ms: u64) -> Result<RawAnswer, Failure> {
        let deadline = Instant::now() + Duration::from_millis(within_ms);
        connections.exchange(Method::GET, "/", Bytes::new(), deadline).await
    }

    /// Takes `count` connections, one after the other; reads a request on each, answers `answer`, and closes it.
    async fn server(answer: &'static str, count: usize) -> Connections {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            for _ in 0..count {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Connections::new(address)
    }

    #[tokio::test]
    async fn a_closed_port_is_certainly_not_done() {
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        assert_eq!(get(&Connections::new(address), 1_000).await.unwrap_err().fate, Fate::NotDone);
    }

    #[tokio::test]
    async fn a_request_without_an_answer_is_unknown() {
        let closes = server("", 1).await;
        assert_eq!(get(&closes, 1_000).await.unwrap_err().fate, Fate::Unknown);
        let breaks_off = server("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", 1).await;
        assert_eq!(get(&breaks_off, 1_000).await.unwrap_err().fate, Fate::Unknown);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let says_nothing = Connections::new(listener.local_addr().unwrap());
        assert_eq!(get(&says_nothing, 100).await.unwrap_err().fate, Fate::Unknown);
    }

    #[tokio::test]
    async fn a_node_that_moved_is_asked_where_it_is_now_by_all() {
        let answer = "HTTP/1.1 204 No Content\r\n\r\n";
        let (connections, elsewhere) = (server(answer, 1).await, server(answer, 2).await);
        let separate = connections.separate();
        assert_eq!(get(&connections, 1_000).await.unwrap().status, 204);
        connections.lead_to(elsewhere.address());
        assert_eq!(get(&connections, 1_000).await.unwrap().status, 204);
        assert_eq!(get(&separate, 1_000).await.unwrap().status, 204);
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_while_idle_is_made_again() {
        let connections = server("HTTP/1.1 204 No Content\r\n\r\n", 2).await;
        for _ in 0..2 {
            assert_eq!(get(&connections, 1_000).await.unwrap().status, 204);
            // Until its driver has seen the end.
            while connections.idle().iter().any(|(_, idle)| !idle.driver.is_finished()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}
