//! One HTTP call to one node, over connections that are used again.
//!
//! Two things that a ready-made client does not give: whether any byte of a request that failed was sent, which is what
//! tells *not done* from *maybe done*; and a connection that closes at once when its request is given up, by which the
//! node learns that nobody waits there any more.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use ringfence_wire::{FieldError, Operation};
use rustix::net::sockopt;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::gather::Gather;
use crate::lifetime::Moment;

/// How long it may take to be connected.
pub(crate) const CONNECT: Duration = Duration::from_secs(1);
/// How long what was sent may stay without a word of the other kernel, in milliseconds; a stopped process does not count. A
/// connection that was closed ends with that, too: else its request may arrive more than a minute after it was given up,
/// when the cluster has forgotten that its lease was released.
const GONE_MS: u32 = 2_000;
/// The longest answer that is read: a page of keys with many holders each.
const LONGEST_ANSWER: usize = 64 << 20;
/// Connections to one node that are kept while nobody uses them.
const IDLE: usize = 64;
/// The header by which an answer names the leader's URL.
const LEADER: &str = "ringfence-leader";

/// A request to whichever node.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    method: Method,
    path: String,
    body: Bytes,
    in_batch: Option<InBatch>,
}

/// A call as part of a batch.
#[derive(Clone, Debug)]
pub(crate) struct InBatch {
    pub(crate) operation: Operation,
    /// For how long the call would wait in the queue of the cluster. In a batch nobody does.
    pub(crate) waits: Duration,
}

/// An answer as it came.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// When its request was sent.
    pub(crate) sent: Moment,
    pub(crate) status: StatusCode,
    /// Whom it names as the leader.
    pub(crate) leader: Option<HeaderValue>,
    pub(crate) body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nothing was sent.
    NotSent(String),
    /// Something may have been.
    Broken(String),
}

/// An answer whose body is still coming.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) sent: Moment,
    pub(crate) response: Response<Incoming>,
    connection: Connection,
}

/// Where a node is, and the connections to it that are free.
#[derive(Debug)]
pub(crate) struct Node {
    host: String,
    port: u16,
    authority: HeaderValue,
    idle: Mutex<Vec<Connection>>,
    pub(crate) gather: Gather,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Call {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: Bytes::new(), in_batch: None }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub(crate) fn with(mut self, body: &impl Serialize) -> Self {
        self.body = serde_json::to_vec(body).expect("requests contain nothing that JSON cannot say").into();
        self
    }

    /// It may be asked for as part of a batch, where others are under way.
    pub(crate) fn or_in_batch(self, operation: Operation, waits: Duration) -> Self {
        Self { in_batch: Some(InBatch { operation, waits }), ..self }
    }

    pub(crate) fn in_batch(&self) -> Option<&InBatch> {
        self.in_batch.as_ref()
    }

    fn request(&self, authority: &HeaderValue) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::builder().method(&self.method).uri(&self.path).header(HOST, authority);
        if !self.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(self.body.clone())).map_err(|error| Failure::NotSent(error.to_string()))
    }
}

impl Node {
    /// The node at `url`: `http://host:port`.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(format!("{url:?}: nodes speak plain HTTP; put what ends TLS beside the client"));
            }
            _ => return Err(format!("{url:?} does not begin with http://")),
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(format!("{url:?}: a node's URL has no path"));
        }
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(|| format!("{url:?} is not of the form http://host:port"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let header =
            HeaderValue::from_str(authority.as_str()).map_err(|error| format!("{url:?}: {error}"))?;
        Ok(Self {
            host,
            port: authority.port_u16().unwrap_or(80),
            authority: header,
            idle: Mutex::default(),
            gather: Gather::default(),
        })
    }

    /// Whether both are the same place by name.
    pub(crate) fn is_at(&self, other: &Self) -> bool {
        self.host == other.host && self.port == other.port
    }

    /// Sends a request and reads the whole answer, no later than `within` after it was connected.
    pub(crate) async fn exchange(&self, call: &Call, within: Duration) -> Result<Answer, Failure> {
        let begun = Instant::now();
        let opened = self.open(call, within).await?;
        self.finish(opened, (within + CONNECT).saturating_sub(begun.elapsed())).await
    }

    /// Reads what is left of an answer.
    pub(crate) async fn finish(&self, opened: Opened, within: Duration) -> Result<Answer, Failure> {
        let Opened { sent, response, connection } = opened;
        let (head, body) = response.into_parts();
        match timeout(within, Limited::new(body, LONGEST_ANSWER).collect()).await {
            Ok(Ok(body)) => {
                self.keep(connection);
                let leader = head.headers.get(LEADER).cloned();
                Ok(Answer { sent, status: head.status, leader, body: body.to_bytes() })
            }
            Ok(Err(error)) => Err(Failure::Broken(format!("{self}: {error}"))),
            Err(_) => {
                Err(Failure::Broken(format!("{self}: half an answer within {} ms", within.as_millis())))
            }
        }
    }

    /// Sends a request, and reads the head of the answer.
    pub(crate) async fn open(&self, call: &Call, within: Duration) -> Result<Opened, Failure> {
        let request = call.request(&self.authority)?;
        loop {
            let mut connection = self.connection(within.min(CONNECT)).await?;
            let (sent, deadline) = (Moment::now(), Instant::now() + within);
            match timeout_at(deadline, connection.sender.try_send_request(request.clone())).await {
                Ok(Ok(response)) => return Ok(Opened { sent, response, connection }),
                // The other side had closed it while it was idle, and nothing of the request is sent.
                Ok(Err(error)) if error.message().is_some() => {}
                Ok(Err(error)) => return Err(Failure::Broken(format!("{self}: {}", error.error()))),
                Err(_) => {
                    let why = format!("{self}: no answer within {} ms", within.as_millis());
                    return Err(Failure::Broken(why));
                }
            }
        }
    }

    async fn connection(&self, within: Duration) -> Result<Connection, Failure> {
        while let Some(connection) = self.pop() {
            if !connection.driver.is_finished() && connection.sender.is_ready() {
                return Ok(connection);
            }
        }
        let connect = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            sockopt::set_tcp_user_timeout(&stream, GONE_MS)?;
            let handshake = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
            std::io::Result::Ok(handshake)
        };
        match timeout(within, connect).await {
            Ok(Ok((sender, connection))) => {
                // Its end shows in the request that it carries.
                let driver = tokio::spawn(async move { drop(connection.await) });
                Ok(Connection { sender, driver })
            }
            Ok(Err(error)) => Err(Failure::NotSent(format!("{self}: {error}"))),
            Err(_) => Err(Failure::NotSent(format!("{self}: no connection in time"))),
        }
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < IDLE {
            idle.push(connection);
        }
    }

    fn pop(&self) -> Option<Connection> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("nothing that panics is done while it is locked")
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", String::from_utf8_lossy(self.authority.as_bytes()))
    }
}

