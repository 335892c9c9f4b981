//! HTTP to one server, over connections that are reused.
//!
//! It does two things that common HTTP clients do not. A failure tells whether any byte of the request was sent, which
//! separates *not done* from *maybe done*. And an abandoned request closes its connection at once, so that the node notices
//! that its client is gone.

mod request;
#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::fmt::{Display, Formatter};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::{StatusCode, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ringfence_dial::{Target, tune};
use ringfence_tls::cut_to;
use ringfence_wire::{CLUSTER_HEADER, LEADER_HEADER, Problem, WITHIN_HEADER};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

pub(super) use self::request::Batched;
pub(crate) use self::request::Request;
use super::pulse::{ANSWERS_WITHIN, Probe, Pulse, THREADS_RUN_WITHIN_MS};
use super::tls::{Cause, Encryption};
use crate::clock::Moment;

/// How long connecting may take. A lookup that takes longer goes on in the background.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the other host may be silent; a stopped process does not count. It also ends a connection that was closed.
/// Otherwise an abandoned request could arrive more than a minute later, when the cluster has forgotten that its lease was
/// released.
const GONE_AFTER: Duration = Duration::from_secs(2);
/// How long the body of a response may take once its head is there.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest body that is read: a page of keys with many holders each.
const MAX_BODY: usize = 64 << 20;
/// The longest text of a problem that is told. What nodes write of other nodes has several reasons, and ends with what to do.
const MAX_DETAIL: usize = 4 << 10;
/// How long to wait after a 429 that does not say, and at most.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);
/// The most idle connections that are kept.
const MAX_IDLE: usize = 64;

/// A whole response.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    /// When the request was sent.
    pub(crate) sent: Moment,
    pub(crate) status: StatusCode,
    /// The leader's URL, if the node knows it.
    pub(crate) leader: Option<HeaderValue>,
    /// The id of the node's cluster, unless the node is old or belongs to none.
    pub(crate) cluster: Option<HeaderValue>,
    /// How long to wait before a repeat, as the node wrote it.
    pub(crate) retry_after: Option<HeaderValue>,
    pub(crate) body: Bytes,
}

/// A response whose body is still arriving.
#[derive(Debug)]
pub(crate) struct Streaming {
    pub(crate) response: hyper::Response<Incoming>,
    sent: Moment,
    connection: Connection,
}

/// Why there is no response.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nothing was sent.
    NotSent(String),
    /// Nothing was sent, and with the same files on both sides, nothing will be to what has answered: one side refuses the other's
    /// certificate.
    Untrusted(Cause, String),
    /// Some of it may have been sent.
    Broken(String),
}

/// The connections to one server.
#[derive(Debug)]
pub(crate) struct Server {
    host: String,
    target: Target,
    authority: HeaderValue,
    /// What the path of each request begins with, such as `/ringfence` at a gateway. Empty for a node itself.
    base: String,
    /// `None`: connections are plain.
    encryption: Option<Arc<Encryption>>,
    idle: Mutex<Idle>,
    pulse: Pulse,
}

/// The connections that carry no request.
#[derive(Debug)]
struct Idle {
    connections: Vec<Connection>,
    most: usize,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Connection {
    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<Self> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // A failure also shows in the request that the connection carries.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, driver })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Response {
    /// Reads the body.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.body)
    }

    /// The problem it reports, if a node of Ringfence wrote it rather than something in between.
    pub(crate) fn problem(&self) -> Option<Box<Problem>> {
        let mut problem: Box<Problem> = self.json().ok()?;
        problem.detail = cut_to(problem.detail, MAX_DETAIL);
        (problem.status == self.status.as_u16()).then_some(problem)
    }

    /// How long to wait before a repeat: a second, unless it says something else. No node asks for more than a minute.
    pub(crate) fn retry_after(&self) -> Duration {
        let seconds = self.retry_after.as_ref().and_then(|text| text.to_str().ok()?.parse().ok());
        seconds.map_or(DEFAULT_RETRY_AFTER, Duration::from_secs).min(LONGEST_RETRY_AFTER)
    }
}

