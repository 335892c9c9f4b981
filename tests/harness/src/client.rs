//! Typed calls to one node.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ringfence_wire::{
    AcquireRequest, BatchAcquire, BatchAnswer, BatchRequest, ClusterStatus, Grant, Key, KeyList, KeyView,
    LeaseId, Operation, Problem, ProblemKind, RenewManyRequest, RenewRequest, Revision, RevokeRequest, Token,
    Ttl, ValidateRequest, Verdict,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::answer::{Acquired, Called, LeaseView, Reply};
use crate::connection::{Connections, RawAnswer};
use crate::error::{Failure, Fate};
use crate::loopback::resp;
use crate::namespace::Namespace;
use crate::watch::Watch;

/// The timeout of a call, beyond its wait. A node gives up after 5 s, or 10 s past the wait.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How long a [patient](Client::patient) client repeats a call, and the pause before each repeat.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(50);
/// Characters to encode in a path; a key keeps its slashes.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The consistency of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// The cluster's state at some instant of the call.
    Linearizable,
    /// The node's own state.
    Local,
}

/// Calls one node. Clones share its connections. It belongs to the tokio runtime that uses it first.
#[derive(Clone, Debug)]
pub struct Client {
    connections: Arc<Connections>,
    timeout: Duration,
    patience: Duration,
}

