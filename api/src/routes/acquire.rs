//! One acquire: tries once, or waits in the queue until the lease is granted, its wait runs out, or it ends.
//!
//! The replicated table has the place in the queue and the end of the wait; applying an entry that changes either
//! notifies this handler. It stops waiting on its own only when it has to respond anyway: when this node is stopping, or long
//! after the wait should have ended. If the place is kept, by `keep_place` or by another PUT that waits longer, it also stops
//! after `wait_ms`, and when this node is cut off.
//!
//! At a node that is cut off, nobody begins to wait.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_access::KeyRight;
use ringfence_http::Connection;
use ringfence_lease::{Acquire, Command, LeaseState, Outcome, Refusal};
use ringfence_raft::Settled;
use ringfence_wire::{AcquireRequest, BatchBody, Key, LeaseId, ProblemKind, Waiting};
use tokio::time::{Instant, sleep_until};

use super::abandon::AbandonGuard;
use super::outcome;
use crate::door::access::Caller;
use crate::door::{Answer, Door, Request};
use crate::measure;
use crate::problems::Failed;
use crate::request::query::Query;
use crate::request::{body, path};
use crate::request_log::Waited;
use crate::response::json;

/// Cluster time stands still without a leader. This long after the wait should have ended, the response is `indeterminate`.
const GRACE: Duration = Duration::from_secs(10);

/// `PUT /v1/leases/{lease_id}`
pub(crate) async fn put(door: &Door, caller: &Caller, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    answer_acquire(door, caller, lease_id, request).await
}

/// `POST /v1/leases`
pub(crate) async fn post(door: &Door, caller: &Caller, request: Request) -> Answer {
    answer_acquire(door, caller, LeaseId::random(), request).await
}

async fn answer_acquire(door: &Door, caller: &Caller, lease_id: LeaseId, request: Request) -> Answer {
    let mut waited = Duration::ZERO;
    let answer = try_acquire(door, caller, lease_id, request, &mut waited).await;
    let mut response = answer.unwrap_or_else(|failed| failed.of_lease(lease_id).into_response());
    if !waited.is_zero() {
        response.extensions_mut().insert(Waited(waited));
    }
    Ok(response)
}

async fn try_acquire(
    door: &Door,
    caller: &Caller,
    lease_id: LeaseId,
    request: Request,
    waited: &mut Duration,
) -> Answer {
    let began = Instant::now();
    Query::none(request.uri())?;
    let connection = Arc::clone(request.body().connection());
    let request = body::read(door, caller, request, AcquireRequest::check).await?;
    let acquired = acquire(door, caller, lease_id, request, &connection, began, waited).await;
    measure::acquired(acquired.as_ref().map(|(status, _)| *status));
    let (status, body) = acquired?;
    Ok(json(status, &body))
}

