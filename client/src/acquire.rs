//! One acquire, from the request to a lease that is safe to use.
//!
//! ```text
//!            ┌─ 202: the place is kept ◀─┐
//!            ▼                           │
//!  new id ─▶ PUT, waiting up to 30 s ────┼─ 201, 200 ─▶ fresh? ─▶ granted
//!    ▲       ▲        │                  │                └─ no ─▶ renew once ───▶ granted
//!    │       └────────┘ ambiguous: the same PUT elsewhere, for 5 s
//!    └── the lease ended unused (its connection was lost for long)
//! ```
//! An acquire that was in the queue has reached the cluster, so during an outage it retries until its wait is over.
//! After a PUT without a definite outcome, and at a node that has had none yet, a PUT waits only briefly, to learn the state of
//! the lease soon: a node that lives but finds no leader would otherwise use up all of the time. The first PUT may be
//! [batched](crate::transport::Node); then it does not wait, but enters the queue.
//!
//! Each PUT that waits keeps its place, also the last one: a node that is cut off answers such a PUT early, and refuses the next,
//! which goes to another node then.
//!
//! A [`ReleaseGuard`] releases the lease however the acquire ends, also if it is dropped, as long as the lease may be
//! granted or in the queue.
//!
//! The time of a grant counts from when *its* PUT was sent. After a wait, that is too long ago to begin work, so the
//! client renews once. An abandoned PUT may still arrive on a closed connection. It does not end the grant of another
//! PUT.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use ringfence_wire::{
    AcquireRequest, BatchAcquire, EndReason, LeaseId, Operation, Problem, ProblemKind, Wait, Waiting,
};
use serde::Deserialize;
use serde::de::Error as _;
use tokio::time::{Instant, sleep};

use crate::attempts::{ATTEMPT_TIMEOUT, Attempts, RETRY_FOR, Repeat};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::cluster::Cluster;
use crate::lifetime::{Confirmation, Lifetime};
use crate::outcome::Outcome;
use crate::release::ReleaseGuard;
use crate::transport::{Request, Response};
use crate::{Error, Loss};

/// How long one PUT waits: proxies often close connections that are silent for a minute.
const SLICE: Duration = Duration::from_secs(30);
/// How long a PUT waits after one without a definite outcome, and at a node that has had none yet.
const PROBE: Duration = Duration::from_millis(100);
/// How long an acquire that has timed out waits until it has left the queue. Then that goes on in the background.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// A lease that is fresh enough to begin work.
pub(crate) struct Granted {
    pub(crate) confirmation: Confirmation,
    pub(crate) mirrored: Option<bool>,
    pub(crate) release: ReleaseGuard,
}

/// An acquire, under one id after the other.
pub(crate) struct Acquire<'a> {
    cluster: &'a Arc<Cluster>,
    request: &'a AcquireRequest,
    begun: Instant,
    /// `None`: for ever.
    wait: Option<Duration>,
    /// Whether it stood in the queue.
    has_waited: bool,
}

/// How the cluster answers a PUT.
enum Put {
    Granted(Confirmation, Option<bool>),
    Waiting,
}

/// What ends the use of an id.
#[derive(Debug, PartialEq)]
enum End {
    Failed(Error),
    /// The lease ended unused: another id may do, if time is left.
    Unused,
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(
        cluster: &'a Arc<Cluster>,
        request: &'a AcquireRequest,
        wait: Option<Duration>,
    ) -> Self {
        Self { cluster, request, begun: Instant::now(), wait, has_waited: false }
    }

    pub(crate) async fn run(mut self) -> Result<Granted, Error> {
        let mut backoff = Backoff::default();
        loop {
            match self.acquire(LeaseId::random()).await {
                Ok(granted) => return Ok(granted),
                Err(End::Failed(error)) => return Err(error),
                Err(End::Unused) if self.is_try() => {
                    // It was granted, for less time than it takes to make sure of that.
                    if self.begun.elapsed() >= RETRY_FOR {
                        return Err(Error::Lost(Loss::Unconfirmed));
                    }
                }
                Err(End::Unused) if self.is_over() => return Err(self.timed_out()),
                Err(End::Unused) => {}
            }
            sleep(backoff.next()).await;
        }
    }

