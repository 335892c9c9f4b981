//! The requests of this node that wait for a lease to be granted or to end.
//!
//! A request registers on the node that serves it, and `apply` on that node notifies it. It registers and looks at the table
//! under one lock: the table may be newer than the outcome "waiting" or, on a follower, older. So no change is missed
//! between the two, none is lost to a slow reader, and the wait survives a change of the leader.

use std::collections::BTreeMap;

use ringfence_lease::{Change, Event, LeaseState, LeaseTable, Refusal};
use ringfence_wire::{EndReason, Grant, LeaseId};

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

/// The waits of this node, by lease.
#[derive(Default)]
pub(crate) struct Waits {
    by_lease: BTreeMap<LeaseId, Vec<(u64, Reply<Settled>)>>,
    notifications: Vec<Notification>,
}

/// How a wait ended, for one request. Sending it wakes another thread, so it is sent when the state is unlocked.
pub(crate) struct Notification {
    to: Reply<Settled>,
    settled: Settled,
}

impl Notification {
    pub(crate) fn send(self) {
        self.to.send(self.settled);
    }
}

impl Waits {
    /// Ends the waits for the lease of `event`, unless it still waits.
    pub(crate) fn apply(&mut self, event: &Event, table: &LeaseTable) {
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
        self.notifications.extend(waiting.map(|(_, to)| Notification { to, settled: settled.clone() }));
    }

    /// Ends the waits that `table` has settled. For a table that replaced another: its changes come without events.
    pub(crate) fn apply_all(&mut self, table: &LeaseTable) {
        self.by_lease.retain(|lease_id, senders| {
            let Some(settled) = settled(table, *lease_id) else { return true };
            self.notifications
                .extend(senders.drain(..).map(|(_, to)| Notification { to, settled: settled.clone() }));
            false
        });
    }

    /// The waits that have ended since the last call.
    pub(crate) fn take_notifications(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.notifications)
    }

    pub(super) fn add(&mut self, lease_id: LeaseId, number: u64, reply: Reply<Settled>) {
        self.by_lease.entry(lease_id).or_default().push((number, reply));
    }

    pub(super) fn remove(&mut self, lease_id: LeaseId, number: u64) {
        if let Some(senders) = self.by_lease.get_mut(&lease_id) {
            senders.retain(|(other, _)| *other != number);
            if senders.is_empty() {
                self.by_lease.remove(&lease_id);
            }
        }
    }
}

/// How `table` has settled a wait; `None` if the lease waits, or its acquire is not applied yet.
pub(super) fn settled(table: &LeaseTable, lease_id: LeaseId) -> Option<Settled> {
    match table.lease(lease_id, Some(table.at_ms())) {
        Ok(LeaseState::Granted(grant)) => Some(Settled::Granted(Box::new(grant))),
        Err(Refusal::WaitTimeout) => Some(Settled::TimedOut),
        Err(Refusal::Gone(reason)) => Some(Settled::Ended(reason)),
        _ => None,
    }
}
