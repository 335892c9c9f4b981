use ringfence_mutant::{Mutant, is};
use ringfence_wire::{Blocker, EndReason};

use super::LeaseTable;
use crate::claims::Claims;
use crate::lease::Lease;
use crate::limits::{KEEP_PLACE_MS, MAX_BLOCKERS};
use crate::puts::Put;
use crate::slots::Slot;
use crate::{Acquire, Event, Outcome, Refusal};

impl LeaseTable {
    pub(super) fn acquire(&mut self, acquire: Acquire, events: &mut Vec<Event>) -> Outcome {
        let tries_once = acquire.wait.ms() == 0 && !acquire.keep_place;
        let kept_ms = if acquire.keep_place { KEEP_PLACE_MS } else { 0 };
        let claims = Claims::new(acquire.claims);
        let mut lease = Lease::new(acquire.lease_id, claims, acquire.ttl, acquire.holder, acquire.metadata);
        lease.attach(Some(acquire.attachment));
        lease.deadline_ms = self.at_ms.saturating_add(u64::from(acquire.wait.ms()) + kept_ms);
        if let Some((slot, known)) = self.find(lease.id) {
            if !known.claims.same_keys(&lease.claims) {
                Outcome::Refused(Refusal::Mismatch)
            } else if !known.waits() && is(Mutant::RepeatGrantsTwice) {
                self.end(slot, EndReason::Released, events);
                self.first_acquire(lease, tries_once, events)
            } else if !known.waits() {
                self.repeat_granted(slot)
            } else {
                let put = Put { attachment: lease.attachment(), until_ms: lease.deadline_ms };
                self.repeat_waiting(slot, put, events)
            }
        } else if let Some(end) = self.ended.get(lease.id).filter(|_| !is(Mutant::ForgetsEnds)) {
            Outcome::Refused(end.into())
        } else {
            self.first_acquire(lease, tries_once, events)
        }
    }

    fn first_acquire(&mut self, mut lease: Lease, tries_once: bool, events: &mut Vec<Event>) -> Outcome {
        let mut fits = true;
        for (key, mode) in lease.claims.iter_mut() {
            fits &= self.lines.fits(key, *mode, &self.leases);
        }
        if fits {
            let slot = self.grant(lease, events);
            return Outcome::Granted(Box::new(self.grant_of(self.leases.get(slot), Some(self.at_ms))));
        }
        let longest = self.longest_queue(&lease);
        if tries_once {
            Outcome::Refused(self.held(&lease, longest))
        } else if longest >= self.limits.queue {
            Outcome::Refused(Refusal::Overloaded)
        } else {
            // At the tail there is no need to count who stands ahead.
            let slot = self.queue(lease, events);
            Outcome::Waiting(Self::waiting_of(self.leases.get(slot), longest))
        }
    }

    /// Which of the two was sent last cannot be told, and either may be answered: from now on no connection that closes ends
    /// the lease.
    fn repeat_granted(&mut self, slot: Slot) -> Outcome {
        self.leases.get_mut(slot).attach(None);
        Outcome::Standing(Box::new(self.grant_of(self.leases.get(slot), Some(self.at_ms))))
    }

    /// One more acquire stands for it: it takes nothing from those that came before.
    fn repeat_waiting(&mut self, slot: Slot, mut put: Put, events: &mut Vec<Event>) -> Outcome {
        let is_kept = self.leases.get(slot).deadline_ms > put.until_ms;
        if is_kept {
            // It is answered that its place is kept: the others may be given up the next moment.
            put.until_ms = put.until_ms.saturating_add(KEEP_PLACE_MS);
        }
        if self.leases.get(slot).is_past(self.at_ms) {
            self.leave(slot, None, events);
            return Outcome::Refused(Refusal::WaitTimeout);
        }
        self.waiting.remove(slot, &self.leases);
        self.leases.get_mut(slot).add_put(put, self.at_ms);
        self.waiting.insert(slot, &self.leases);
        let lease = self.leases.get(slot);
        let waiting = Self::waiting_of(lease, self.ahead_of(lease));
        if is_kept { Outcome::Kept(waiting) } else { Outcome::Waiting(waiting) }
    }

    /// The refusal of a try: the live leases on the keys that are not free, and the length of the longest queue.
    fn held(&self, lease: &Lease, longest: usize) -> Refusal {
        let mut holders = Vec::new();
        for &(ref key, mode) in lease.claims.iter() {
            if self.line(key).is_some_and(|line| !line.fits(mode)) {
                let room = MAX_BLOCKERS - holders.len();
                holders.extend(self.holders(key).take(room).map(|(holder, mode)| Blocker {
                    key: key.clone(),
                    token: holder.number.into(),
                    holder: holder.holder.clone(),
                    mode: mode.name(),
                    limit: mode.limit(),
                    expires_in_ms: holder.expires_in_ms(self.at_ms),
                }));
            }
        }
        Refusal::Held { holders, waiters: longest as u64 }
    }

    fn longest_queue(&self, lease: &Lease) -> usize {
        let queue_len = |key| self.line(key).map_or(0, |line| line.queue_len());
        lease.claims.iter().map(|(key, _)| queue_len(key)).max().unwrap_or(0)
    }
}
