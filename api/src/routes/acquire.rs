//! One acquire: try, or wait in the queue until it is granted, its wait runs out, or it ends.
//!
//! The place in the queue is in the replicated table, and so is the end of the wait. This node is told when it has
//! applied either. It gives up by itself only where the client is owed an answer at a certain time: after `wait_ms`
//! with `keep_place`, or where another PUT keeps the place for longer; when this node is about to stop; or long after the wait should have ended.

use std::time::Duration;

use axum::http::StatusCode;
use ringfence_lease::{Acquire, Command, LeaseState, Outcome, Refusal};
use ringfence_raft::{Settled, Unanswered};
use ringfence_wire::{AcquireRequest, Grant, LeaseId, ProblemKind, Waiting};
use tokio::time::{Instant, sleep_until};

use crate::door::Door;
use crate::measure;
use crate::problems::Failed;
use crate::routes::take_back::TakeBack;

/// The cluster's clock stands still while it has no leader. So long after the wait should have ended, the client is
/// told that this is unknown.
const PATIENCE: Duration = Duration::from_secs(10);

/// How an acquire went well.
pub(crate) enum Acquired {
    /// The lease was granted now.
    Granted(Box<Grant>),
    /// It was granted before.
    Standing(Box<Grant>),
    /// It keeps its place in the queue.
    Waiting(Waiting),
}

/// What an acquire is answered.
pub(crate) struct Acquisition {
    pub(crate) acquired: Acquired,
    /// Whether the grant stands in the mirror; `None` where grants do not wait for that.
    pub(crate) mirrored: Option<bool>,
}

impl Acquired {
    fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Granted(grant) | Self::Standing(grant) => Some(grant),
            Self::Waiting(_) => None,
        }
    }

    /// The status that says so.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Granted(_) => StatusCode::CREATED,
            Self::Standing(_) => StatusCode::OK,
            Self::Waiting(_) => StatusCode::ACCEPTED,
        }
    }
}

/// Acquires for `PUT /v1/leases/{lease_id}` and `POST /v1/leases`. `began` is when the request came; `waited` becomes how
/// long it stood in the queue.
pub(crate) async fn acquire(
    door: &Door,
    lease_id: LeaseId,
    wish: AcquireRequest,
    began: Instant,
    waited: &mut Duration,
) -> Result<Acquisition, Failed> {
    let attachment = door.attachment();
    let wait = Duration::from_millis(wish.wait_ms.ms().into());
    let keep_place = wish.keep_place;
    let command = Command::Acquire(Box::new(Acquire {
        lease_id,
        claims: wish.keys.into_iter().map(|claim| (claim.key, claim.mode)).collect(),
        ttl: wish.ttl_ms,
        wait: wish.wait_ms,
        keep_place,
        holder: wish.holder,
        metadata: wish.metadata,
        attachment,
    }));
    let unless_answered = TakeBack::unless_answered(&door.handle, vec![(lease_id, attachment)]);
    let outcome = door.propose(command).await;
    let keep_place = keep_place || matches!(outcome, Ok(Outcome::Kept(_)));
    let acquired = match outcome {
        Ok(Outcome::Granted(grant)) => Ok(Acquired::Granted(grant)),
        Ok(Outcome::Standing(grant)) => Ok(Acquired::Standing(grant)),
        Ok(Outcome::Waiting(place) | Outcome::Kept(place)) if wait.is_zero() => Ok(Acquired::Waiting(place)),
        Ok(Outcome::Waiting(place) | Outcome::Kept(place)) => {
            let queued = Instant::now();
            let acquired = Waiter { door, place, wait, keep_place, began }.wait_out().await;
            *waited = queued.elapsed().min(wait);
            acquired
        }
        Ok(Outcome::Refused(refusal)) => Err(refusal.into()),
        // No table answers an acquire so.
        Ok(Outcome::Done) => Err(Unanswered::Indeterminate.into()),
        Err(unanswered) => Err(unanswered.into()),
    };
    // The client may go while it waits for the mirror, too.
    let answer = match acquired {
        Ok(acquired) => {
            Ok(Acquisition { mirrored: door.mirrored(acquired.grant().into_iter()).await, acquired })
        }
        Err(failed) => Err(failed),
    };
    unless_answered.answered();
    answer
}

/// A request whose lease stands in the queue.
struct Waiter<'a> {
    door: &'a Door,
    place: Waiting,
    wait: Duration,
    keep_place: bool,
    began: Instant,
}

impl Waiter<'_> {
    async fn wait_out(self) -> Result<Acquired, Failed> {
        let mut lease_wait = self.door.handle.wait_for(self.place.lease_id);
        let give_up_at =
            if self.keep_place { self.began + self.wait } else { Instant::now() + self.wait + PATIENCE };
        let mut draining = self.door.options.draining.clone();
        let settled = tokio::select! {
            biased;
            settled = lease_wait.settled() => settled,
            () = sleep_until(give_up_at) => None,
            Ok(_) = draining.wait_for(|draining| *draining) => None,
        };
        match settled {
            Some(Settled::Granted(grant)) => {
                measure::waited(self.began.elapsed());
                Ok(Acquired::Granted(grant))
            }
            Some(Settled::TimedOut) => Err(Refusal::WaitTimeout.into()),
            Some(Settled::Ended(reason)) => Err(Refusal::Gone(reason).into()),
            None => self.give_up(),
        }
    }

    /// What this node's own table says now. It may lag; the place itself needs no node to look after it.
    fn give_up(self) -> Result<Acquired, Failed> {
        // The lease was not granted yet when the request came: counted from then, what is left of it at any later time
        // of the cluster is not too much.
        match self.door.handle.view(|table| table.lease(self.place.lease_id, Some(table.at_ms()))) {
            Ok(LeaseState::Granted(grant)) => Ok(Acquired::Granted(Box::new(grant))),
            Ok(LeaseState::Waiting(place)) if self.keep_place => Ok(Acquired::Waiting(place)),
            Err(Refusal::Unknown) if self.keep_place => Ok(Acquired::Waiting(self.place)),
            Ok(LeaseState::Waiting(_)) | Err(Refusal::Unknown) => Err(Failed::new(
                ProblemKind::Indeterminate,
                "this node waits no longer, but the lease may yet be granted: repeat the PUT, or DELETE",
            )),
            Err(refusal) => Err(refusal.into()),
        }
    }
}
