use ringfence_mutant::{Mutant, is};
use ringfence_wire::{EndReason, LeaseId};

use super::LeaseTable;
use crate::{Attachment, Event, Outcome};

impl LeaseTable {
    /// Nothing happens if a newer acquire or a renewal came: then somebody knows of the lease.
    pub(super) fn detach(&mut self, id: LeaseId, attachment: Attachment, events: &mut Vec<Event>) -> Outcome {
        if let Some((slot, lease)) = self.find(id)
            && (lease.attachment() == Some(attachment) || is(Mutant::DetachesNewer))
        {
            if lease.waits() {
                self.leave(slot, Some(EndReason::Abandoned), events);
            } else {
                self.end(slot, EndReason::Abandoned, events);
            }
        }
        Outcome::Done
    }
}
