//! A conditional is tried on a copy of the model, one change after the other, without letting waiters in. If every change succeeds,
//! the model makes them all.

use ringfence_wire::{EndReason, Key, Metadata, Mode, Token, Wait};

use super::{By, Lease, Model};
use crate::{Acquire, Condition, Conditional, Event, Found, KeyChange, Outcome, Owner, Refusal};

impl Model {
    pub(super) fn conditional(
        &mut self,
        owner: Option<&Owner>,
        conditional: &Conditional,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let by = owner.map(|owner| owner.name.clone());
        for (key, condition) in conditional.conditions() {
            if !self.holds(&by, key, condition) {
                return Outcome::Refused(Refusal::Changed { key: key.clone() });
            }
        }
        let mut trial = self.clone();
        trial.grants_left = 0;
        trial.limits.remembered = usize::MAX;
        for (place, change) in conditional.changes().iter().enumerate() {
            if let Some(refusal) = self.refusal(&mut trial, owner, change) {
                self.undone += usize::from(place > 0);
                return Outcome::Refused(refusal);
            }
        }
        let mut grants = Vec::new();
        for change in conditional.changes() {
            match self.change(owner, change, events) {
                Outcome::Granted(grant) => grants.push(*grant),
                Outcome::Done => {}
                other => panic!("it could be done, and now: {other:?}"),
            }
        }
        Outcome::Changed(grants)
    }

    /// Why a change cannot be done, after the changes that were done in `trial`.
    fn refusal(&self, trial: &mut Self, owner: Option<&Owner>, change: &KeyChange) -> Option<Refusal> {
        let by = owner.map(|owner| owner.name.clone());
        match change {
            KeyChange::Acquire { lease_id: id, .. }
                if self.find(&by, *id).is_some() || trial.find(&by, *id).is_some() =>
            {
                return Some(Refusal::Mismatch);
            }
            // A guess of the token that an earlier acquire of the same conditional would get.
            KeyChange::Keep { token, .. }
            | KeyChange::Expire { token, .. }
            | KeyChange::End { token, .. }
                if token.0 > self.revision =>
            {
                return Some(Refusal::NotLive);
            }
            _ => {}
        }
        match trial.change(owner, change, &mut Vec::new()) {
            // The holders that block it, as if no change were done.
            Outcome::Refused(Refusal::Held { mut holders, waiters }) => {
                holders.retain_mut(|holder| {
                    let known = self.holders(&holder.key).into_iter().find(|l| l.number == holder.token.0);
                    holder.expires_in_ms = known.map_or(0, |lease| lease.deadline.saturating_sub(self.at));
                    known.is_some()
                });
                Some(Refusal::Held { holders, waiters })
            }
            Outcome::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    fn change(&mut self, owner: Option<&Owner>, change: &KeyChange, events: &mut Vec<Event>) -> Outcome {
        let by = owner.map(|owner| owner.name.clone());
        match change {
            KeyChange::Acquire { key, lease_id, ttl, value, holder, attachment } => {
                let acquire = Acquire {
                    lease_id: *lease_id,
                    claims: vec![(key.clone(), Mode::Exclusive)],
                    ttl: *ttl,
                    wait: Wait::default(),
                    keep_place: false,
                    holder: holder.clone(),
                    metadata: Metadata::default(),
                    attachment: *attachment,
                };
                self.acquire(owner, acquire, Some(value.clone()), events)
            }
            KeyChange::Keep { key, token } => {
                let Some(known) = self.own(&by, key, *token) else {
                    return Outcome::Refused(Refusal::NotLive);
                };
                self.stored(&known).requests.clear();
                Outcome::Done
            }
            KeyChange::Expire { key, token, ttl } => {
                let Some(known) = self.own(&by, key, *token) else {
                    return Outcome::Refused(Refusal::NotLive);
                };
                let deadline = self.at + u64::from(ttl.ms());
                let lease = self.stored(&known);
                lease.ttl = *ttl;
                lease.deadline = deadline;
                lease.requests.clear();
                Outcome::Done
            }
            KeyChange::End { key, token } => match self.own(&by, key, *token) {
                Some(lease) => {
                    self.end(&lease, Some(EndReason::Released), events);
                    Outcome::Done
                }
                None => Outcome::Refused(Refusal::NotLive),
            },
        }
    }

    fn holds(&self, by: &By, key: &Key, condition: &Condition) -> bool {
        let found = self.found(by, key);
        match condition {
            Condition::Free => found == Found::Free,
            Condition::Taken => matches!(found, Found::Taken { .. }),
            Condition::Held { token: wanted, until_ms: deadline } => match found {
                Found::Own { token, until_ms, .. } => {
                    token == *wanted && deadline.is_none_or(|deadline| deadline == until_ms)
                }
                _ => false,
            },
        }
    }

    fn own(&self, by: &By, key: &Key, token: Token) -> Option<Lease> {
        let mut holders = self.holders(key).into_iter();
        let is_own = |lease: &&Lease| lease.number == token.0 && lease.value.is_some() && lease.by == *by;
        holders.find(is_own).cloned()
    }

    pub(in crate::laws) fn found(&self, by: &By, key: &Key) -> Found {
        if self.holders(key).is_empty() && self.queue(key).is_empty() {
            return Found::Free;
        }
        let left_ms = |lease: &Lease| lease.deadline.saturating_sub(self.at);
        let first = self.holders(key).first().copied().cloned();
        match first.as_ref().and_then(|lease| self.own(by, key, Token(lease.number))) {
            Some(lease) => Found::Own {
                token: Token(lease.number),
                lease_id: lease.first.lease_id,
                value: lease.value.clone().expect("its own has a value"),
                until_ms: lease.deadline,
                expires_in_ms: left_ms(&lease),
                is_untold: !lease.requests.is_empty(),
            },
            None => Found::Taken { expires_in_ms: first.as_ref().map(left_ms) },
        }
    }
}