/// The nodes at `urls`, none twice.
pub(crate) fn nodes<S: AsRef<str>>(urls: impl IntoIterator<Item = S>) -> Result<Vec<Arc<Node>>, FieldError> {
    let mut nodes: Vec<Arc<Node>> = Vec::new();
    for (place, url) in urls.into_iter().enumerate() {
        let node = Node::parse(url.as_ref().trim());
        let node = node.map_err(|detail| FieldError::new(format!("urls[{place}]"), detail))?;
        if !nodes.iter().any(|other| other.is_at(&node)) {
            nodes.push(Arc::new(node));
        }
    }
    if nodes.is_empty() {
        return Err(FieldError::new("urls", "a client needs the URL of at least one node"));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    async fn get(node: &Node, within: Duration) -> Result<u16, Failure> {
        node.exchange(&Call::get("/"), within).await.map(|answer| answer.status.as_u16())
    }

    fn node(listener: &TcpListener) -> Node {
        Node::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap()
    }

    /// Takes `count` connections, one after the other; reads a request on each, answers `answer`, and closes it.
    async fn server(answer: &'static str, count: usize) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = node(&listener);
        tokio::spawn(async move {
            for _ in 0..count {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        node
    }

    #[tokio::test]
    async fn a_closed_port_is_certainly_not_done() {
        let closed = node(&TcpListener::bind("127.0.0.1:0").await.unwrap());
        assert!(matches!(get(&closed, SOON).await, Err(Failure::NotSent(_))));
    }

    #[tokio::test]
    async fn a_request_without_a_whole_answer_may_have_been_done() {
        let closes = server("", 1).await;
        assert!(matches!(get(&closes, SOON).await, Err(Failure::Broken(_))));
        let breaks_off = server("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", 1).await;
        assert!(matches!(get(&breaks_off, SOON).await, Err(Failure::Broken(_))));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        assert!(matches!(get(&node(&listener), Duration::from_millis(50)).await, Err(Failure::Broken(_))));
    }

    #[tokio::test]
    async fn a_connection_is_used_again_and_made_anew_where_it_was_closed_meanwhile() {
        let node = server("HTTP/1.1 204 No Content\r\n\r\n", 2).await;
        for _ in 0..2 {
            assert_eq!(get(&node, SOON).await.unwrap(), 204);
            assert_eq!(node.idle().len(), 1);
            // Until its driver has seen the end.
            while node.idle().iter().any(|idle| !idle.driver.is_finished()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_closes_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = node(&listener);
        let asking = tokio::spawn(async move { get(&node, SOON).await });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 1024];
        assert!(stream.read(&mut bytes).await.unwrap() > 0);
        asking.abort();
        let closed = timeout(SOON / 2, stream.read(&mut bytes)).await.unwrap();
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    }
    #[tokio::test]
    async fn what_the_other_kernel_does_not_take_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let more_than_fits = Call::new(Method::POST, "/").with(&"x".repeat(32 << 20));
        let node = node(&listener);
        let broken = timeout(SOON / 2, node.exchange(&more_than_fits, SOON)).await.unwrap();
        assert!(matches!(broken, Err(Failure::Broken(_))), "{broken:?}");
    }
}
