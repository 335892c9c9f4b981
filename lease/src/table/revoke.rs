use ringfence_wire::{EndReason, Key, Token};

use super::LeaseTable;
use crate::{Event, Outcome, Refusal};

impl LeaseTable {
    /// Ends the lease as a whole, whichever of its keys was named.
    pub(super) fn revoke(&mut self, key: &Key, token: Token, events: &mut Vec<Event>) -> Outcome {
        match self.line(key).and_then(|line| line.holder(token)) {
            Some(slot) => {
                self.end(slot, EndReason::Revoked, events);
                Outcome::Done
            }
            None => Outcome::Refused(Refusal::NotLive),
        }
    }
}