    async fn acquire(&mut self, lease_id: LeaseId) -> Result<Granted, End> {
        let mut release = ReleaseGuard::new(self.cluster, lease_id);
        let mut attempts = Attempts::new(&self.cluster.nodes);
        let mut has_place = false;
        // Since when there was no definite outcome, if the last was none.
        let mut unanswered_since: Option<Instant> = None;
        loop {
            let wait = slice(self.left(), unanswered_since.is_some() || !self.cluster.nodes.is_proven());
            let put_at = Instant::now();
            let put = self.put(lease_id, wait, !has_place);
            match attempt(&mut attempts, put, wait).await {
                Outcome::Done(Put::Granted(confirmation, mirrored)) => {
                    if mirrored.is_some() {
                        self.cluster.nodes.grants_wait_for_mirror();
                    }
                    let confirmation = self.freshen(confirmation).await?;
                    return Ok(Granted { confirmation, mirrored, release });
                }
                Outcome::Done(Put::Waiting) if self.is_over() => {
                    // The caller may end now, or ask again: no place may stay behind.
                    let left = self.cluster.release_within(lease_id, LEAVES_WITHIN).await;
                    release.is_armed = left.is_err();
                    return Err(End::Failed(self.timed_out()));
                }
                Outcome::Done(Put::Waiting) => {
                    (unanswered_since, has_place, self.has_waited) = (None, true, true);
                }
                Outcome::Refused(problem) => {
                    // An abandoned PUT may still arrive, and find the key free.
                    release.is_armed = attempts.maybe_done;
                    if problem.kind.is_denial() && (attempts.maybe_done || has_place) {
                        release.is_armed = true;
                        return Err(End::Failed(Error::denied(problem, Some(lease_id))));
                    }
                    return Err(self.refused(*problem));
                }
                Outcome::Limited(problem, after) => {
                    unanswered_since = None;
                    self.bide(problem, after, attempts.maybe_done || has_place, &mut release).await?;
                }
                Outcome::NotDone(_) => {
                    unanswered_since.get_or_insert(put_at);
                }
                Outcome::Ambiguous(_) => {
                    // A node that held the request for longer than it looks for a leader had it in the queue.
                    self.has_waited |= put_at.elapsed() > RETRY_FOR;
                    // How a long wait ended says nothing of how long the cluster has been silent.
                    unanswered_since.get_or_insert(put_at.max(Instant::now() - ATTEMPT_TIMEOUT));
                }
            }
            let retries = self.has_waited && !self.is_over();
            if !retries && (is_long_ago(unanswered_since) || attempts.are_hopeless()) {
                // The place may still stand.
                attempts.maybe_done |= has_place;
                release.is_armed = attempts.maybe_done;
                return Err(End::Failed(attempts.error(Repeat::Harmless(Some(lease_id)))));
            }
        }
    }

    /// A PUT for a new place may be batched. Then it does not wait, but takes a place for the next PUT.
    fn put(&self, lease_id: LeaseId, wait: Duration, may_batch: bool) -> Request {
        let wait_ms = u32::try_from(wait.as_millis()).ok().and_then(Wait::from_ms);
        let wait_ms = wait_ms.expect("a PUT waits at most 30 s");
        // A node that is cut off lets go those whose place is kept.
        let keep_place = !wait.is_zero();
        let body = AcquireRequest { wait_ms, keep_place, ..self.request.clone() };
        let put = Request::new(Method::PUT, format!("/v1/leases/{lease_id}")).with_body(&body);
        if !may_batch {
            return put;
        }
        let AcquireRequest { keys, ttl_ms, holder, metadata, .. } = body;
        let acquire = BatchAcquire { lease_id, keys, ttl_ms, keep_place, holder, metadata };
        put.or_batched(Operation::Acquire(acquire), wait)
    }

    /// How much longer it may wait; `None` for ever.
    fn left(&self) -> Option<Duration> {
        self.wait.map(|wait| wait.saturating_sub(self.begun.elapsed()))
    }

