use ringfence_mutant::{Mutant, is};
use ringfence_wire::{LeaseId, Ttl};

use super::LeaseTable;
use crate::{Outcome, Refusal};

impl LeaseTable {
    /// The deadline never comes nearer: a renewal that was delayed on its way must not cut a newer and longer one
    /// short. Whoever renews has the answer to its acquire: a connection that closes later means nothing any more.
    pub(super) fn renew(&mut self, id: LeaseId, ttl: Option<Ttl>) -> Outcome {
        let Some(&slot) = self.by_id.get(&id) else {
            return Outcome::Refused(self.refusal(id));
        };
        let lease = self.leases.get_mut(slot);
        if lease.wait.is_some() {
            return Outcome::Refused(Refusal::NotGranted);
        }
        self.live.remove(lease);
        lease.ttl = ttl.unwrap_or(lease.ttl);
        let deadline_ms = lease.deadline_ms;
        lease.deadline_ms = lease.deadline_ms.max(self.at_ms.saturating_add(lease.ttl.ms().into()));
        lease.attach(None);
        self.live.insert(lease, slot);
        let grant = self.grant_of(self.leases.get(slot), Some(self.at_ms));
        if is(Mutant::RenewsNothing) {
            let lease = self.leases.get_mut(slot);
            self.live.remove(lease);
            lease.deadline_ms = deadline_ms;
            self.live.insert(lease, slot);
        }
        Outcome::Standing(Box::new(grant))
    }
}
