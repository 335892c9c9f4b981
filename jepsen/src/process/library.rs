//! Calls of the client library, which chooses the node, repeats what may be repeated, and renews leases in the background.
//!
//! A call is recorded as one, however many requests it takes. Of the grant, the time that is left counts from when the call
//! was sent, which is earlier than the library counts from. So the record never promises more than the library does.

use std::time::Duration;

use ringfence_client::{Client, Consistency, Error, Lease, Loss};
use ringfence_laws::history::{Asked, Came};
use ringfence_wire::{Key, LeaseId, ProblemKind};

use super::Process;
use crate::recorder;
use crate::workload::exclusive;

impl Process {
    /// Acquires `key` for this process alone. `None` if the run is over: no call was made.
    pub(crate) async fn lock(&mut self, key: &Key, ttl_ms: u32, wait_ms: u32) -> Option<Result<Lease, Came>> {
        self.go_on_at(self.load.pace.next()).await?;
        let recorder = &self.load.recorder;
        // The library chooses the id, and keeps the place while it asks again.
        let asked = Asked::Acquire {
            lease: LeaseId::random(),
            keys: exclusive(key),
            ttl_ms,
            wait_ms,
            keep_place: wait_ms > 0,
        };
        let id = recorder.begin(self.number, None, asked);
        let [ttl, wait] = [ttl_ms, wait_ms].map(|ms| Duration::from_millis(ms.into()));
        let lock = self.load.library.lock(key.as_str()).ttl(ttl).wait(wait);
        let locked = lock.holder(format!("process {}", self.number)).acquire().await.map_err(came);
        match &locked {
            Ok(lease) => recorder.end_as(id, lease.lease_id(), granted(lease, false)),
            Err(came) => recorder.end(id, came.clone()),
        }
        Some(locked)
    }

    /// Renews a lease, which also renews itself.
    pub(crate) async fn renew(&mut self, lease: &Lease) -> Option<Came> {
        let asked = Asked::Renew { lease: lease.lease_id(), ttl_ms: None };
        self.through(asked, async |_| lease.renew().await.map(|()| granted(lease, true))).await
    }

    /// Asks whether the token of a lease is live.
    pub(crate) async fn validate(&mut self, lease: &Lease, key: &Key) -> Option<Came> {
        let (key, token) = (key.clone(), lease.token());
        let asked = Asked::Validate { key: key.clone(), token, local: false };
        let validate = async |client: &Client| {
            let verdict = client.validate(key.as_str(), token, Consistency::Linearizable).await?;
            Ok(Came::Verdict { verdict })
        };
        self.through(asked, validate).await
    }

    /// Looks at a key.
    pub(crate) async fn look(&mut self, key: &Key) -> Option<Came> {
        let asked = Asked::Key { key: key.clone(), local: false };
        let look = async |client: &Client| {
            Ok(Came::Key { view: client.key(key.as_str(), Consistency::Linearizable).await? })
        };
        self.through(asked, look).await
    }

    /// Releases a lease, even if the run is over: otherwise it would be released without a record.
    pub(crate) async fn release(&mut self, lease: Lease) -> Came {
        let asked = Asked::Release { lease: lease.lease_id() };
        self.record(asked, async |_| lease.release().await.map(|()| Came::Done)).await
    }

    async fn through(
        &mut self,
        asked: Asked,
        call: impl AsyncFnOnce(&Client) -> Result<Came, Error>,
    ) -> Option<Came> {
        self.go_on_at(self.load.pace.next()).await?;
        Some(self.record(asked, call).await)
    }

    async fn record(&self, asked: Asked, call: impl AsyncFnOnce(&Client) -> Result<Came, Error>) -> Came {
        let id = self.load.recorder.begin(self.number, None, asked);
        let came = call(&self.load.library).await.unwrap_or_else(came);
        self.load.recorder.end(id, came.clone());
        came
    }
}

fn granted(lease: &Lease, standing: bool) -> Came {
    Came::Granted { grant: lease.grant(), standing, mirrored: None }
}

fn came(error: Error) -> Came {
    let why = error.to_string();
    match error {
        Error::Held { .. } => Came::Refused { problem: ProblemKind::Held, reason: None },
        Error::TimedOut { .. } => Came::Refused { problem: ProblemKind::WaitTimeout, reason: None },
        Error::Lost(Loss::Ended(reason)) => {
            Came::Refused { problem: ProblemKind::LeaseGone, reason: Some(reason) }
        }
        Error::Lost(Loss::Forgotten) => Came::Refused { problem: ProblemKind::UnknownLease, reason: None },
        Error::Rejected(problem) => recorder::refused(*problem),
        Error::Unavailable { .. } => Came::NotDone { why },
        Error::Invalid(_) => Came::Malformed { why },
        // The cluster may still have a lease of which no renewal was confirmed.
        _ => Came::Unknown { why },
    }
}