impl Server {
    /// The server at `url`: `https://host:port` with encryption, `http://host:port` without, and perhaps a path.
    pub(super) fn parse(url: &str, encryption: Option<&Arc<Encryption>>) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
        match (uri.scheme_str(), encryption) {
            (Some("http"), None) | (Some("https"), Some(_)) => {}
            (Some("http"), Some(encryption)) if encryption.credential.is_some() => {
                return Err(format!(
                    "{url:?} is plain, and there is a credential, which is sent over TLS alone: with one, all URLs begin with https://"
                ));
            }
            (Some("http"), Some(_)) => {
                return Err(format!("{url:?} is plain: with TLS, all URLs begin with https://"));
            }
            (Some("https"), None) => {
                return Err(format!("{url:?}: other URLs are plain, and all must be, or none"));
            }
            _ => return Err(format!("{url:?} does not begin with https:// or http://")),
        }
        if uri.query().is_some() {
            return Err(format!("{url:?}: a node's URL has no query"));
        }
        let base = uri.path().trim_end_matches('/').to_owned();
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(|| format!("{url:?} is not of the form https://host:port"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if encryption.is_some() { 443 } else { 80 });
        let authority =
            HeaderValue::from_str(authority.as_str()).map_err(|error| format!("{url:?}: {error}"))?;
        let target = Target::new(&host, port);
        let idle = Mutex::new(Idle { connections: Vec::new(), most: MAX_IDLE });
        let (encryption, pulse) = (encryption.cloned(), Pulse::default());
        Ok(Self { host, target, authority, base, encryption, idle, pulse })
    }

