//! The requests of this node that wait for a lease to be granted or to end.
//!
//! A request registers on the node that serves it, and `apply` on that node notifies it. It registers and looks at the table
//! under one lock: the table may be newer than the outcome "waiting" or, on a follower, older. So no change is missed
//! between the two, none is lost to a slow reader, and the wait survives a change of the leader.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use futures_util::FutureExt;
use ringfence_lease::{Change, Event, LeaseState, LeaseTable, Refusal};
use ringfence_wire::{EndReason, Grant, LeaseId, PrincipalName};
use tokio::sync::mpsc;
use tokio::task::unconstrained;

use crate::reply::Reply;

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The lease was granted.
    Granted(Arc<Grant>),
    /// The wait ran out.
    TimedOut,
    /// The lease, waiting or already granted, ended.
    Ended(EndReason),
}

/// What a request waits for: the lease with this id, and who calls it so.
pub(super) type Awaited = (LeaseId, Option<PrincipalName>);

/// The waits for one lease, by number.
type Replies = BTreeMap<u64, Reply<Settled>>;

/// How many requests wait for one lease. Each holds a connection, and only leases count against what a principal may have.
const MAX_WAITS: usize = 2;

/// Where a request that waits no longer says so, with the number of its wait.
pub(super) type Left = mpsc::UnboundedSender<(Awaited, u64)>;

/// The waits of this node.
pub(crate) struct Waits {
    by_lease: BTreeMap<Awaited, Replies>,
    notifications: Vec<Notification>,
    /// Those that were given up. At most as many as ever waited at once: a new one takes them out.
    gone: mpsc::UnboundedReceiver<(Awaited, u64)>,
}

/// How the waits for one lease ended. Sending it wakes other threads, so it is sent when the state is unlocked.
pub(crate) struct Notification {
    to: Replies,
    settled: Settled,
}

impl Notification {
    pub(crate) fn send(self) {
        for reply in self.to.into_values() {
            reply.send(self.settled.clone());
        }
    }
}

impl Waits {
    /// No waits yet, and where those that are given up are told.
    pub(super) fn new() -> (Self, Left) {
        let (left, gone) = mpsc::unbounded_channel();
        (Self { by_lease: BTreeMap::new(), notifications: Vec::new(), gone }, left)
    }

    /// Ends the waits for the lease of `event`, unless it still waits.
    pub(crate) fn apply(&mut self, event: &Event, table: &LeaseTable) {
        if event.change == Change::Queued {
            return;
        }
        if event.by.is_none() {
            self.apply_to_named(event.lease_id, table);
        }
        let awaited = (event.lease_id, event.by.clone());
        if !self.by_lease.contains_key(&awaited) {
            return;
        }
        let by = event.by.as_ref();
        let settled = match event.change {
            Change::Granted => match table.lease(by, event.lease_id, Some(table.at_ms())) {
                Ok(LeaseState::Granted(grant)) => Settled::Granted(Arc::new(grant)),
                // Granted and ended by one entry: the event of its end follows in the same batch.
                _ => return,
            },
            Change::Ended(reason) | Change::Left(Some(reason)) => Settled::Ended(reason),
            Change::Left(None) => Settled::TimedOut,
            Change::Queued => return,
        };
        let waiting = self.by_lease.remove(&awaited);
        self.notifications.extend(waiting.map(|to| Notification { to, settled }));
    }

    /// Ends the waits of principals for a lease that nobody owns, unless they have one with the same id.
    fn apply_to_named(&mut self, lease_id: LeaseId, table: &LeaseTable) {
        let named = (Bound::Excluded((lease_id, None)), Bound::Unbounded);
        let waiting = self.by_lease.range(named).take_while(|((id, _), _)| *id == lease_id);
        let is_settled = |awaited: &Awaited| Some((awaited.clone(), settled(table, awaited)?));
        let over: Vec<_> = waiting.filter_map(|(awaited, _)| is_settled(awaited)).collect();
        for (awaited, settled) in over {
            let waiting = self.by_lease.remove(&awaited);
            self.notifications.extend(waiting.map(|to| Notification { to, settled }));
        }
    }

    /// Ends the waits that `table` has settled. For a table that replaced another: its changes come without events.
    pub(crate) fn apply_all(&mut self, table: &LeaseTable) {
        self.by_lease.retain(|awaited, replies| {
            let Some(settled) = settled(table, awaited) else { return true };
            self.notifications.push(Notification { to: mem::take(replies), settled });
            false
        });
    }

