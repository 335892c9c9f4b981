//! Attempts at one node after another, until an [outcome](crate::outcome) is definite.
//!
//! **Ambiguity is sticky.** If one attempt may have been done, the outcome *not done* of a repeat says nothing about
//! it; only *done* or *refused* resolves it. All attempts of a call together take 5 s, far less than the 60 s after
//! which the cluster may forget an id.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ringfence_wire::LeaseId;
use tokio::time::{Instant, sleep};

use crate::Error;
use crate::backoff::Backoff;
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
        let (node, asked) = self.turn().await;
        let result = self.send(&node, request, time).await;
        self.judge(&node, asked, result, read)
    }

    /// One attempt of what waits in the cluster's queue: it stays open at a node that falls silent, so it keeps its request.
    pub(crate) async fn attempt_to_wait<T>(
        &mut self,
        request: Request,
        time: Duration,
        read: impl FnOnce(&Response) -> serde_json::Result<T>,
    ) -> Outcome<T> {
        let (node, asked) = self.turn().await;
        let result = self.send_to_wait(&node, request, time).await;
        self.judge(&node, asked, result, read)
    }

    /// The node whose turn it is, after the pause that is due.
    async fn turn(&mut self) -> (Arc<Node>, Instant) {
        if self.failed > 0 && self.failed.is_multiple_of(self.nodes.count()) {
            sleep(self.backoff.next().min(self.longest_pause)).await;
        }
        (self.nodes.best(), Instant::now())
    }

    fn judge<T>(
        &mut self,
        node: &Arc<Node>,
        asked: Instant,
        result: Result<Response, Failure>,
        read: impl FnOnce(&Response) -> serde_json::Result<T>,
    ) -> Outcome<T> {
        let silent_since = result.is_err().then_some(asked);
        self.distrust.note(node, &result);
        let [leader, cluster] = match &result {
            Ok(response) => [response.leader.clone(), response.cluster.clone()],
            Err(_) => [None, None],
        };
        let mut outcome = Outcome::of(result, read);
        let is_definite = outcome.is_definite();
        if let Err(stranger) = self.nodes.check_cluster(node, cluster.as_ref(), is_definite) {
            outcome = Outcome::NotDone(stranger);
        }
        match &outcome {
            Outcome::Done(_) | Outcome::Refused(_) | Outcome::Limited(..) => {
                self.nodes.responded(node, leader.as_ref());
            }
            Outcome::NotDone(_) | Outcome::Ambiguous(_) => self.nodes.failed(node, silent_since),
        }
        self.record(&outcome);
        outcome
    }

    /// Whether the request may share one with other calls.
    async fn begin(&mut self, node: &Node, is_once: bool) -> Result<bool, Failure> {
        // Once sent to a node that hangs or that is of another cluster, it could not be sent to another.
        if is_once || !self.nodes.is_met(node) {
            self.nodes.meet(node).await?;
        }
        Ok(!is_once && self.failed == 0 && self.nodes.may_batch())
    }

    async fn send(
        &mut self,
        node: &Arc<Node>,
        request: &Request,
        time: Duration,
    ) -> Result<Response, Failure> {
        let may_batch = self.begin(node, request.is_once).await?;
        if request.is_once {
            return node.server.send(request, time).await;
        }
        tokio::select! {
            biased;
            response = node.ask(request, time, may_batch) => response,
            () = self.nodes.is_silent(node, false) => Err(silent(node)),
        }
    }

    async fn send_to_wait(
        &mut self,
        node: &Arc<Node>,
        request: Request,
        time: Duration,
    ) -> Result<Response, Failure> {
        let may_batch = self.begin(node, false).await?;
        let of_request = Arc::clone(node);
        let mut response: Pending = Box::pin(async move { of_request.ask(&request, time, may_batch).await });
        tokio::select! {
            biased;
            response = &mut response => return response,
            () = self.nodes.is_silent(node, true) => {}
        }
        let open = &mut self.open.0;
        open.truncate(MAX_OPEN - 1);
        open.push_front(response);
        Err(silent(node))
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

fn silent(node: &Node) -> Failure {
    Failure::Broken(format!("{}: it does not answer", node.server))
}

#[cfg(test)]
mod tests {
    use super::*;

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
