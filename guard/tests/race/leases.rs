//! The leases of the race: of a real table, on one key, on a manual clock.

use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard};

use ringfence_guard::Claim;
use ringfence_lease::{Acquire, Attachment, Command, LeaseState, LeaseTable, Outcome};
use ringfence_wire::{Grant, Key, LeaseId, MAX_WAIT_MS, Metadata, Mode, Ttl, Wait};

#[derive(Debug)]
pub(crate) struct Leases {
    key: Key,
    table: Mutex<LeaseTable>,
}

/// A lease, as its holder sees it.
#[derive(Debug)]
pub(crate) struct Lease {
    id: LeaseId,
    pub(crate) mode: Mode,
    pub(crate) claim: Claim,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self { key: "raced/for".parse().unwrap(), table: Mutex::new(LeaseTable::new()) }
    }

    /// Waits in the queue for a lease. Time passes meanwhile. `None` if the race has ended.
    pub(crate) fn acquire(&self, mode: Mode, ttl_ms: u32, wanted: impl Fn() -> bool) -> Option<Lease> {
        let id = LeaseId::random();
        let acquire = Command::Acquire(Box::new(Acquire {
            lease_id: id,
            claims: vec![(self.key.clone(), mode)],
            ttl: Ttl::from_ms(ttl_ms).unwrap(),
            wait: Wait::from_ms(MAX_WAIT_MS).unwrap(),
            keep_place: false,
            holder: None,
            metadata: Metadata::default(),
            attachment: Attachment(0),
        }));
        self.apply(acquire);
        while wanted() {
            // It has waited too long where this is an error.
            if let LeaseState::Granted(grant) = self.table().lease(None, id, None).ok()? {
                return Some(Lease { id, mode, claim: claim(&grant) });
            }
            std::thread::yield_now();
            self.pass(1);
        }
        None
    }

    /// Renews the lease, unless it has ended; updates the fence.
    pub(crate) fn renew(&self, lease: &mut Lease) {
        if let Outcome::Standing(grant) = self.apply(Command::Renew { lease_id: lease.id, ttl: None }) {
            lease.claim = claim(&grant);
        }
    }

    pub(crate) fn release(&self, lease: &Lease) {
        self.apply(Command::Release { lease_id: lease.id });
    }

    /// Advances the clock until the lease has expired.
    pub(crate) fn outlast(&self, lease: &Lease) {
        while self.is_live(lease) {
            self.pass(100);
        }
    }

    /// Whether it has not ended yet.
    pub(crate) fn is_live(&self, lease: &Lease) -> bool {
        self.table().is_live(&self.key, lease.claim.token())
    }

    fn pass(&self, ms: u64) {
        let mut table = self.table();
        let at_ms = table.at_ms() + ms;
        table.apply(at_ms, Vec::new(), &mut Vec::new());
    }

    fn apply(&self, command: Command) -> Outcome {
        let mut table = self.table();
        let at_ms = table.at_ms();
        table.apply(at_ms, vec![command], &mut Vec::new()).pop().unwrap()
    }

    fn table(&self) -> MutexGuard<'_, LeaseTable> {
        self.table.lock().unwrap()
    }
}

/// A semaphore, a read lock, or exclusive.
pub(crate) fn mode(draw: u64) -> Mode {
    match draw % 4 {
        0 => Mode::Shared { limit: NonZeroU32::new(3) },
        1 => Mode::Shared { limit: None },
        _ => Mode::Exclusive,
    }
}

fn claim(grant: &Grant) -> Claim {
    Claim::new(grant.token, grant.keys[0].fence).unwrap()
}
