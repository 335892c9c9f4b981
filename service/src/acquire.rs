//! One acquire: tries once, or waits in the queue until the lease is granted, its wait runs out, or it ends.
//!
//! At a node that is cut off, nobody begins to wait.

use std::sync::Arc;
use std::time::Duration;

use ringfence_access::KeyRight;
use ringfence_lease::{Acquire, Command, Outcome, Refusal};
use ringfence_wire::{AcquireRequest, Blocker, Key, LeaseId};
use tokio::time::Instant;

use crate::caller::Caller;
use crate::done::Acquired;
use crate::failure::Failure;
use crate::measure;
use crate::mirror::tokens;
use crate::service::Service;
use crate::take_back::Unsent;
use crate::wait::Waiter;

/// An acquire whose client has not been answered yet. If this is dropped, the lease is abandoned.
#[must_use = "an acquire that is not answered is abandoned"]
pub struct Attempt {
    result: Result<Acquired, Failure>,
    waited: Duration,
    unsent: Option<Unsent>,
}

impl Attempt {
    fn failed(failure: Failure) -> Self {
        Self { result: Err(failure), waited: Duration::ZERO, unsent: None }
    }

    /// The client is answered with this result. Also how long it stood in the queue because it asked to.
    pub fn answered(self) -> (Result<Acquired, Failure>, Duration) {
        self.unsent.into_iter().for_each(Unsent::sent);
        (self.result, self.waited)
    }
}

impl Service {
    /// Acquires `lease_id` for `caller`, as `request` says, which arrived at `began`. Calls `lasts` before it waits: in the queue, or
    /// for the mirror.
    pub async fn acquire(
        self: &Arc<Self>,
        caller: &Caller,
        lease_id: LeaseId,
        request: AcquireRequest,
        began: Instant,
        lasts: impl Fn(),
    ) -> Attempt {
        let attempt = self.attempt(caller, lease_id, request, began, lasts).await;
        measure::acquired(attempt.result.as_ref());
        attempt
    }

    async fn attempt(
        self: &Arc<Self>,
        caller: &Caller,
        lease_id: LeaseId,
        request: AcquireRequest,
        began: Instant,
        lasts: impl Fn(),
    ) -> Attempt {
        let attachment = self.attachment();
        let wait = Duration::from_millis(request.wait_ms.ms().into());
        if !wait.is_zero() && self.handle.is_cut_off() {
            return Attempt::failed(Failure::CutOff { disk_hangs: self.handle.disk_hangs() });
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
        let mut unsent = Unsent::new(self, caller);
        let outcome = self.propose_acquire(caller, command, &mut unsent).await;
        let keep_place = keep_place || matches!(outcome, Ok(Outcome::Kept(_)));
        let mut waited = Duration::ZERO;
        let outcome = match outcome {
            Ok(Outcome::Waiting(place) | Outcome::Kept(place)) if !wait.is_zero() => {
                let queued = Instant::now();
                let waiter = Waiter { service: self, caller, place, wait, keep_place, began };
                lasts();
                let allow = |caller: &Caller| caller.allow(KeyRight::Acquire, keys.iter());
                let outcome = tokio::select! {
                    biased;
                    outcome = waiter.wait() => outcome,
                    // What is not sent is taken back.
                    denied = caller.clone().until_denied(allow) => return Attempt::failed(denied),
                };
                // The wait began a moment before this node learned of it.
                let timed_out = matches!(outcome, Ok(Outcome::Refused(Refusal::WaitTimeout)));
                waited = if timed_out { wait } else { queued.elapsed().min(wait) };
                outcome
            }
            outcome => outcome,
        };
        // The client may hang up during this wait, too.
        let mirrored = match (&outcome, self.mirror_timeout) {
            (Ok(Outcome::Granted(grant) | Outcome::Standing(grant)), Some(within)) => {
                lasts();
                Some(self.mirrored(tokens([&**grant]), within).await)
            }
            _ => None,
        };
        let sees_holders = caller.sees_holders(keys.iter());
        let result = outcome.and_then(|outcome| self.acquired(outcome, mirrored, sees_holders));
        Attempt { result, waited, unsent: Some(unsent) }
    }

    /// What an acquire came to. `mirrored`: whether the mirror has the grant; `None` if grants do not wait for it.
    /// `sees_holders`: whether a refusal may name those who hold the keys.
    pub(crate) fn acquired(
        &self,
        outcome: Outcome,
        mirrored: Option<bool>,
        sees_holders: bool,
    ) -> Result<Acquired, Failure> {
        match outcome {
            Outcome::Granted(grant) => Ok(Acquired::Granted { grant, standing: false, mirrored }),
            Outcome::Standing(grant) => Ok(Acquired::Granted { grant, standing: true, mirrored }),
            Outcome::Waiting(place) | Outcome::Kept(place) => Ok(Acquired::Waiting(place)),
            Outcome::Refused(refusal) => {
                let mut failure = Failure::from(refusal);
                match &mut failure {
                    Failure::Held { holders, .. } if !sees_holders => *holders = None,
                    Failure::Held { holders: Some(holders), .. } => self.name_principals(holders),
                    _ => {}
                }
                Err(failure)
            }
            // Not an outcome of an acquire.
            Outcome::Done | Outcome::Changed(_) => Err(Failure::Indeterminate),
        }
    }

    /// Adds to `holders` the principals that they are, as far as this node's table has them.
    fn name_principals(&self, holders: &mut [Blocker]) {
        if holders.is_empty() {
            return;
        }
        // Without the table the refusal names none.
        let _ = self.handle.try_view(|table| {
            for holder in holders {
                holder.by = table.principal_of_holder(&holder.key, holder.token).cloned();
            }
        });
    }
}
