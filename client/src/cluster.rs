//! Calls to the cluster: attempts at one node after another, until an [outcome](crate::outcome) is definite.
//!
//! **Ambiguity is sticky.** If one attempt may have been done, the outcome *not done* of a repeat says nothing about
//! it; only *done* or *refused* resolves it. All attempts of a call together take 5 s, far less than the 60 s after
//! which the cluster may forget an id.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use ringfence_wire::{BatchRelease, LeaseId, Operation, RenewRequest, Ttl};
use serde::de::{DeserializeOwned, Error as _};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::Error;
use crate::backoff::Backoff;
use crate::lifetime::Confirmation;
use crate::outcome::Outcome;
use crate::transport::{Distrust, Failure, Node, Nodes, Request, Response};

/// How long a call is repeated without a definite outcome.
pub(crate) const RETRY_FOR: Duration = Duration::from_secs(5);
/// How long one node may take if another can be asked. An election takes about a second, but a node gives up only after 5 s.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a call that is not repeatable may take: as long as a membership change may. Given up, its outcome is unknown.
const ONCE_TIMEOUT: Duration = Duration::from_secs(60);
/// How many requests stay open at nodes that fell silent.
const MAX_OPEN: usize = 4;
/// How long a release is repeated in the background.
pub(crate) const RELEASE_FOR: Duration = Duration::from_secs(30);

/// The cluster, as the client and its leases share it.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Nodes,
    /// Each release in the background holds a receiver.
    releases: watch::Sender<()>,
}

/// What repeating a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The call only reads: its failure changes nothing.
    Reads,
    /// A repeat does nothing more. With the lease that the call is about.
    Harmless(Option<LeaseId>),
    /// The call is repeated only while it is certainly not done.
    Harmful,
}

/// The attempts of one call, each at the node that is best at the time. When all nodes have had their turn, a pause follows.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    nodes: &'a Nodes,
    begun: Instant,
    failed: usize,
    backoff: Backoff,
    pub(crate) longest_pause: Duration,
    /// Whether an attempt may have been done.
    pub(crate) maybe_done: bool,
    last_failure: String,
    distrust: Distrust,
    /// Requests at nodes that fell silent. The cluster takes a place away 2 s after the connection of its request closed: these stay
    /// open until another node has answered a repeat.
    open: Open,
}

/// Requests that nobody reads the responses to.
#[derive(Default)]
struct Open(VecDeque<Pending>);

