//! Who waits for a lease to be granted or to end.
//!
//! A request that was told to wait is registered here, on the node that serves it, and is told from inside apply on that
//! node. Under the same lock it looks at the table, which may have gone on since its outcome, or, on a follower, not have
//! come so far. So no change can slip through between the answer "you wait" and the waiting, none can be lost to a slow
//! reader, and the wait goes on through a change of the leader.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_lease::{Change, Event, LeaseState, LeaseTable, Refusal};
use ringfence_wire::{EndReason, Grant, LeaseId};
use tokio::sync::oneshot;

use crate::applied::table::Applied;
use crate::reply::Reply;

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The lease was granted.
    Granted(Box<Grant>),
    /// The wait ran out.
    TimedOut,
    /// The lease, waiting or already granted, ended.
    Ended(EndReason),
}

/// Those who wait on this node, by lease.
#[derive(Default)]
pub(crate) struct Waits {
    by_lease: HashMap<LeaseId, Vec<(u64, Reply<Settled>)>>,
    told: Vec<Told>,
}

/// How a wait ended, and who is to be told. To tell wakes another thread, which is not done while the state is locked.
pub(crate) struct Told {
    to: Reply<Settled>,
    settled: Settled,
}

impl Told {
    pub(crate) fn tell(self) {
        self.to.send(self.settled);
    }
}

/// The wait of one request for one lease. Dropping it ends the wait.
pub struct LeaseWait {
    applied: Applied,
    lease_id: LeaseId,
    number: u64,
    settled: oneshot::Receiver<Settled>,
}

impl Waits {
    /// Ends the waits for the lease of `event`, unless it still waits.
    pub(crate) fn tell(&mut self, event: &Event, table: &LeaseTable) {
        if event.change == Change::Queued || !self.by_lease.contains_key(&event.lease_id) {
            return;
        }
        let settled = match event.change {
            Change::Granted => match table.lease(event.lease_id, Some(table.at_ms())) {
                Ok(LeaseState::Granted(grant)) => Settled::Granted(Box::new(grant)),
                // Granted and ended by one entry: the event of its end follows in the same batch.
                _ => return,
            },
            Change::Ended(reason) | Change::Left(Some(reason)) => Settled::Ended(reason),
            Change::Left(None) => Settled::TimedOut,
            Change::Queued => return,
        };
        let waiting = self.by_lease.remove(&event.lease_id).into_iter().flatten();
        self.told.extend(waiting.map(|(_, to)| Told { to, settled: settled.clone() }));
    }

    /// Ends the waits for all leases that have changed: to be called when `table` was replaced, by changes that nobody told of.
    pub(crate) fn tell_all(&mut self, table: &LeaseTable) {
        self.by_lease.retain(|lease_id, senders| {
            let Some(settled) = settled(table, *lease_id) else { return true };
            self.told.extend(senders.drain(..).map(|(_, to)| Told { to, settled: settled.clone() }));
            false
        });
    }

    /// Those whose waits have ended since this was called last. Each is to be told once the state is unlocked.
    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    fn remove(&mut self, lease_id: LeaseId, number: u64) {
        if let Some(senders) = self.by_lease.get_mut(&lease_id) {
            senders.retain(|(other, _)| *other != number);
            if senders.is_empty() {
                self.by_lease.remove(&lease_id);
            }
        }
    }
}

/// What `table` says of a wait; `None`: the lease waits, or its acquire is still to come.
fn settled(table: &LeaseTable, lease_id: LeaseId) -> Option<Settled> {
    match table.lease(lease_id, Some(table.at_ms())) {
        Ok(LeaseState::Granted(grant)) => Some(Settled::Granted(Box::new(grant))),
        Err(Refusal::WaitTimeout) => Some(Settled::TimedOut),
        Err(Refusal::Gone(reason)) => Some(Settled::Ended(reason)),
        _ => None,
    }
}

impl LeaseWait {
    pub(crate) fn start(
        applied: &Applied,
        lease_id: LeaseId,
        (reply, settled_here): (Reply<Settled>, oneshot::Receiver<Settled>),
    ) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut state = applied.lock();
        match settled(&state.table, lease_id) {
            Some(settled) => reply.send_here(settled),
            None => state.waits.by_lease.entry(lease_id).or_default().push((number, reply)),
        }
        Self { applied: applied.clone(), lease_id, number, settled: settled_here }
    }

    /// Waits until this node has applied a grant or the end of the lease. `None`: nobody is left to tell.
    pub async fn settled(&mut self) -> Option<Settled> {
        (&mut self.settled).await.ok()
    }
}

impl Drop for LeaseWait {
    fn drop(&mut self) {
        self.applied.lock().waits.remove(self.lease_id, self.number);
    }
}
