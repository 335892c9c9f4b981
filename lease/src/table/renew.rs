use ringfence_wire::{LeaseId, PrincipalName, Ttl};

use super::LeaseTable;
use crate::{Outcome, Refusal};

impl LeaseTable {
    /// Never moves the deadline back: a delayed renewal must not cut short a newer, longer one. Who renews has the answer
    /// to its acquire, so no closed connection ends the lease any more, not even that of a later repeat.
    pub(super) fn renew(&mut self, by: Option<&PrincipalName>, id: LeaseId, ttl: Option<Ttl>) -> Outcome {
        let Some((slot, lease)) = self.store.active(by, id) else {
            return Outcome::Refused(self.refusal(by, id));
        };
        if lease.waits() {
            return Outcome::Refused(Refusal::NotGranted);
        }
        self.store.edit(slot, |lease| {
            lease.ttl = ttl.unwrap_or(lease.ttl);
            lease.deadline_ms = lease.deadline_ms.max(self.at_ms.saturating_add(lease.ttl.ms().into()));
            lease.attach(None);
        });
        Outcome::Standing(Box::new(self.grant_of(self.store.get(slot), Some(self.at_ms))))
    }
}
