use ringfence_mutant::{Mutant, is};
use ringfence_wire::{EndReason, LeaseId};

use super::LeaseTable;
use crate::{Attachment, Event, Outcome};

impl LeaseTable {
    /// The lease ends unless another acquire stands for it, or it was renewed: then somebody may know of it.
    pub(super) fn detach(&mut self, id: LeaseId, attachment: Attachment, events: &mut Vec<Event>) -> Outcome {
        let Some((slot, lease)) = self.find(id) else { return Outcome::Done };
        match lease.wait() {
            Some(wait) if wait.puts.has(attachment) || is(Mutant::DetachesNewer) => {
                self.waiting.remove(slot, &self.leases);
                let has_another = self.leases.get_mut(slot).remove_put(attachment, self.at_ms);
                self.waiting.insert(slot, &self.leases);
                if !has_another || is(Mutant::DetachesNewer) {
                    self.leave(slot, Some(EndReason::Abandoned), events);
                }
            }
            None if lease.attachment() == Some(attachment) || is(Mutant::DetachesNewer) => {
                self.end(slot, EndReason::Abandoned, events);
            }
            _ => {}
        }
        Outcome::Done
    }
}
