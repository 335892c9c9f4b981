use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ringfence_lease::{Attachment, Command, Request};
use ringfence_wire::LeaseId;
use tokio::time::sleep;

use crate::caller::Caller;
use crate::service::Service;

/// How long after a lost response a grant is taken back.
const AFTER: Duration = Duration::from_secs(2);
/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Grants that the client does not know yet. If this is dropped, they are taken back 2 s later, unless the client learns of them before.
///
/// Here the node chose the lease ids, so a client that gets an error, or no answer, cannot repeat its request to get the same grant. So unlike
/// an acquire whose id the client chose, these grants are taken back after an error, too, in as many attempts as it takes.
#[must_use = "grants that are not sent are taken back"]
pub struct Unsent {
    service: Arc<Service>,
    caller: Caller,
    grants: Vec<(LeaseId, Attachment)>,
}

impl Unsent {
    /// `None` without any grants.
    pub(crate) fn new(
        service: &Arc<Service>,
        caller: &Caller,
        grants: Vec<(LeaseId, Attachment)>,
    ) -> Option<Self> {
        let has_any = !grants.is_empty();
        has_any.then(|| Self { service: Arc::clone(service), caller: caller.clone(), grants })
    }

    /// Keeps the grants: the response was sent, or there are none.
    pub fn sent(mut self) {
        self.grants.drain(..).for_each(|(lease_id, _)| self.service.is_sent(lease_id));
    }

    /// The leases.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.grants.iter().map(|(lease_id, _)| *lease_id)
    }
}

impl fmt::Debug for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unsent").field(&self.grants).finish()
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if self.grants.is_empty() {
            return;
        }
        let take_back = |(lease_id, attachment)| Command::TakeBack { lease_id, attachment };
        let commands = self.grants.drain(..).map(take_back).collect();
        let request = Request { by: self.caller.owner(), commands };
        let (service, caller) = (Arc::clone(&self.service), self.caller.clone());
        tokio::spawn(async move { service.take_back(&caller, request).await });
    }
}

impl Service {
    /// Takes grants back, and tries again until there is an outcome. If too many such requests of the caller are being tried again, it gives
    /// up, and the grants end with their time-to-live.
    async fn take_back(self: Arc<Self>, caller: &Caller, request: Request) {
        let (mut pause, mut place) = (AFTER, None);
        loop {
            sleep(pause).await;
            if self.handle.insist(caller.asker(), request.clone()).await.is_ok() {
                return;
            }
            place = place.or_else(|| self.repeat_place(caller));
            if place.is_none() {
                return;
            }
            pause = (2 * pause).min(MAX_PAUSE);
        }
    }
}
