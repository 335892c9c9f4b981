//! The wait of one request for a lease in the queue.
//!
//! The replicated table has the place in the queue and the end of the wait; applying an entry that changes either
//! notifies the request. It stops waiting on its own only when it has to answer anyway: when this node is stopping, or long
//! after the wait should have ended. If the place is kept, by `keep_place` or by another acquire that waits longer, it also stops
//! after `wait_ms`, and when this node is cut off or its Raft thread hangs.

use std::sync::Arc;
use std::time::Duration;

use ringfence_lease::{LeaseState, LeaseTable, Outcome, Refusal};
use ringfence_raft::Settled;
use ringfence_wire::Waiting;
use tokio::time::{Instant, sleep_until};

use crate::caller::Caller;
use crate::failure::Failure;
use crate::measure;
use crate::service::Service;

/// Cluster time stands still without a leader. This long after the wait should have ended, the answer is indeterminate.
const GRACE: Duration = Duration::from_secs(10);

/// A request whose lease is in the queue.
pub(crate) struct Waiter<'a> {
    pub(crate) service: &'a Service,
    pub(crate) caller: &'a Caller,
    pub(crate) place: Waiting,
    pub(crate) wait: Duration,
    pub(crate) keep_place: bool,
    /// When the request arrived.
    pub(crate) began: Instant,
}

impl Waiter<'_> {
    /// The outcome of the acquire once it waits no longer.
    pub(crate) async fn wait(self) -> Result<Outcome, Failure> {
        let handle = &self.service.handle;
        let Ok(mut lease_wait) = handle.wait_for(self.caller.owner_name().cloned(), self.place.lease_id)
        else {
            return self.keep();
        };
        let give_up_at =
            if self.keep_place { self.began + self.wait } else { Instant::now() + self.wait + GRACE };
        let mut draining = self.service.draining.clone();
        let settled = tokio::select! {
            biased;
            settled = lease_wait.settled() => settled,
            () = sleep_until(give_up_at) => None,
            () = handle.until_cut_off(), if self.keep_place => None,
            () = self.service.until_blocked(), if self.keep_place => return self.keep(),
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
    fn give_up(self) -> Result<Outcome, Failure> {
        let name = self.caller.owner_name();
        // The lease was not granted when the request arrived, so the time left at any later cluster time is not too long for
        // a client that counts from when it sent the request.
        let lease = |table: &LeaseTable| table.lease(name, self.place.lease_id, Some(table.at_ms()));
        let Ok(state) = self.service.handle.try_view(lease) else { return self.keep() };
        match state {
            Ok(LeaseState::Granted(grant)) => Ok(Outcome::Granted(Box::new(grant))),
            Ok(LeaseState::Waiting(place)) if self.keep_place => Ok(Outcome::Waiting(place)),
            Err(Refusal::Unknown) if self.keep_place => Ok(Outcome::Waiting(self.place)),
            Ok(LeaseState::Waiting(_)) | Err(Refusal::Unknown) => Err(Failure::StoppedWaiting),
            Err(refusal) => Ok(Outcome::Refused(refusal)),
        }
    }

    /// Answers without the table: the thread that hangs may have it.
    fn keep(self) -> Result<Outcome, Failure> {
        if self.keep_place { Ok(Outcome::Waiting(self.place)) } else { Err(Failure::StoppedWaiting) }
    }
}