/// A request that was sent.
type Pending = Pin<Box<dyn Future<Output = Result<Response, Failure>> + Send>>;

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} open requests", self.0.len())
    }
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(nodes: &'a Nodes) -> Self {
        Self {
            nodes,
            begun: Instant::now(),
            failed: 0,
            backoff: Backoff::default(),
            longest_pause: Duration::MAX,
            maybe_done: false,
            last_failure: String::new(),
            distrust: Distrust::new(),
            open: Open::default(),
        }
    }

    /// Whether no further attempt can help, as long as the files of both sides stay as they are.
    pub(crate) fn are_hopeless(&self) -> bool {
        self.distrust.is_of_all(self.nodes)
    }

    /// One attempt. The first may share a request with other calls.
    pub(crate) async fn attempt<T>(
        &mut self,
        request: &Request,
        time: Duration,
        read: impl FnOnce(&Response) -> serde_json::Result<T>,
    ) -> Outcome<T> {
        if self.failed > 0 && self.failed.is_multiple_of(self.nodes.count()) {
            sleep(self.backoff.next().min(self.longest_pause)).await;
        }
        let node = self.nodes.best();
        let asked = Instant::now();
        let result = self.send(&node, request, time).await;
        let silent_since = result.is_err().then_some(asked);
        self.distrust.note(&node, &result);
        let [leader, cluster] = match &result {
            Ok(response) => [response.leader.clone(), response.cluster.clone()],
            Err(_) => [None, None],
        };
        let mut outcome = Outcome::of(result, read);
        let is_definite = outcome.is_definite();
        if let Err(stranger) = self.nodes.check_cluster(&node, cluster.as_ref(), is_definite) {
            outcome = Outcome::NotDone(stranger);
        }
        match &outcome {
            Outcome::Done(_) | Outcome::Refused(_) | Outcome::Limited(..) => {
                self.nodes.responded(&node, leader.as_ref());
            }
            Outcome::NotDone(_) | Outcome::Ambiguous(_) => self.nodes.failed(&node, silent_since),
        }
        self.record(&outcome);
        outcome
    }

    async fn send(
        &mut self,
        node: &Arc<Node>,
        request: &Request,
        time: Duration,
    ) -> Result<Response, Failure> {
        // Once sent to a node that hangs or that is of another cluster, it could not be sent to another.
        if request.is_once || !self.nodes.is_met(node) {
            self.nodes.meet(node).await?;
        }
        if request.is_once {
            return node.server.send(request, time).await;
        }
        let may_batch = self.failed == 0 && self.nodes.may_batch();
        let (of_request, sent) = (Arc::clone(node), request.clone());
        let mut response = Box::pin(async move {
            match may_batch {
                true => of_request.send_or_batch(&sent, time).await,
                false => of_request.server.send(&sent, time).await,
            }
        });
        tokio::select! {
            biased;
            response = &mut response => return response,
            () = self.nodes.is_silent(node, request.waits) => {}
        }
        if request.waits {
            let open = &mut self.open.0;
            open.truncate(MAX_OPEN - 1);
            open.push_front(response);
        }
        Err(Failure::Broken(format!("{}: it does not answer", node.server)))
    }

    fn record<T>(&mut self, outcome: &Outcome<T>) {
        match outcome {
            Outcome::Done(_) | Outcome::Refused(_) | Outcome::Limited(..) => {
                self.failed = 0;
                self.backoff.reset();
                if !matches!(outcome, Outcome::Limited(..)) {
                    self.open.0.clear();
                }
            }
            Outcome::NotDone(why) | Outcome::Ambiguous(why) => {
                self.failed += 1;
                self.maybe_done |= matches!(outcome, Outcome::Ambiguous(_));
                self.last_failure.clone_from(why);
            }
        }
    }

    /// Attempts until the outcome is definite, or `retry_for` is over, or no attempt can help. What is about a lease that may be held
    /// goes on: certificates may be replaced while it is.
    pub(crate) async fn call<T>(
        &mut self,
        request: &Request,
        repeat: Repeat,
        retry_for: Duration,
        read: impl Fn(&Response) -> serde_json::Result<T>,
    ) -> Result<T, Error> {
        // The time for that is not taken from the attempts.
        self.nodes.resolve().await;
        self.begun = Instant::now();
        loop {
            let left = retry_for.saturating_sub(self.begun.elapsed()).max(Duration::from_millis(100));
            let time = match repeat {
                Repeat::Harmful => ONCE_TIMEOUT,
                _ if self.nodes.has_another() => left.min(ATTEMPT_TIMEOUT),
                _ => left.min(RETRY_FOR),
            };
            match self.attempt(request, time, &read).await {
                Outcome::Done(value) => return Ok(value),
                Outcome::Refused(problem) => {
                    return Err(match repeat {
                        Repeat::Harmless(lease_id) if self.maybe_done => Error::denied(problem, lease_id),
                        Repeat::Harmful if self.maybe_done => Error::denied(problem, None),
                        _ => Error::refused(problem),
                    });
                }
                Outcome::Limited(problem, after) => {
                    if self.begun.elapsed() + after > retry_for {
                        return Err(match repeat {
                            Repeat::Harmless(lease_id) if self.maybe_done => {
                                Error::Unknown { lease_id, why: problem.detail }
                            }
                            _ => Error::refused(problem),
                        });
                    }
                    sleep(after).await;
                    continue;
                }
                Outcome::NotDone(_) | Outcome::Ambiguous(_) => {}
            }
            let is_of_holder = matches!(repeat, Repeat::Harmless(Some(_)));
            if self.begun.elapsed() >= retry_for
                || (self.maybe_done && repeat == Repeat::Harmful)
                || (self.are_hopeless() && !is_of_holder)
            {
                return Err(self.error(repeat));
            }
        }
    }

    /// The error of a call without a definite outcome.
    pub(crate) fn error(&self, repeat: Repeat) -> Error {
        let why = self.last_failure.clone();
        match repeat {
            Repeat::Harmless(lease_id) if self.maybe_done => Error::Unknown { lease_id, why },
            Repeat::Harmful if self.maybe_done => Error::Unknown { lease_id: None, why },
            _ => Error::Unavailable { why },
        }
    }
}

impl Cluster {
    pub(crate) fn new(nodes: Nodes) -> Self {
        Self { nodes, releases: watch::Sender::default() }
    }

    pub(crate) async fn call<T>(
        &self,
        request: &Request,
        repeat: Repeat,
        read: impl Fn(&Response) -> serde_json::Result<T>,
    ) -> Result<T, Error> {
        Attempts::new(&self.nodes).call(request, repeat, RETRY_FOR, read).await
    }

    /// Calls something that only reads.
    pub(crate) async fn read<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Error> {
        self.call(request, Repeat::Reads, Response::json).await
    }

    pub(crate) async fn renew(&self, lease_id: LeaseId, ttl_ms: Option<Ttl>) -> Result<Confirmation, Error> {
        self.renew_within(lease_id, ttl_ms, RETRY_FOR).await
    }

