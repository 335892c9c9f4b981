use ringfence_wire::{EndReason, Key, LeaseId, PrincipalName, Token};

use super::LeaseTable;
use crate::store::{End, Known};
use crate::{Attachment, Event, Outcome, Refusal};

const RELEASED: End = End::Gone(EndReason::Released);

/// Every way in which a lease ends, and a waiter leaves its queues.
impl LeaseTable {
    /// Also of an id that is not known yet. Tells a holder that its lease ended otherwise, however often it asks.
    pub(super) fn release(
        &mut self,
        by: Option<&PrincipalName>,
        id: LeaseId,
        events: &mut Vec<Event>,
    ) -> Outcome {
        match self.store.find(by, id) {
            Known::Active(slot) => self.end(slot, EndReason::Released, events),
            Known::Ended(RELEASED | End::TimedOut) => {}
            Known::Ended(end) => return Outcome::Refused(end.into()),
            Known::Nothing => return self.forestall(by, id, RELEASED),
        }
        Outcome::Done
    }

    /// Remembers an unknown id as ended, so that an acquire still on its way grants nothing.
    fn forestall(&mut self, by: Option<&PrincipalName>, id: LeaseId, end: End) -> Outcome {
        match self.store.spaces_mut().open(by) {
            Some(space) => self.store.remember(space, id, end, self.at_ms, self.limits.remembered),
            None => return Outcome::Refused(Refusal::Full),
        }
        Outcome::Done
    }

    /// Ends the whole lease, whichever of its keys was named.
    pub(super) fn revoke(&mut self, key: &Key, token: Token, events: &mut Vec<Event>) -> Outcome {
        match self.store.lock(key).and_then(|lock| lock.holder(token)) {
            Some(slot) => {
                self.end(slot, EndReason::Revoked, events);
                Outcome::Done
            }
            None => Outcome::Refused(Refusal::NotLive),
        }
    }

    /// Ends the lease, unless another request may have learned of it: a later acquire, or a renewal.
    pub(super) fn detach(
        &mut self,
        by: Option<&PrincipalName>,
        id: LeaseId,
        attachment: Attachment,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let Some((slot, lease)) = self.store.active(by, id) else { return Outcome::Done };
        let is_its_own = match lease.wait() {
            Some(wait) => wait.requests.has(attachment),
            None => lease.attachment() == Some(attachment),
        };
        if is_its_own {
            let has_other = self.store.edit(slot, |lease| lease.remove_request(attachment, self.at_ms));
            if !has_other {
                self.end(slot, EndReason::Abandoned, events);
            }
        }
        Outcome::Done
    }

    /// As [`Self::detach`], but an unknown id counts as abandoned: the log may have the acquire after this request.
    pub(super) fn take_back(
        &mut self,
        by: Option<&PrincipalName>,
        id: LeaseId,
        attachment: Attachment,
        events: &mut Vec<Event>,
    ) -> Outcome {
        match self.store.find(by, id) {
            Known::Nothing => self.forestall(by, id, End::Gone(EndReason::Abandoned)),
            Known::Active(_) | Known::Ended(_) => self.detach(by, id, attachment, events),
        }
    }

    /// The earliest time at which something ends, in milliseconds: one more than the smallest deadline. `None` if nothing
    /// ends by itself. At most [`Self::at_ms`] while an entry has left over ends or grants.
    pub fn next_due_ms(&self) -> Option<u64> {
        if !self.store.ready().is_empty() {
            return Some(self.at_ms);
        }
        self.store.next_deadline_ms()?.checked_add(1)
    }

    /// Ends first the waiters and then the live leases whose deadline is over. One entry ends only so many, so that no
    /// apply stalls the node; the next entry ends the rest.
    pub(super) fn end_what_is_due(&mut self, events: &mut Vec<Event>) {
        let mut ends_left = self.limits.ends;
        while ends_left > 0 {
            let mut first = [true, false].into_iter();
            let Some(slot) = first.find_map(|waits| self.store.first_past(waits, self.at_ms)) else { break };
            ends_left = ends_left.saturating_sub(self.store.get(slot).keys.len().max(1));
            self.end(slot, EndReason::Expired, events);
        }
    }
}