    /// The waits that have ended since the last call.
    pub(crate) fn take_notifications(&mut self) -> Vec<Notification> {
        self.forget_gone();
        mem::take(&mut self.notifications)
    }

    /// Gives the oldest wait if there are too many for the lease. To be dropped when the state is unlocked: that wakes another thread.
    #[must_use]
    pub(super) fn add(
        &mut self,
        awaited: Awaited,
        number: u64,
        reply: Reply<Settled>,
    ) -> Option<Reply<Settled>> {
        self.forget_gone();
        let replies = self.by_lease.entry(awaited).or_default();
        replies.insert(number, reply);
        if replies.len() > MAX_WAITS { replies.pop_first().map(|(_, oldest)| oldest) } else { None }
    }

    /// Forgets the waits that were given up.
    fn forget_gone(&mut self) {
        // `try_recv` would park this thread while another is in the middle of sending.
        while let Some(Some((awaited, number))) = unconstrained(self.gone.recv()).now_or_never() {
            self.remove(&awaited, number);
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.by_lease.values().map(BTreeMap::len).sum()
    }

    fn remove(&mut self, awaited: &Awaited, number: u64) {
        if let Some(replies) = self.by_lease.get_mut(awaited) {
            replies.remove(&number);
            if replies.is_empty() {
                self.by_lease.remove(awaited);
            }
        }
    }
}

/// How `table` has settled a wait; `None` if the lease waits, or its acquire is not applied yet.
pub(super) fn settled(table: &LeaseTable, (lease_id, by): &Awaited) -> Option<Settled> {
    // Its state would tell how many waiters are ahead of it, which takes long to count.
    if table.is_waiting(by.as_ref(), *lease_id) {
        return None;
    }
    match table.lease(by.as_ref(), *lease_id, Some(table.at_ms())) {
        Ok(LeaseState::Granted(grant)) => Some(Settled::Granted(Arc::new(grant))),
        Err(Refusal::WaitTimeout) => Some(Settled::TimedOut),
        Err(Refusal::Gone(reason)) => Some(Settled::Ended(reason)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn all_waits_for_a_lease_are_notified_of_its_end_but_those_that_were_dropped() {
        let (mut waits, left) = Waits::new();
        let [one, other] = [1, 2].map(|id| LeaseId::from_u128(id).unwrap());
        let mut waiting = Vec::new();
        for (lease_id, number) in [(one, 1), (other, 2), (one, 3), (one, 4)] {
            let (reply, settled) = Reply::new(None);
            assert!(waits.add((lease_id, None), number, reply).is_none());
            waiting.push(settled);
            if number == 3 {
                left.send(((one, None), number)).unwrap();
            }
        }
        let ended = Change::Left(Some(EndReason::Revoked));
        let event = Event {
            revision: ringfence_wire::Revision(1),
            lease_id: one,
            by: None,
            change: ended,
            token: None,
            keys: Vec::new(),
            holder: None,
        };
        waits.apply(&event, &LeaseTable::new());
        waits.take_notifications().into_iter().for_each(Notification::send);
        let ended = Ok(Settled::Ended(EndReason::Revoked));
        let expected = [ended.clone(), Err(TryRecvError::Empty), Err(TryRecvError::Closed), ended];
        assert!(waiting.iter_mut().map(|settled| settled.try_recv()).eq(expected));
        left.send(((other, None), 2)).unwrap();
        assert!(waits.take_notifications().is_empty());
        assert!(waits.by_lease.is_empty());
    }

    #[test]
    fn a_wait_too_many_ends_the_oldest_for_its_lease() {
        let (mut waits, _left) = Waits::new();
        let [one, other] = [1, 2].map(|id| (LeaseId::from_u128(id).unwrap(), None));
        let mut add = |awaited: &Awaited, number| {
            let (reply, settled) = Reply::new(None);
            drop(waits.add(awaited.clone(), number, reply));
            settled
        };
        let mut oldest = add(&other, 0);
        let mut waiting: Vec<_> = (1..=MAX_WAITS as u64 + 2).map(|number| add(&one, number)).collect();
        let ended = waiting.iter_mut().map(|settled| settled.try_recv() == Err(TryRecvError::Closed));
        assert!(ended.eq((1..=MAX_WAITS + 2).map(|number| number <= 2)));
        assert_eq!(oldest.try_recv(), Err(TryRecvError::Empty));
    }
}
