//! Calls of the client library, which chooses the node, repeats what may be repeated, and renews leases in the background.
//!
//! A call is recorded as one, however many requests it takes. Of the grant, the time that is left counts from when the call
//! was sent, which is earlier than the library counts from. So the record never promises more than the library does.

use std::time::Duration;

use ringfence_client::{Client, Consistency, Error, Lease, Loss};
use ringfence_laws::history::{Conclusion, Invocation};
use ringfence_wire::{Key, LeaseId, ProblemKind};

use super::Process;
use crate::recorder;
use crate::workload::exclusive;

impl Process {
    /// Acquires `key` for this process alone. `None` if the run is over: no call was made.
    pub(crate) async fn lock(
        &mut self,
        key: &Key,
        ttl_ms: u32,
        wait_ms: u32,
    ) -> Option<Result<Lease, Conclusion>> {
        self.go_on_at(self.load.pace.next()).await?;
        let recorder = &self.load.recorder;
        // The library chooses the id, and keeps the place while it asks again.
        let invocation = Invocation::Acquire {
            lease: LeaseId::random(),
            keys: exclusive(key),
            ttl_ms,
            wait_ms,
            keep_place: wait_ms > 0,
        };
        let id = recorder.begin(self.number, None, invocation);
        let [ttl, wait] = [ttl_ms, wait_ms].map(|ms| Duration::from_millis(ms.into()));
        let lock = self.load.library.lock(key.as_str()).ttl(ttl).wait(wait);
        let locked = lock.holder(format!("process {}", self.number)).acquire().await.map_err(conclusion);
        match &locked {
            Ok(lease) => recorder.end_as(id, lease.lease_id(), granted(lease, false)),
            Err(conclusion) => recorder.end(id, conclusion.clone()),
        }
        Some(locked)
    }

    /// Renews a lease, which also renews itself.
    pub(crate) async fn renew(&mut self, lease: &Lease) -> Option<Conclusion> {
        let invocation = Invocation::Renew { lease: lease.lease_id(), ttl_ms: None };
        self.through(invocation, async |_| lease.renew().await.map(|()| granted(lease, true))).await
    }

    /// Asks whether the token of a lease is live.
    pub(crate) async fn validate(&mut self, lease: &Lease, key: &Key) -> Option<Conclusion> {
        let (key, token) = (key.clone(), lease.token());
        let invocation = Invocation::Validate { key: key.clone(), token, local: false };
        let validate = async |client: &Client| {
            let verdict = client.validate(key.as_str(), token, Consistency::Linearizable).await?;
            Ok(Conclusion::Verdict { verdict })
        };
        self.through(invocation, validate).await
    }

    /// Looks at a key.
    pub(crate) async fn look(&mut self, key: &Key) -> Option<Conclusion> {
        let invocation = Invocation::Key { key: key.clone(), local: false };
        let look = async |client: &Client| {
            Ok(Conclusion::Key { view: client.key(key.as_str(), Consistency::Linearizable).await? })
        };
        self.through(invocation, look).await
    }

    /// Releases a lease, even if the run is over: otherwise it would be released without a record.
    pub(crate) async fn release(&mut self, lease: Lease) -> Conclusion {
        let invocation = Invocation::Release { lease: lease.lease_id() };
        self.record(invocation, async |_| lease.release().await.map(|()| Conclusion::Done)).await
    }

    async fn through(
        &mut self,
        invocation: Invocation,
        call: impl AsyncFnOnce(&Client) -> Result<Conclusion, Error>,
    ) -> Option<Conclusion> {
        self.go_on_at(self.load.pace.next()).await?;
        Some(self.record(invocation, call).await)
    }

    async fn record(
        &self,
        invocation: Invocation,
        call: impl AsyncFnOnce(&Client) -> Result<Conclusion, Error>,
    ) -> Conclusion {
        let id = self.load.recorder.begin(self.number, None, invocation);
        let conclusion = call(&self.load.library).await.unwrap_or_else(conclusion);
        self.load.recorder.end(id, conclusion.clone());
        conclusion
    }
}

fn granted(lease: &Lease, standing: bool) -> Conclusion {
    Conclusion::Granted { grant: lease.grant(), standing, mirrored: None }
}

fn conclusion(error: Error) -> Conclusion {
    let why = error.to_string();
    match error {
        Error::Held { .. } => Conclusion::Refused { problem: ProblemKind::Held, reason: None },
        Error::TimedOut { .. } => Conclusion::Refused { problem: ProblemKind::WaitTimeout, reason: None },
        Error::Lost(Loss::Ended(reason)) => {
            Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: Some(reason) }
        }
        Error::Lost(Loss::Forgotten) => {
            Conclusion::Refused { problem: ProblemKind::UnknownLease, reason: None }
        }
        Error::Rejected(problem) => recorder::refused(*problem),
        Error::Unavailable { .. } => Conclusion::NotDone { why },
        Error::Invalid(_) => Conclusion::Malformed { why },
        // The cluster may still have a lease of which no renewal was confirmed.
        _ => Conclusion::Unknown { why },
    }
}
