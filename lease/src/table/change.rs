//! The four changes that take a revision. Everything else in this room only decides which of them to make.

use ringfence_mutant::{Mutant, is};
use ringfence_wire::{EndReason, Key, Mode, Revision, Token};

use super::LeaseTable;
use crate::ended::End;
use crate::lease::Lease;
use crate::line::Claim;
use crate::slots::Slot;
use crate::{Change, Event};

impl LeaseTable {
    /// Grants a lease that fits all its keys and did not wait.
    pub(super) fn grant(&mut self, mut lease: Lease, events: &mut Vec<Event>) -> Slot {
        lease.number = self.next_revision();
        lease.deadline_ms = self.at_ms.saturating_add(lease.ttl.ms().into());
        let slot = self.enter_live(lease);
        events.push(self.event(self.leases.get(slot), Change::Granted));
        slot
    }

    /// Gives a lease a place at the tail of the queues of all its keys. Its deadline is that of its wait.
    pub(super) fn queue(&mut self, mut lease: Lease, events: &mut Vec<Event>) -> Slot {
        lease.number = self.next_revision();
        lease.begin_wait(self.at_ms);
        let slot = self.enter_waiting(lease);
        events.push(self.event(self.leases.get(slot), Change::Queued));
        slot
    }

    /// Ends a live lease and grants the waiters that this lets in.
    pub(super) fn end(&mut self, slot: Slot, reason: EndReason, events: &mut Vec<Event>) {
        self.live.remove(slot, &self.leases);
        self.forget_lease(slot, End::Gone(reason), Change::Ended(reason), events);
    }

    /// Takes a waiter out of its queues (`None`: its wait ran out) and grants the waiters that this lets in.
    pub(super) fn leave(&mut self, slot: Slot, reason: Option<EndReason>, events: &mut Vec<Event>) {
        self.waiting.remove(slot, &self.leases);
        let end = reason.map_or(End::TimedOut, End::Gone);
        self.forget_lease(slot, end, Change::Left(reason), events);
    }

    /// Ends a lease that has no deadline any more.
    fn forget_lease(&mut self, slot: Slot, end: End, change: Change, events: &mut Vec<Event>) {
        self.next_revision();
        self.by_id.remove(self.leases.get(slot).id, |slot| self.leases.get(slot).id);
        let lease = self.leases.take(slot);
        for (key, _) in lease.claims.iter() {
            self.lines.remove(key, slot, lease.number);
        }
        self.ended.remember(lease.id, end, self.at_ms, self.limits.remembered);
        events.push(self.event(&lease, change));
        self.let_in(events);
    }

    /// Passes the waiters that have come to fit a key, and grants those that fit all of theirs by that, first come first. A
    /// grant lets nobody else in (see [`crate::line::Line`]). Only so much is done in one entry, so that no apply stalls the
    /// node: the lines lag until the next, and nobody comes before those that wait in them.
    pub(super) fn let_in(&mut self, events: &mut Vec<Event>) {
        while self.grants_left > 0
            && let Some(slot) = self.lines.pass_first()
        {
            let lease = self.leases.get_mut(slot);
            let is_late = lease.is_past(self.at_ms) && !is(Mutant::GrantsLateWaiters);
            let Some(wait) = lease.wait_mut() else { continue };
            wait.unfit -= 1;
            self.grants_left -= 1;
            if wait.unfit == 0 && !is_late {
                self.grants_left = self.grants_left.saturating_sub(lease.claims.len());
                self.grant_waiter(slot, events);
            }
        }
    }

    fn grant_waiter(&mut self, slot: Slot, events: &mut Vec<Event>) {
        let token = self.next_revision();
        self.waiting.remove(slot, &self.leases);
        let lease = self.leases.get_mut(slot);
        for (key, _) in lease.claims.iter() {
            self.lines.promote(key, lease.number, token);
        }
        lease.end_wait(self.at_ms);
        lease.number = token;
        lease.deadline_ms = self.at_ms.saturating_add(lease.ttl.ms().into());
        self.live.insert(slot, &self.leases);
        events.push(self.event(self.leases.get(slot), Change::Granted));
    }

    /// Puts a live lease into all lists. It fits its keys.
    pub(super) fn enter_live(&mut self, lease: Lease) -> Slot {
        let (id, number) = (lease.id, lease.number);
        let slot = self.leases.insert(lease);
        self.by_id.insert(id, slot, |slot| self.leases.get(slot).id);
        self.live.insert(slot, &self.leases);
        for &(ref key, mode) in self.leases.get(slot).claims.iter() {
            self.lines.hold(key, Claim { number, mode, slot }, &self.leases);
        }
        slot
    }

    /// Puts a waiter into all lists, at the tail of its queues, and counts the keys that it does not fit.
    pub(super) fn enter_waiting(&mut self, lease: Lease) -> Slot {
        let id = lease.id;
        let slot = self.leases.insert(lease);
        self.by_id.insert(id, slot, |slot| self.leases.get(slot).id);
        self.line_up(slot);
        slot
    }

    /// A waiter joins the tail of its queues.
    pub(super) fn line_up(&mut self, slot: Slot) {
        self.waiting.insert(slot, &self.leases);
        let lease = self.leases.get(slot);
        let mut unfit = 0;
        for &(ref key, mode) in lease.claims.iter() {
            let claim = Claim { number: lease.number, mode, slot };
            unfit += usize::from(!self.lines.queue(key, claim, &self.leases));
        }
        if let Some(wait) = self.leases.get_mut(slot).wait_mut() {
            wait.unfit = unfit;
        }
    }

    fn next_revision(&mut self) -> Revision {
        self.revision = self.revision.next();
        self.revision
    }

    /// Tells of the change that was just made to `lease`. Whoever held a key alone leaves no holder behind: then
    /// there is no need to look the key up.
    fn event(&self, lease: &Lease, change: Change) -> Event {
        let fence = |key: &Key, mode| match (change, mode) {
            (Change::Granted, _) => self.fence_of(lease, key, mode),
            (Change::Ended(_), Mode::Exclusive) => self.next_token(),
            _ => self.fence(key),
        };
        Event {
            revision: self.revision,
            lease_id: lease.id,
            change,
            token: lease.token(),
            keys: lease.claims.iter().map(|(key, mode)| (key.clone(), *mode, fence(key, *mode))).collect(),
            holder: lease.holder.clone(),
        }
    }

    /// The token that the next grant would have.
    pub(super) fn next_token(&self) -> Token {
        self.revision.next().into()
    }
}