    /// Waits as long as a node asks for, if there is time for that. `maybe_done`: whether there may be something to release.
    async fn bide(
        &self,
        problem: Box<Problem>,
        time: Duration,
        maybe_done: bool,
        release: &mut ReleaseGuard,
    ) -> Result<(), End> {
        release.is_armed = maybe_done;
        let left = match problem.kind {
            // A try, too, is repeated for a while.
            ProblemKind::RateLimited if self.is_try() => Some(RETRY_FOR.saturating_sub(self.begun.elapsed())),
            _ => self.left(),
        };
        if left.is_some_and(|left| left < time) {
            let lease_id = Some(release.lease_id);
            let unknown = |why| Error::Unknown { lease_id, why };
            return Err(End::Failed(match maybe_done {
                true => unknown(problem.detail),
                false => Error::refused(problem),
            }));
        }
        sleep(time).await;
        release.is_armed = true;
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    fn is_try(&self) -> bool {
        self.wait == Some(Duration::ZERO)
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut { waited: self.wait.unwrap_or_default() }
    }

    /// Renews a lease that is not fresh enough to begin work.
    async fn freshen(&self, confirmation: Confirmation) -> Result<Confirmation, End> {
        if Lifetime::new(&confirmation).is_fresh(Moment::now()) {
            return Ok(confirmation);
        }
        self.cluster.renew(confirmation.grant.lease_id, None).await.map_err(|error| match error {
            Error::Lost(Loss::Ended(EndReason::Expired | EndReason::Abandoned) | Loss::Forgotten) => {
                End::Unused
            }
            error => End::Failed(error),
        })
    }

    fn refused(&self, problem: Problem) -> End {
        match (problem.kind, problem.reason) {
            (ProblemKind::Held, _) if self.is_try() => End::Failed(Error::Held {
                holders: problem.holders.unwrap_or_default(),
                waiters: problem.waiters.unwrap_or_default(),
            }),
            // The place is lost: no PUT came for it in time, or this was the last one.
            (ProblemKind::Held | ProblemKind::WaitTimeout, _) if self.is_over() => {
                End::Failed(self.timed_out())
            }
            (ProblemKind::Held | ProblemKind::WaitTimeout, _) => End::Unused,
            (ProblemKind::LeaseGone, Some(EndReason::Expired | EndReason::Abandoned)) => End::Unused,
            _ => End::Failed(Error::refused(Box::new(problem))),
        }
    }
}

async fn attempt(attempts: &mut Attempts<'_>, put: Request, wait: Duration) -> Outcome<Put> {
    let time = wait + ATTEMPT_TIMEOUT;
    match wait.is_zero() {
        true => attempts.attempt(&put, time, read_put).await,
        false => attempts.attempt_to_wait(put, time, read_put).await,
    }
}

/// Whether the cluster has been silent for too long.
fn is_long_ago(unanswered_since: Option<Instant>) -> bool {
    unanswered_since.is_some_and(|since| since.elapsed() >= RETRY_FOR)
}

/// How long one PUT waits. The API counts milliseconds.
fn slice(left: Option<Duration>, is_probe: bool) -> Duration {
    let most = if is_probe { PROBE } else { SLICE };
    let slice = left.map_or(most, |left| left.min(most));
    if slice < Duration::from_millis(1) { Duration::ZERO } else { slice }
}

fn read_put(response: &Response) -> serde_json::Result<Put> {
    #[derive(Deserialize)]
    struct Mirrored {
        mirrored: Option<bool>,
    }
    match response.status {
        StatusCode::CREATED | StatusCode::OK => {
            let Mirrored { mirrored } = response.json()?;
            Ok(Put::Granted(Confirmation::read(response)?, mirrored))
        }
        StatusCode::ACCEPTED => response.json::<Waiting>().map(|_| Put::Waiting),
        status => Err(serde_json::Error::custom(format!("{status} is no response to an acquire"))),
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::Blocker;

    use super::*;
    use crate::Client;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_wait_is_cut_into_slices() {
        assert_eq!(slice(None, false), SLICE, "for ever");
        assert_eq!(slice(Some(SLICE * 3), false), SLICE);
        assert_eq!(slice(Some(7 * MS), false), 7 * MS);
        assert_eq!(slice(Some(MS / 2), false), Duration::ZERO);
        assert_eq!(slice(None, true), PROBE, "a probe");
        assert_eq!(slice(Some(SLICE), true), PROBE);
        assert_eq!(slice(Some(7 * MS), true), 7 * MS);
    }

    fn refused(wait: Option<Duration>, kind: ProblemKind, reason: Option<EndReason>) -> End {
        let client = Client::connect(["http://a:1"]).unwrap();
        let request = client.lock("a").request().unwrap();
        let problem = Problem { reason, ..Problem::new(kind, "why") };
        Acquire::new(&client.cluster, &request, wait).refused(problem)
    }

    #[test]
    fn a_refusal_ends_an_acquire_or_only_its_id() {
        use EndReason::{Abandoned, Expired, Released, Revoked};
        use ProblemKind::{Held, LeaseGone, LeaseMismatch, WaitTimeout};
        let (a_try, a_while, for_ever) = (Some(Duration::ZERO), Some(Duration::from_secs(600)), None);
        let lost = |reason| End::Failed(Error::Lost(Loss::Ended(reason)));
        let held = Error::Held { holders: Vec::<Blocker>::new(), waiters: 0 };
        assert_eq!(refused(a_try, Held, None), End::Failed(held));
        assert_eq!(refused(a_try, LeaseGone, Some(Expired)), End::Unused);
        for wait in [a_while, for_ever] {
            // The place is lost, but time is left.
            assert_eq!(refused(wait, WaitTimeout, None), End::Unused);
            assert_eq!(refused(wait, LeaseGone, Some(Abandoned)), End::Unused);
            assert_eq!(refused(wait, LeaseGone, Some(Expired)), End::Unused);
        }
        let over = Some(Duration::from_nanos(1));
        let timed_out = || End::Failed(Error::TimedOut { waited: Duration::from_nanos(1) });
        assert_eq!(refused(over, LeaseGone, Some(Expired)), End::Unused);
        assert_eq!(refused(over, WaitTimeout, None), timed_out());
        assert_eq!(refused(over, Held, None), timed_out());
        for wait in [a_try, a_while, for_ever] {
            assert_eq!(refused(wait, LeaseGone, Some(Revoked)), lost(Revoked));
            assert_eq!(refused(wait, LeaseGone, Some(Released)), lost(Released));
            let rejected = refused(wait, LeaseMismatch, None);
            assert!(
                matches!(rejected, End::Failed(Error::Rejected(problem)) if problem.kind == LeaseMismatch)
            );
        }
    }
}