    /// Whether both have the same host, port and path.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.target == other.target && self.base == other.base
    }

    /// Whether it is part of a larger site.
    pub(super) fn has_path(&self) -> bool {
        !self.base.is_empty()
    }

    /// Where it is.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a request and reads the whole response, within `time` of being connected.
    pub(crate) async fn send(&self, request: &Request, time: Duration) -> Result<Response, Failure> {
        let begun = Instant::now();
        let streaming = self.open(request, time).await?;
        let left = (time + CONNECT_TIMEOUT).saturating_sub(begun.elapsed());
        self.finish(streaming, left.min(BODY_TIMEOUT)).await
    }

    /// Sends a request and reads the head of the response.
    pub(crate) async fn open(&self, request: &Request, time: Duration) -> Result<Streaming, Failure> {
        self.exchange(request, time).await
    }

    /// Asks whether it lives, and all of its threads: this request is on another connection than those that wait. Fails unless it
    /// answers within [`ANSWERS_WITHIN`] that it does, or that it has no room: then nothing was sent of what was to follow.
    pub(super) async fn probe(&self) -> Result<Response, Failure> {
        let livez = Request { is_probe: true, ..Request::get("/livez") };
        let response = async {
            let streaming = self.exchange(&livez, ANSWERS_WITHIN).await?;
            self.finish(streaming, ANSWERS_WITHIN).await
        };
        let silent = |_| Err(Failure::NotSent(format!("{self}: it does not answer")));
        let response = timeout(ANSWERS_WITHIN, response).await.unwrap_or_else(silent);
        let response = response.map_err(|failure| match failure {
            Failure::Broken(why) => Failure::NotSent(why),
            failure => failure,
        })?;
        // A node without room for another connection does not say of which cluster it is. One that hangs does.
        let has_no_room = || response.cluster.is_none() && response.problem().is_some();
        if response.status.is_server_error() && !has_no_room() {
            return Err(Failure::NotSent(format!("{self}: {} of a probe", response.status)));
        }
        self.pulse.beat();
        Ok(response)
    }

    /// Completes once it is [silent](super::pulse).
    pub(super) async fn falls_silent(&self) {
        self.pulse.stops(|| self.answers()).await;
    }

    /// Closes idle connections.
    pub(super) fn forget_connections(&self) {
        self.idle().connections.clear();
    }

    /// Closes idle connections, and from now on each once it is idle.
    pub(super) fn disconnect(&self) {
        let mut idle = self.idle();
        idle.most = 0;
        idle.connections.clear();
    }

    /// Whether it is still silent a moment after `since`.
    pub(super) async fn stays_silent(&self, since: Instant) -> bool {
        self.pulse.stays_silent(since, || self.answers()).await
    }

    fn answers(&self) -> Probe<'_> {
        Box::pin(async { self.probe().await.is_ok() })
    }

    fn to_http(&self, request: &Request) -> Result<hyper::Request<Full<Bytes>>, Failure> {
        let Self { authority, base, encryption, .. } = self;
        let uri = format!("{base}{}", request.path);
        let mut head = hyper::Request::builder().method(&request.method).uri(uri).header(HOST, authority);
        if let Some(credential) = encryption.as_ref().and_then(|encryption| encryption.credential.as_ref()) {
            head = head.header(AUTHORIZATION, credential.header());
        }
        if request.is_probe {
            head = head.header(WITHIN_HEADER, THREADS_RUN_WITHIN_MS);
        }
        if !request.body.is_empty() {
            head = head.header(CONTENT_TYPE, "application/json");
        }
        head.body(Full::new(request.body.clone())).map_err(|error| Failure::NotSent(error.to_string()))
    }

    async fn exchange(&self, request: &Request, time: Duration) -> Result<Streaming, Failure> {
        let request = self.to_http(request)?;
        loop {
            let (mut connection, is_reused) = self.connection(time.min(CONNECT_TIMEOUT)).await?;
            let (sent, deadline) = (Moment::now(), Instant::now() + time);
            match timeout_at(deadline, connection.sender.try_send_request(request.clone())).await {
                Ok(Ok(response)) => return Ok(Streaming { response, sent, connection }),
                // The server had closed it while it was idle: nothing of the request was sent.
                Ok(Err(error)) if error.message().is_some() && is_reused => {}
                Ok(Err(error)) if error.message().is_some() => {
                    return Err(Failure::NotSent(format!("{self}: {}", error.error())));
                }
                Ok(Err(error)) => {
                    // The server says so after the handshake, when a request may have been sent, but has not read that.
                    let refused = self.encryption.as_ref().filter(|_| !is_reused);
                    return Err(match refused.and_then(|own| own.refused_by_server(error.error())) {
                        Some((cause, why)) => Failure::Untrusted(cause, format!("{self}: {why}")),
                        None => {
                            let end = refused.map(|own| own.own_end()).unwrap_or_default();
                            Failure::Broken(format!("{self}: {}{end}", with_causes(error.error())))
                        }
                    });
                }
                Err(_) => {
                    return Err(Failure::Broken(format!(
                        "{self}: no response within {} ms",
                        time.as_millis()
                    )));
                }
            }
        }
    }

    /// Reads the rest of a response.
    pub(crate) async fn finish(&self, streaming: Streaming, time: Duration) -> Result<Response, Failure> {
        let Streaming { sent, response, connection } = streaming;
        let (head, body) = response.into_parts();
        match timeout(time, Limited::new(body, MAX_BODY).collect()).await {
            Ok(Ok(body)) => {
                let mut idle = self.idle();
                if idle.connections.len() < idle.most {
                    idle.connections.push(connection);
                }
                let [leader, cluster, retry_after] = [LEADER_HEADER, CLUSTER_HEADER, RETRY_AFTER.as_str()]
                    .map(|name| head.headers.get(name).cloned());
                let body = body.to_bytes();
                Ok(Response { sent, status: head.status, leader, cluster, retry_after, body })
            }
            Ok(Err(error)) => Err(Failure::Broken(format!("{self}: {error}"))),
            Err(_) => Err(Failure::Broken(format!("{self}: half a response within {} ms", time.as_millis()))),
        }
    }

    /// A connection, and whether it has carried a request before.
    async fn connection(&self, time: Duration) -> Result<(Connection, bool), Failure> {
        if let Some(encryption) = &self.encryption {
            encryption.warn_of_ends();
        }
        while let Some(connection) = self.idle().connections.pop() {
            if !connection.driver.is_finished() && connection.sender.is_ready() {
                return Ok((connection, true));
            }
        }
        let deadline = Instant::now() + time;
        let not_sent = |why: String| Failure::NotSent(format!("{self}: {why}"));
        let stream = self.target.connect(time).await.map_err(|error| not_sent(error.to_string()))?;
        let shake_hands = async {
            tune(stream.get_ref(), GONE_AFTER)?;
            let Some(encryption) = &self.encryption else { return Connection::over(stream).await };
            let connect = async |stream| encryption.connect(stream, &self.host).await;
            Connection::over(stream.through(connect).await?).await
        };
        match timeout_at(deadline, shake_hands).await {
            Ok(Ok(connection)) => Ok((connection, false)),
            Ok(Err(error)) => Err(match self.encryption.as_ref().and_then(|own| own.refused(&error)) {
                Some((cause, why)) => Failure::Untrusted(cause, format!("{self}: {why}")),
                None => not_sent(error.to_string()),
            }),
            Err(_) => Err(not_sent(format!("no handshake of TLS within {} ms", time.as_millis()))),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().expect("no code panics while it holds this lock")
    }
}

impl Display for Server {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.encryption.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", String::from_utf8_lossy(self.authority.as_bytes()), self.base)
    }
}

/// An error of hyper, which does not tell the cause by itself.
fn with_causes(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// `text` as part of a query.
pub(crate) fn encode(text: &str) -> impl Display {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}
