use ringfence_mutant::{Mutant, is};
use ringfence_wire::{EndReason, LeaseId};

use super::LeaseTable;
use crate::ended::End;
use crate::{Event, Outcome};

impl LeaseTable {
    /// An id never seen is remembered as released: the acquire that is still under way then grants nothing. Of a lease that
    /// was lost its holder learns that here, however often it asks.
    pub(super) fn release(&mut self, id: LeaseId, events: &mut Vec<Event>) -> Outcome {
        match self.find(id) {
            Some((slot, lease)) if lease.waits() => self.leave(slot, Some(EndReason::Released), events),
            Some(_) if is(Mutant::ReleasesNothing) => {}
            Some((slot, _)) => self.end(slot, EndReason::Released, events),
            None => match self.ended.get(id) {
                Some(End::Gone(EndReason::Released) | End::TimedOut) => {}
                Some(end) => return Outcome::Refused(end.into()),
                None => {
                    self.ended.remember(
                        id,
                        End::Gone(EndReason::Released),
                        self.at_ms,
                        self.limits.remembered,
                    );
                }
            },
        }
        Outcome::Done
    }
}
