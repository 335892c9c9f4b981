use ringfence_mutant::{Mutant, is};
use ringfence_wire::{LeaseId, Ttl};

use super::LeaseTable;
use crate::{Outcome, Refusal};

impl LeaseTable {
    /// The deadline never comes nearer: a renewal that was delayed on its way must not cut a newer and longer one
    /// short. Whoever renews has the answer to its acquire: no connection that closes later means anything any more, not
    /// even that of a repeat which comes later.
    pub(super) fn renew(&mut self, id: LeaseId, ttl: Option<Ttl>) -> Outcome {
        let Some((slot, lease)) = self.find(id) else {
            return Outcome::Refused(self.refusal(id));
        };
        if lease.waits() {
            return Outcome::Refused(Refusal::NotGranted);
        }
        self.live.remove(slot, &self.leases);
        let lease = self.leases.get_mut(slot);
        lease.ttl = ttl.unwrap_or(lease.ttl);
        let deadline_ms = lease.deadline_ms;
        lease.deadline_ms = lease.deadline_ms.max(self.at_ms.saturating_add(lease.ttl.ms().into()));
        lease.attach(None);
        self.live.insert(slot, &self.leases);
        let grant = self.grant_of(self.leases.get(slot), Some(self.at_ms));
        if is(Mutant::RenewsNothing) {
            self.live.remove(slot, &self.leases);
            self.leases.get_mut(slot).deadline_ms = deadline_ms;
            self.live.insert(slot, &self.leases);
        }
        Outcome::Standing(Box::new(grant))
    }
}
