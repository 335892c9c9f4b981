use ringfence_wire::EndReason;

use super::LeaseTable;
use crate::keys::Keys;
use crate::lease::Lease;
use crate::limits::{KEEP_PLACE_MS, MAX_BLOCKERS};
use crate::requests::Attempt;
use crate::store::{Known, Slot};
use crate::{Acquire, Blocking, Event, NAMES, Outcome, Owner, Refusal};

impl LeaseTable {
    pub(super) fn acquire(
        &mut self,
        owner: Option<&Owner>,
        acquire: Acquire,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let tries_once = acquire.wait.ms() == 0 && !acquire.keep_place;
        let kept_ms = if acquire.keep_place { KEEP_PLACE_MS } else { 0 };
        let keys = Keys::new(acquire.claims);
        let mut lease = Lease::new(acquire.lease_id, keys, acquire.ttl, acquire.holder, acquire.metadata);
        lease.attach(Some(acquire.attachment));
        lease.deadline_ms = self.at_ms.saturating_add(u64::from(acquire.wait.ms()) + kept_ms);
        match self.store.find(owner.map(|owner| &owner.name), lease.id) {
            Known::Active(slot) => {
                let known = self.store.get(slot);
                if !known.keys.same_keys(&lease.keys) {
                    Outcome::Refused(Refusal::Mismatch)
                } else if known.waits() {
                    let request = Attempt { attachment: lease.attachment(), until_ms: lease.deadline_ms };
                    self.repeat_waiting(slot, request, events)
                } else {
                    self.repeat_granted(slot)
                }
            }
            Known::Ended(end) => Outcome::Refused(end.into()),
            Known::Nothing => {
                self.first_acquire(owner, lease, tries_once, events).unwrap_or_else(Outcome::Refused)
            }
        }
    }

    fn first_acquire(
        &mut self,
        owner: Option<&Owner>,
        mut lease: Lease,
        tries_once: bool,
        events: &mut Vec<Event>,
    ) -> Result<Outcome, Refusal> {
        if self.rules >= NAMES
            && let Some((key, _)) = lease.keys.iter().find(|(key, _)| key.is_of_database())
        {
            return Err(Refusal::OfDatabase { key: key.clone() });
        }
        if self.store.share_text_and_fits(&mut lease.keys) {
            self.find_room(owner, &mut lease, false)?;
            let slot = self.grant(lease, events);
            return Ok(Outcome::Granted(Box::new(self.grant_of(self.store.get(slot), Some(self.at_ms)))));
        }
        let longest = self.longest_queue(&lease);
        if tries_once {
            return Err(self.held(&lease, longest));
        }
        if longest >= self.limits.queue {
            return Err(Refusal::Overloaded);
        }
        self.find_room(owner, &mut lease, true)?;
        // At the tail, all who wait are ahead: no need to count them.
        let slot = self.enqueue(lease, events);
        Ok(Outcome::Waiting(Self::waiting_of(self.store.get(slot), longest)))
    }

    /// Gives a new lease to its owner, unless it is one more than that may have, or than there is room for.
    fn find_room(&mut self, owner: Option<&Owner>, lease: &mut Lease, waits: bool) -> Result<(), Refusal> {
        self.room(owner).take(lease, waits)?;
        lease.space = self.store.spaces_mut().open(owner.map(|owner| &owner.name)).ok_or(Refusal::Full)?;
        Ok(())
    }

    /// Nobody can tell which of the two requests was sent last, and either may be answered. So no closed connection ends
    /// the lease any more.
    fn repeat_granted(&mut self, slot: Slot) -> Outcome {
        self.store.edit(slot, |lease| lease.attach(None));
        Outcome::Standing(Box::new(self.grant_of(self.store.get(slot), Some(self.at_ms))))
    }

    /// Adds one more request for the waiter. It takes nothing from the earlier ones.
    fn repeat_waiting(&mut self, slot: Slot, mut request: Attempt, events: &mut Vec<Event>) -> Outcome {
        let known = self.store.get(slot);
        if known.is_past(self.at_ms) {
            self.end(slot, EndReason::Expired, events);
            return Outcome::Refused(Refusal::WaitTimeout);
        }
        let is_kept = known.deadline_ms > request.until_ms;
        if is_kept {
            // The answer promises that the place is kept, and the other requests may be detached the next moment.
            request.until_ms = request.until_ms.saturating_add(KEEP_PLACE_MS);
        }
        self.store.edit(slot, |lease| lease.add_request(request, self.at_ms));
        let lease = self.store.get(slot);
        let waiting = Self::waiting_of(lease, self.ahead_of(lease));
        if is_kept { Outcome::Kept(waiting) } else { Outcome::Waiting(waiting) }
    }

    /// The refusal of a single try: live leases on the keys that are not free, and the length of the longest queue.
    pub(super) fn held(&self, lease: &Lease, longest: usize) -> Refusal {
        let mut holders = Vec::new();
        for &(ref key, mode) in lease.keys.iter() {
            if self.store.lock(key).is_some_and(|lock| !lock.fits(mode)) {
                let room = MAX_BLOCKERS - holders.len();
                holders.extend(self.holders(key).take(room).map(|(holder, mode)| Blocking {
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

    pub(super) fn longest_queue(&self, lease: &Lease) -> usize {
        let waiters = |key| self.store.lock(key).map_or(0, |lock| lock.waiters_len());
        lease.keys.iter().map(|(key, _)| waiters(key)).max().unwrap_or(0)
    }
}