    pub(crate) async fn renew_within(
        &self,
        lease_id: LeaseId,
        ttl_ms: Option<Ttl>,
        retry_for: Duration,
    ) -> Result<Confirmation, Error> {
        let request = Request::post(format!("/v1/leases/{lease_id}/renew"), &RenewRequest { ttl_ms });
        let repeat = Repeat::Harmless(Some(lease_id));
        Attempts::new(&self.nodes).call(&request, repeat, retry_for, Confirmation::read).await
    }

    pub(crate) async fn release(&self, lease_id: LeaseId) -> Result<(), Error> {
        self.release_within(lease_id, RETRY_FOR).await
    }

    /// Releases on `runtime`, best effort.
    pub(crate) fn release_in_background(self: &Arc<Self>, lease_id: LeaseId, runtime: &Handle) {
        let cluster = Arc::clone(self);
        let counted = self.count_release();
        drop(runtime.spawn(async move {
            // Nobody is left to tell.
            let _ = cluster.release_within(lease_id, RELEASE_FOR).await;
            drop(counted);
        }));
    }

    /// Counts a release in the background until this is dropped. A runtime that has ended drops it with the task.
    pub(crate) fn count_release(&self) -> watch::Receiver<()> {
        self.releases.subscribe()
    }

    /// Waits until no release is left in the background.
    pub(crate) async fn settled(&self) {
        self.releases.closed().await;
    }

    pub(crate) async fn release_within(&self, lease_id: LeaseId, time: Duration) -> Result<(), Error> {
        let request = Request::new(Method::DELETE, format!("/v1/leases/{lease_id}"))
            .or_batched(Operation::Release(BatchRelease { lease_id }), Duration::ZERO);
        let repeat = Repeat::Harmless(Some(lease_id));
        Attempts::new(&self.nodes).call(&request, repeat, time, no_content).await
    }
}

/// Reads a response without a body.
pub(crate) fn no_content(response: &Response) -> serde_json::Result<()> {
    match response.status {
        StatusCode::NO_CONTENT => Ok(()),
        status => Err(serde_json::Error::custom(format!("expected 204, not {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{Problem, ProblemKind};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::runtime::{Builder, Runtime};
    use tokio::time::timeout;

    use super::*;
    use crate::Client;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_release_on_a_runtime_that_has_ended_is_not_waited_for() {
        let cluster =
            Arc::new(Cluster::new(Nodes::parse(["http://127.0.0.1:1"], &crate::Tls::default()).unwrap()));
        let ended = runtime();
        let handle = ended.handle().clone();
        drop(ended);
        cluster.release_in_background(LeaseId::random(), &handle);
        let settled = runtime().block_on(async { timeout(Duration::from_secs(60), cluster.settled()).await });
        assert!(settled.is_ok());
    }

    /// Breaks the first connection, and denies what the others ask.
    async fn denies_after_a_break() -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let problem = Problem::new(ProblemKind::Forbidden, "the right is lost");
            let body = serde_json::to_string(&problem).unwrap();
            let denial = format!("HTTP/1.1 403 Forbidden\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            for answer in std::iter::once(String::new()).chain(std::iter::repeat(denial)) {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 4_096]).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Client::connect([url]).unwrap()
    }

    #[tokio::test]
    async fn a_denial_says_nothing_of_attempts_that_may_have_been_done() {
        let lease_id = LeaseId::random();
        let released = denies_after_a_break().await.release(lease_id).await;
        let why = "the right is lost".to_owned();
        assert_eq!(released, Err(Error::Unknown { lease_id: Some(lease_id), why }));
        let acquired = denies_after_a_break().await.lock("a").acquire().await;
        assert!(matches!(acquired, Err(Error::Unknown { .. })), "{acquired:?}");
        let read = denies_after_a_break().await.cluster().await;
        assert!(matches!(read, Err(Error::Rejected(_))), "{read:?}");
    }

    #[test]
    fn ambiguity_outlasts_an_attempt_that_was_not_done() {
        let nodes = Nodes::parse(["http://127.0.0.1:1"], &crate::Tls::default()).unwrap();
        let lease_id = LeaseId::from_u128(7);
        let why = || "no leader".to_owned();
        let mut attempts = Attempts::new(&nodes);
        attempts.record::<()>(&Outcome::NotDone(why()));
        assert_eq!(attempts.error(Repeat::Harmless(lease_id)), Error::Unavailable { why: why() });
        assert_eq!(attempts.error(Repeat::Harmful), Error::Unavailable { why: why() });
        attempts.record::<()>(&Outcome::Ambiguous("no answer".to_owned()));
        attempts.record::<()>(&Outcome::NotDone(why()));
        assert_eq!(attempts.error(Repeat::Harmless(lease_id)), Error::Unknown { lease_id, why: why() });
        assert_eq!(attempts.error(Repeat::Harmful), Error::Unknown { lease_id: None, why: why() });
        assert_eq!(attempts.error(Repeat::Reads), Error::Unavailable { why: why() });
    }
}