/// Acquires `lease_id` as `request` says, which arrived on `connection` at `began`. Sets `waited` to the time in the queue.
async fn acquire(
    door: &Door,
    caller: &Caller,
    lease_id: LeaseId,
    request: AcquireRequest,
    connection: &Arc<Connection>,
    began: Instant,
    waited: &mut Duration,
) -> Result<(StatusCode, BatchBody), Failed> {
    let attachment = door.attachment();
    let wait = Duration::from_millis(request.wait_ms.ms().into());
    if !wait.is_zero() && door.cluster().is_cut_off() {
        let detail = "this node may learn late of a grant: it does not keep up with a leader, or its disk hangs. Wait at another node";
        return Err(Failed::new(ProblemKind::Unavailable, detail));
    }
    let keep_place = request.keep_place;
    let keys: Vec<Key> = request.keys.iter().map(|claim| claim.key.clone()).collect();
    let command = Command::Acquire(Box::new(Acquire {
        lease_id,
        claims: request.keys.into_iter().map(|claim| (claim.key, claim.mode)).collect(),
        ttl: request.ttl_ms,
        wait: request.wait_ms,
        keep_place,
        holder: request.holder,
        metadata: request.metadata,
        attachment,
    }));
    let guard = AbandonGuard::new(door, caller, vec![(lease_id, attachment)]);
    let outcome = door.propose(caller, command).await;
    let keep_place = keep_place || matches!(outcome, Ok(Outcome::Kept(_)));
    let outcome = match outcome {
        Ok(Outcome::Waiting(place) | Outcome::Kept(place)) if !wait.is_zero() => {
            let queued = Instant::now();
            let waiter = Waiter { door, caller, place, wait, keep_place, began };
            connection.lasts();
            let allow = |caller: &Caller| caller.allow(KeyRight::Acquire, keys.iter());
            let outcome = tokio::select! {
                outcome = waiter.wait() => outcome,
                // The guard takes the acquire back.
                denied = caller.clone().until_denied(allow) => return Err(denied),
            };
            // The wait began a moment before this node learned of it.
            let timed_out = matches!(outcome, Ok(Outcome::Refused(Refusal::WaitTimeout)));
            *waited = if timed_out { wait } else { queued.elapsed().min(wait) };
            outcome
        }
        outcome => outcome,
    };
    // The client may hang up during this wait, too.
    let mirrored = match (&outcome, door.mirror_timeout()) {
        (Ok(Outcome::Granted(grant) | Outcome::Standing(grant)), Some(within)) => {
            connection.lasts();
            Some(door.mirrored(std::iter::once(&**grant), within).await)
        }
        _ => None,
    };
    guard.answered();
    let sees_holders = caller.sees_holders(keys.iter());
    outcome::acquired(door, outcome?, mirrored, sees_holders)
}

/// A request whose lease is in the queue.
struct Waiter<'a> {
    door: &'a Door,
    caller: &'a Caller,
    place: Waiting,
    wait: Duration,
    keep_place: bool,
    began: Instant,
}

impl Waiter<'_> {
    async fn wait(self) -> Result<Outcome, Failed> {
        let mut lease_wait = self.door.wait_for(self.caller, self.place.lease_id);
        let give_up_at =
            if self.keep_place { self.began + self.wait } else { Instant::now() + self.wait + GRACE };
        let mut draining = self.door.options.draining.clone();
        let settled = tokio::select! {
            biased;
            settled = lease_wait.settled() => settled,
            () = sleep_until(give_up_at) => None,
            () = self.door.cluster().until_cut_off(), if self.keep_place => None,
            Ok(_) = draining.wait_for(|draining| *draining) => None,
        };
        match settled {
            Some(Settled::Granted(grant)) => {
                measure::waited(self.began.elapsed());
                Ok(Outcome::Granted(Box::new(Arc::unwrap_or_clone(grant))))
            }
            Some(Settled::TimedOut) => Ok(Outcome::Refused(Refusal::WaitTimeout)),
            Some(Settled::Ended(reason)) => Ok(Outcome::Refused(Refusal::Gone(reason))),
            None => self.give_up(),
        }
    }

    /// Answers from this node's table, which may lag. The place in the queue needs no node to look after it.
    fn give_up(self) -> Result<Outcome, Failed> {
        // The lease was not granted when the request arrived, so the time left at any later cluster time is not too long for
        // a client that counts from when it sent the request.
        match self.door.proposed(self.caller, self.place.lease_id) {
            Ok(LeaseState::Granted(grant)) => Ok(Outcome::Granted(Box::new(grant))),
            Ok(LeaseState::Waiting(place)) if self.keep_place => Ok(Outcome::Waiting(place)),
            Err(Refusal::Unknown) if self.keep_place => Ok(Outcome::Waiting(self.place)),
            Ok(LeaseState::Waiting(_)) | Err(Refusal::Unknown) => Err(Failed::new(
                ProblemKind::Indeterminate,
                "this node stopped waiting, but the lease may still be granted: repeat the PUT, or DELETE",
            )),
            Err(refusal) => Ok(Outcome::Refused(refusal)),
        }
    }
}
