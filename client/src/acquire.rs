//! One acquire, from the wish to a lease that can be trusted.
//!
//! ```text
//!            ┌─ 202: the place is kept ◀─┐
//!            ▼                           │
//!  new id ─▶ PUT, up to 30 s of waiting ─┼─ 201, 200 ─▶ fresh? ─▶ granted
//!    ▲       ▲        │                  │                └─ no ─▶ renew once ───▶ granted
//!    │       └────────┘ no definite answer: the same PUT elsewhere, for 5 s
//!    └── the id has ended unseen (its connection was lost for long)
//! ```
//! Whoever stood in the queue has reached the cluster: while it is away, such an acquire goes on for the time that it was given.
//! After a PUT without a definite answer the next one waits shortly, so that it soon tells where the lease stands; the
//! place is kept. The first PUT may go along with other calls ([`crate::gather`]): then it does not wait, but takes a place.
//!
//! Whoever stops asking while the lease may be granted, or stand in the queue, has it released: that is what
//! [`Pending`] is for, however the acquire ends, also by being dropped.
//!
//! An answer counts from when *its* PUT was sent. One that waited is too old to begin work on: hence the renewal. A PUT
//! that was given up may still arrive on a closed connection. The cluster then takes back nothing that it has answered to
//! another PUT.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use ringfence_wire::{AcquireRequest, BatchAcquire, EndReason, Grant, LeaseId, Operation, ProblemKind, Wait};
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::call::{ATTEMPT, Attempts, json};
use crate::client::{Shared, granted};
use crate::exchange::{Answer, Call};
use crate::fate::{Doubt, Fate, PATIENCE};
use crate::lifetime::{Lifetime, Moment};
use crate::{Error, Loss};

/// How long one PUT waits: proxies often close what is silent for a minute.
const SLICE: Duration = Duration::from_secs(30);
/// How long the PUT waits that is to tell where the lease stands.
const PROBE: Duration = Duration::from_millis(100);

/// A lease that surely lives.
pub(crate) struct Granted {
    pub(crate) lifetime: Lifetime,
    pub(crate) sent: Moment,
    pub(crate) grant: Grant,
    pub(crate) mirrored: Option<bool>,
}

/// Acquires, waiting for `wait` or for ever.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    wish: AcquireRequest,
    wait: Option<Duration>,
) -> Result<Granted, Error> {
    let (begun, mut has_waited, mut backoff) = (Instant::now(), false, Backoff::default());
    loop {
        let one = One { shared, wish: &wish, begun, wait, lease_id: LeaseId::random() };
        if let Some(granted) = one.acquire(&mut has_waited).await? {
            return Ok(granted);
        }
        if one.left() == Some(Duration::ZERO) {
            match one.is_try() {
                false => return Err(one.timed_out()),
                // It was granted, for less time than it takes to make sure of that.
                true if begun.elapsed() >= PATIENCE => return Err(Error::Lost(Loss::Unconfirmed)),
                true => {}
            }
        }
        sleep(backoff.next()).await;
    }
}

/// An acquire under one id.
struct One<'a> {
    shared: &'a Arc<Shared>,
    wish: &'a AcquireRequest,
    begun: Instant,
    wait: Option<Duration>,
    lease_id: LeaseId,
}

/// What a PUT that was done has come to.
enum Put {
    Granted(Moment, Grant, Option<bool>),
    Waiting,
}

/// What a refusal means.
#[derive(Debug, PartialEq)]
enum Refused {
    Fails(Error),
    /// The time is up.
    TimedOut,
    /// The id has ended without ever having been in use: another one may do.
    Ended,
}

