use ringfence_mutant::{Mutant, is};
use ringfence_wire::EndReason;

use super::LeaseTable;
use crate::Event;

impl LeaseTable {
    /// The smallest time at which something ends, in milliseconds: one more than the smallest deadline. `None` when
    /// nothing can end by itself. Not later than [`Self::at_ms`] while ends or grants are left over from an entry that had
    /// too many of them.
    pub fn next_due_ms(&self) -> Option<u64> {
        if !self.lines.lags().is_empty() {
            return Some(self.at_ms);
        }
        self.waiting.next_due_ms(&self.leases).into_iter().chain(self.live.next_due_ms(&self.leases)).min()
    }

    /// Waiters whose wait is over leave, then leases whose time-to-live is over end; only so many in one entry, so
    /// that no apply stalls the node. The rest stay what they are until the next.
    pub(super) fn end_what_is_due(&mut self, events: &mut Vec<Event>) {
        let mut ends_left = self.limits.ends;
        while ends_left > 0 {
            let late = if is(Mutant::GrantsLateWaiters) {
                self.live.first_past(self.at_ms, &self.leases)
            } else {
                None
            };
            let waiter = self.waiting.first_past(self.at_ms, &self.leases);
            let first = late.or(waiter).or_else(|| self.live.first_past(self.at_ms, &self.leases));
            let Some(slot) = first else { break };
            let lease = self.leases.get(slot);
            ends_left = ends_left.saturating_sub(lease.claims.len().max(1));
            if lease.waits() {
                self.leave(slot, None, events);
            } else {
                self.end(slot, EndReason::Expired, events);
            }
        }
    }
}