impl Client {
    /// A client of the node at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self::over(Connections::new(address), TIMEOUT)
    }

    /// A client of the same node with connections of its own.
    pub fn own_connections(&self) -> Self {
        Self { connections: Arc::new(self.connections.separate()), ..self.clone() }
    }

    /// The address of the node.
    pub fn address(&self) -> SocketAddr {
        self.connections.address()
    }

    /// A new connection to the node's port for the Redis protocol: see [`Builder::resp`](crate::Builder::resp).
    pub async fn resp(&self) -> io::Result<TcpStream> {
        self.connections.connect(resp(self.address())).await
    }

    /// The same, from inside `namespace`.
    pub(crate) fn inside(namespace: &Arc<Namespace>, address: SocketAddr) -> Self {
        Self::over(Connections::inside(namespace, address), TIMEOUT)
    }

    /// A client that stays at the present address when the node moves.
    pub(crate) fn detached(&self) -> Self {
        Self { connections: Arc::new(self.connections.detached()), ..self.clone() }
    }

    /// Redirects this client, and all clients made from it, to `address`.
    pub(crate) fn lead_to(&self, address: SocketAddr) {
        self.connections.lead_to(address);
    }

    fn over(connections: Connections, timeout: Duration) -> Self {
        Self { connections: Arc::new(connections), timeout, patience: Duration::ZERO }
    }

    /// The same, but a call without a definite answer is repeated. For tests that are not about failures: on a busy machine,
    /// another leader may be elected at any time.
    pub fn patient(&self) -> Self {
        Self { patience: PATIENCE, ..self.clone() }
    }

    /// The same, but a call takes no longer than `timeout` beyond its wait.
    pub fn within(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// `PUT /v1/leases/{lease_id}`
    pub async fn acquire(&self, lease_id: LeaseId, request: &AcquireRequest) -> Called<Acquired> {
        Ok(match self.acquire_mirrored(lease_id, request).await? {
            Reply::Done { status, body: (acquired, _) } => Reply::Done { status, body: acquired },
            Reply::Refused(problem) => Reply::Refused(problem),
        })
    }

    /// The same, and whether the mirror has the fence of the grant; `None` if the answer does not say.
    pub async fn acquire_mirrored(
        &self,
        lease_id: LeaseId,
        request: &AcquireRequest,
    ) -> Called<(Acquired, Option<bool>)> {
        #[derive(Deserialize)]
        struct Mirror {
            mirrored: Option<bool>,
        }
        let waits = Duration::from_millis(request.wait_ms.ms().into());
        let path = format!("/v1/leases/{lease_id}");
        let answer = self.send(Method::PUT, &path, json(request), self.timeout + waits).await?;
        typed(answer, |answer| {
            let mirror: Mirror = serde_json::from_slice(&answer.body)?;
            Ok((acquired(answer)?, mirror.mirrored))
        })
    }

    /// `POST /v1/leases/{lease_id}/renew`
    pub async fn renew(&self, lease_id: LeaseId, ttl_ms: Option<Ttl>) -> Called<Grant> {
        self.post(&format!("/v1/leases/{lease_id}/renew"), &RenewRequest { ttl_ms }).await
    }

    /// `POST /v1/renew`
    pub async fn renew_many(&self, lease_ids: Vec<LeaseId>) -> Called<BatchAnswer> {
        self.post("/v1/renew", &RenewManyRequest { lease_ids }).await
    }

    /// `DELETE /v1/leases/{lease_id}`
    pub async fn release(&self, lease_id: LeaseId) -> Called<()> {
        let path = format!("/v1/leases/{lease_id}");
        nothing(self.send(Method::DELETE, &path, Bytes::new(), self.timeout).await?)
    }

    /// `GET /v1/leases/{lease_id}`
    pub async fn lease(&self, lease_id: LeaseId, consistency: Consistency) -> Called<LeaseView> {
        self.get(&format!("/v1/leases/{lease_id}?{}", consistency.query())).await
    }

    /// `GET /v1/keys/{key}`
    pub async fn key(&self, key: &Key, consistency: Consistency) -> Called<KeyView> {
        let path = utf8_percent_encode(key.as_str(), PATH);
        self.get(&format!("/v1/keys/{path}?{}", consistency.query())).await
    }

    /// `GET /v1/keys`: a page of those that start with `prefix`, after `next` of the page before.
    pub async fn keys(&self, prefix: &str, after: Option<&str>, consistency: Consistency) -> Called<KeyList> {
        let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let after = after.map(|after| format!("&after={}", encode(after))).unwrap_or_default();
        self.get(&format!("/v1/keys?prefix={}{after}&{}", encode(prefix), consistency.query())).await
    }

    /// `GET /v1/watch`: changes after `after`, or from now on, of keys that start with `prefix`.
    pub async fn watch(&self, prefix: &str, after: Option<Revision>) -> Called<Watch> {
        let after = after.map(|after| format!("&after={after}")).unwrap_or_default();
        let path = format!("/v1/watch?prefix={}{after}", utf8_percent_encode(prefix, NON_ALPHANUMERIC));
        match self.connections.stream_of(&path, Instant::now() + self.timeout).await? {
            Ok((connection, body)) => Ok(Reply::Done { status: 200, body: Watch::new(connection, body) }),
            Err(answer) => typed(answer, |_| Err(serde::de::Error::custom("no stream"))),
        }
    }

    /// `POST /v1/validate` with a single check.
    pub async fn validate(&self, key: &Key, token: Token, consistency: Consistency) -> Called<Verdict> {
        let request = ValidateRequest { key: Some(key.clone()), token: Some(token), checks: None };
        self.post(&format!("/v1/validate?{}", consistency.query()), &request).await
    }

    /// `POST /v1/revoke`
    pub async fn revoke(&self, key: &Key, token: Token) -> Called<()> {
        let request = json(&RevokeRequest { key: key.clone(), token });
        nothing(self.send(Method::POST, "/v1/revoke", request, self.timeout).await?)
    }

    /// `POST /v1/batch`
    pub async fn batch(&self, request: &BatchRequest) -> Called<BatchAnswer> {
        self.post("/v1/batch", request).await
    }

    /// `POST /v1/batch` with acquires alone: the result of each, or a failure of the whole.
    pub async fn acquire_batch(&self, requests: Vec<BatchAcquire>) -> Result<Vec<Called<Acquired>>, Failure> {
        #[derive(Deserialize)]
        struct Answers {
            results: Vec<Single>,
        }
        #[derive(Deserialize)]
        struct Single {
            status: u16,
            body: Option<serde_json::Value>,
        }
        let operations = requests.into_iter().map(Operation::Acquire).collect();
        let answers: Answers = match self.post("/v1/batch", &BatchRequest { operations }).await? {
            Reply::Done { body, .. } => body,
            Reply::Refused(problem) => {
                let why = format!("a whole batch was refused: {}: {}", problem.status, problem.detail);
                return Err(Failure::new(Fate::Malformed, why));
            }
        };
        let single = |Single { status, body }: Single| {
            let body = body.as_ref().map(json).unwrap_or_default();
            let answer = RawAnswer { status, headers: Default::default(), body };
            typed(answer, acquired)
        };
        Ok(answers.results.into_iter().map(single).collect())
    }

    /// `GET /v1/cluster`
    pub async fn cluster(&self) -> Called<ClusterStatus> {
        self.get("/v1/cluster").await
    }

    /// `GET /metrics`, as text.
    pub async fn metrics(&self) -> Called<String> {
        let answer = self.send(Method::GET, "/metrics", Bytes::new(), self.timeout).await?;
        typed(answer, |answer| Ok(String::from_utf8_lossy(&answer.body).into_owned()))
    }

    /// The value of one series of `GET /metrics`; `None` where it is not listed.
    pub async fn metric(&self, series: &str) -> Result<Option<f64>, Failure> {
        let answer = self.send(Method::GET, "/metrics", Bytes::new(), self.timeout).await?;
        Ok(metric(&String::from_utf8_lossy(&answer.body), series))
    }

    /// Whether `GET /readyz` says yes.
    pub async fn is_ready(&self) -> bool {
        let answer = self.send(Method::GET, "/readyz", Bytes::new(), self.timeout).await;
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// Any request, with its raw answer.
    pub async fn raw(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Result<RawAnswer, Failure> {
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|error| Failure::new(Fate::NotDone, format!("{method}: {error}")))?;
        self.send(method, path, body.into(), self.timeout).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Called<T> {
        from_json(self.send(Method::GET, path, Bytes::new(), self.timeout).await?)
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Called<T> {
        from_json(self.send(Method::POST, path, json(body), self.timeout).await?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<RawAnswer, Failure> {
        let patience = Instant::now() + self.patience;
        loop {
            let deadline = Instant::now() + within;
            let answer = self.connections.exchange(method.clone(), path, body.clone(), deadline).await;
            if Instant::now() >= patience || answer.as_ref().is_ok_and(|answer| answer.status < 500) {
                return answer;
            }
            sleep(AGAIN).await;
        }
    }
}

impl Consistency {
    fn query(self) -> &'static str {
        match self {
            Self::Linearizable => "consistency=linearizable",
            Self::Local => "consistency=local",
        }
    }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("requests contain nothing that JSON cannot say").into()
}

fn from_json<T: DeserializeOwned>(answer: RawAnswer) -> Called<T> {
    typed(answer, |answer| serde_json::from_slice(&answer.body))
}

fn nothing(answer: RawAnswer) -> Called<()> {
    typed(answer, |_| Ok(()))
}

fn acquired(answer: &RawAnswer) -> serde_json::Result<Acquired> {
    Ok(match answer.status {
        201 => Acquired::Granted(serde_json::from_slice(&answer.body)?),
        200 => Acquired::Standing(serde_json::from_slice(&answer.body)?),
        _ => Acquired::Waiting(serde_json::from_slice(&answer.body)?),
    })
}

/// The value of one series in a Prometheus exposition, named with its labels: `up{job="a"}`.
pub fn metric(exposition: &str, series: &str) -> Option<f64> {
    exposition.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Reads an answer, and classifies its outcome.
fn typed<T>(answer: RawAnswer, read: impl FnOnce(&RawAnswer) -> serde_json::Result<T>) -> Called<T> {
    let status = answer.status;
    let malformed = |error: serde_json::Error| {
        let body = String::from_utf8_lossy(&answer.body);
        Failure::new(Fate::Malformed, format!("{status} with {body:?}: {error}"))
    };
    if status < 300 {
        return Ok(Reply::Done { status, body: read(&answer).map_err(malformed)? });
    }
    let problem = serde_json::from_slice::<Box<Problem>>(&answer.body);
    match problem {
        Ok(problem) if problem.status != status => Err(Failure::new(
            Fate::Malformed,
            format!("a problem of status {} came with status {status}", problem.status),
        )),
        Ok(problem) if status < 500 => Ok(Reply::Refused(problem)),
        Ok(problem) => {
            let fate = if problem.kind == ProblemKind::Unavailable { Fate::NotDone } else { Fate::Unknown };
            Err(Failure { fate, why: format!("{status}: {}", problem.detail), problem: Some(problem) })
        }
        Err(error) if status < 500 => Err(malformed(error)),
        Err(_) => Err(Failure::new(Fate::Unknown, format!("a {status} that is not the node's"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate(status: u16, body: &str) -> Option<Fate> {
        let answer =
            RawAnswer { status, headers: Default::default(), body: Bytes::copy_from_slice(body.as_bytes()) };
        from_json::<u64>(answer).err().map(|failure| failure.fate)
    }

    #[test]
    fn ambiguous_answers_are_not_counted_as_failures() {
        let problem = |kind| serde_json::to_string(&Problem::new(kind, "why")).unwrap();
        assert_eq!(fate(200, "7"), None);
        assert_eq!(fate(409, &problem(ProblemKind::Held)), None);
        assert_eq!(fate(503, &problem(ProblemKind::Unavailable)), Some(Fate::NotDone));
        assert_eq!(fate(504, &problem(ProblemKind::Indeterminate)), Some(Fate::Unknown));
        assert_eq!(fate(503, "a proxy's"), Some(Fate::Unknown));
        assert_eq!(fate(503, &problem(ProblemKind::Indeterminate)), Some(Fate::Malformed));
        assert_eq!(fate(200, "x"), Some(Fate::Malformed));
        assert_eq!(fate(404, "x"), Some(Fate::Malformed));
    }
}
