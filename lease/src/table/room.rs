use super::LeaseTable;
use crate::lease::Lease;
use crate::{Owner, Quota, Refusal};

/// What a principal has and may have, and what all principals have and may have together.
pub(super) struct Room {
    quota: Quota,
    leases: usize,
    waiting: usize,
    bytes: u64,
    bytes_of_all: u64,
    max_bytes: u64,
}

impl LeaseTable {
    /// The room for more leases of `owner`.
    pub(super) fn room(&self, owner: Option<&Owner>) -> Room {
        let spaces = self.store.spaces();
        let space = spaces.number_of(owner.map(|owner| &owner.name)).map(|number| spaces.get(number));
        let (leases, waiting, bytes) =
            space.map_or((0, 0, 0), |space| (space.leases(), space.waiting(), space.bytes()));
        let quota = owner.map(|owner| owner.quota).unwrap_or_default();
        let (bytes_of_all, max_bytes) = (self.store.bytes(), self.max_bytes);
        Room { quota, leases, waiting, bytes, bytes_of_all, max_bytes }
    }
}

impl Room {
    /// Takes the room of a new lease. Fails if its owner may not have it, or if the table is full.
    pub(super) fn take(&mut self, lease: &Lease, waits: bool) -> Result<(), Refusal> {
        let Self { quota, leases, waiting, bytes, bytes_of_all, max_bytes } = self;
        let more = lease.bytes(waits);
        if let Some(most) = quota.leases.filter(|most| *leases >= *most as usize) {
            return Err(Refusal::TooManyLeases { most });
        }
        if let Some(most) = quota.waiting.filter(|most| waits && *waiting >= *most as usize) {
            return Err(Refusal::TooManyWaiting { most });
        }
        if let Some(most) = quota.bytes.filter(|most| *bytes + more > *most) {
            return Err(Refusal::TooManyBytes { most });
        }
        if *bytes_of_all + more > *max_bytes {
            return Err(Refusal::Full);
        }
        *leases += 1;
        *waiting += usize::from(waits);
        *bytes += more;
        *bytes_of_all += more;
        Ok(())
    }

    /// Gives back the room of a live lease of the owner.
    pub(super) fn give_back(&mut self, lease: &Lease) {
        let less = lease.bytes(false);
        self.leases -= 1;
        self.bytes -= less;
        self.bytes_of_all -= less;
    }
}