impl One<'_> {
    /// `None` where the id has ended before it was of use. `has_waited` tells whether this acquire stood in the queue.
    async fn acquire(&self, has_waited: &mut bool) -> Result<Option<Granted>, Error> {
        let mut pending = Pending::new(self.shared, self.lease_id);
        let mut attempts = Attempts::new(&self.shared.endpoints);
        let (mut doubt, mut has_place) = (Doubt::default(), false);
        // Since when there was no definite answer, if the last was none.
        let mut unanswered_since: Option<Instant> = None;
        loop {
            let (wait, keep_place) = slice(self.left(), unanswered_since.is_some());
            let put_at = Instant::now();
            let put = self.put(wait, keep_place, !has_place);
            match attempts.attempt(&put, wait + ATTEMPT, read_put).await {
                Fate::Done(Put::Granted(sent, grant, mirrored)) => {
                    if mirrored.is_some() {
                        self.shared.endpoints.wait_for_mirror();
                    }
                    let granted = self.confirmed(sent, grant, mirrored).await?;
                    pending.is_settled = granted.is_some();
                    return Ok(granted);
                }
                Fate::Done(Put::Waiting) if self.left() == Some(Duration::ZERO) => {
                    return Err(self.timed_out());
                }
                Fate::Done(Put::Waiting) => {
                    (unanswered_since, has_place, *has_waited) = (None, true, true);
                }
                Fate::Refused(problem) => {
                    // A PUT that was given up may still be under way to a queue that is free by then.
                    pending.is_settled = !doubt.maybe_done();
                    return match self.refused(*problem) {
                        Refused::Fails(error) => Err(error),
                        Refused::TimedOut => Err(self.timed_out()),
                        Refused::Ended => Ok(None),
                    };
                }
                Fate::NotDone(why) => {
                    unanswered_since.get_or_insert(put_at);
                    doubt.not_done(why);
                }
                Fate::Unknown(why) => {
                    // Whom a node lets wait for longer than it would look for a leader stands in the queue.
                    *has_waited |= put_at.elapsed() > PATIENCE;
                    // What a long wait ended with says nothing of how long nobody answers.
                    unanswered_since.get_or_insert(put_at.max(Instant::now() - ATTEMPT));
                    doubt.unknown(why);
                }
            }
            let goes_on = *has_waited && self.left() != Some(Duration::ZERO);
            if !goes_on && unanswered_since.is_some_and(|since| since.elapsed() >= PATIENCE) {
                if has_place {
                    doubt.may_stand();
                }
                pending.is_settled = !doubt.maybe_done();
                return Err(doubt.into_error(Some(self.lease_id)));
            }
        }
    }

    /// What is not for a place that it has may go along with others; then it does not wait, but takes a place for the next.
    fn put(&self, wait: Duration, keep_place: bool, in_batch: bool) -> Call {
        let wait_ms = u32::try_from(wait.as_millis()).ok().and_then(Wait::from_ms);
        let wait_ms = wait_ms.expect("one PUT waits no longer than 30 s");
        let wish = AcquireRequest { wait_ms, keep_place, ..self.wish.clone() };
        let put = Call::new(Method::PUT, format!("/v1/leases/{}", self.lease_id)).with(&wish);
        if !in_batch {
            return put;
        }
        let AcquireRequest { keys, ttl_ms, holder, metadata, .. } = wish;
        let (lease_id, takes_place) = (self.lease_id, !wait.is_zero());
        let acquire = BatchAcquire { lease_id, keys, ttl_ms, keep_place: takes_place, holder, metadata };
        put.or_in_batch(Operation::Acquire(acquire), wait)
    }

    /// How long it may wait yet; `None` for ever.
    fn left(&self) -> Option<Duration> {
        self.wait.map(|wait| wait.saturating_sub(self.begun.elapsed()))
    }

    fn is_try(&self) -> bool {
        self.wait == Some(Duration::ZERO)
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut { waited: self.wait.unwrap_or_default() }
    }

    /// A grant that is fresh enough to begin with. `None` where it has ended while it was asked for.
    async fn confirmed(
        &self,
        sent: Moment,
        grant: Grant,
        mirrored: Option<bool>,
    ) -> Result<Option<Granted>, Error> {
        let lifetime = lifetime_of(sent, &grant);
        if lifetime.is_fresh(Moment::now()) {
            return Ok(Some(Granted { lifetime, sent, grant, mirrored }));
        }
        match self.shared.renew(self.lease_id, None).await {
            Ok((sent, grant)) => {
                Ok(Some(Granted { lifetime: lifetime_of(sent, &grant), sent, grant, mirrored }))
            }
            Err(Error::Lost(Loss::Ended(EndReason::Expired | EndReason::Abandoned) | Loss::Forgotten)) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn refused(&self, problem: ringfence_wire::Problem) -> Refused {
        let is_over = self.left().is_some_and(|left| left.is_zero());
        match (problem.kind, problem.reason) {
            (ProblemKind::Held, _) if self.is_try() => Refused::Fails(Error::Held {
                holders: problem.holders.unwrap_or_default(),
                waiters: problem.waiters.unwrap_or_default(),
            }),
            // The place is lost: nobody asked for it in time, or this was the last question.
            (ProblemKind::Held | ProblemKind::WaitTimeout, _) if is_over => Refused::TimedOut,
            (ProblemKind::Held | ProblemKind::WaitTimeout, _) => Refused::Ended,
            (ProblemKind::LeaseGone, Some(EndReason::Expired | EndReason::Abandoned))
                if is_over && !self.is_try() =>
            {
                Refused::TimedOut
            }
            (ProblemKind::LeaseGone, Some(EndReason::Expired | EndReason::Abandoned)) => Refused::Ended,
            _ => Refused::Fails(Error::refused(Box::new(problem))),
        }
    }
}

fn lifetime_of(sent: Moment, grant: &Grant) -> Lifetime {
    let ttl = Duration::from_millis(grant.ttl_ms.into());
    Lifetime::new(ttl, sent, Duration::from_millis(grant.expires_in_ms.unwrap_or_default()))
}

/// How long one PUT waits, and whether its place is to be kept when that is over.
fn slice(left: Option<Duration>, in_doubt: bool) -> (Duration, bool) {
    let most = if in_doubt { PROBE } else { SLICE };
    match left {
        // A wait that is over within a millisecond is.
        Some(left) if left < Duration::from_millis(1) => (Duration::ZERO, false),
        Some(left) if left <= most => (left, false),
        _ => (most, true),
    }
}

fn read_put(answer: &Answer) -> serde_json::Result<Put> {
    #[derive(Deserialize)]
    struct Told {
        mirrored: Option<bool>,
    }
    match answer.status {
        StatusCode::CREATED | StatusCode::OK => {
            let ((sent, grant), told) = (granted(answer)?, json::<Told>(answer)?);
            Ok(Put::Granted(sent, grant, told.mirrored))
        }
        StatusCode::ACCEPTED => json::<ringfence_wire::Waiting>(answer).map(|_| Put::Waiting),
        status => Err(serde::de::Error::custom(format!("an acquire is not answered with {status}"))),
    }
}

/// An id under which a lease may be granted, or wait, without anybody to know of it: dropped unless settled, it is
/// released in the background.
struct Pending {
    shared: Arc<Shared>,
    lease_id: LeaseId,
    runtime: Handle,
    is_settled: bool,
}

impl Pending {
    fn new(shared: &Arc<Shared>, lease_id: LeaseId) -> Self {
        Self { shared: Arc::clone(shared), lease_id, runtime: Handle::current(), is_settled: false }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_settled {
            self.shared.release_later(self.lease_id, &self.runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{Blocker, EndReason, Problem};

    use super::*;
    use crate::Client;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_wait_is_cut_into_slices_that_keep_the_place_all_but_the_last() {
        assert_eq!(slice(None, false), (SLICE, true), "for ever");
        assert_eq!(slice(Some(SLICE * 3), false), (SLICE, true));
        assert_eq!(slice(Some(SLICE), false), (SLICE, false));
        assert_eq!(slice(Some(7 * MS), false), (7 * MS, false));
        assert_eq!(slice(Some(Duration::ZERO), false), (Duration::ZERO, false), "a try");
        assert_eq!(slice(None, true), (PROBE, true), "in doubt");
        assert_eq!(slice(Some(SLICE), true), (PROBE, true));
        assert_eq!(slice(Some(7 * MS), true), (7 * MS, false));
    }

    fn refused(wait: Option<Duration>, kind: ProblemKind, reason: Option<EndReason>) -> Refused {
        let client = Client::connect(["http://a:1"]).unwrap();
        let wish = client.lock("a").wish().unwrap();
        let problem = Problem { reason, ..Problem::new(kind, "why") };
        let lease_id = LeaseId::random();
        One { shared: &client.shared, wish: &wish, begun: Instant::now(), wait, lease_id }.refused(problem)
    }

    #[tokio::test]
    async fn a_refusal_ends_an_acquire_or_only_its_id() {
        use EndReason::{Abandoned, Expired, Released, Revoked};
        use ProblemKind::{Held, LeaseGone, LeaseMismatch, Overloaded, WaitTimeout};
        let (a_try, a_while, for_ever) = (Some(Duration::ZERO), Some(Duration::from_secs(600)), None);
        let lost = |reason| Refused::Fails(Error::Lost(Loss::Ended(reason)));
        let held = Error::Held { holders: Vec::<Blocker>::new(), waiters: 0 };
        assert_eq!(refused(a_try, Held, None), Refused::Fails(held));
        for wait in [a_while, for_ever] {
            // The place was lost, but not the time.
            assert_eq!(refused(wait, WaitTimeout, None), Refused::Ended);
            assert_eq!(refused(wait, LeaseGone, Some(Abandoned)), Refused::Ended);
            assert_eq!(refused(wait, LeaseGone, Some(Expired)), Refused::Ended);
        }
        let over = Some(Duration::from_nanos(1));
        assert_eq!(refused(over, WaitTimeout, None), Refused::TimedOut);
        assert_eq!(refused(over, LeaseGone, Some(Expired)), Refused::TimedOut);
        assert_eq!(refused(over, Held, None), Refused::TimedOut);
        for wait in [a_try, a_while, for_ever] {
            assert_eq!(refused(wait, LeaseGone, Some(Revoked)), lost(Revoked));
            assert_eq!(refused(wait, LeaseGone, Some(Released)), lost(Released));
            for kind in [LeaseMismatch, Overloaded] {
                let rejected = refused(wait, kind, None);
                assert!(matches!(rejected, Refused::Fails(Error::Rejected(problem)) if problem.kind == kind));
            }
        }
    }
}
