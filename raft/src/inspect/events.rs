//! All changes of the table in a log: replays it by the rules of every node.

use ringfence_lease::{Change, Event};
use ringfence_wire::{ChangeName, ChangedKey, EndReason, Holder, LeaseId, PrincipalName, Revision, Token};
use serde::Serialize;

use super::{InspectError, OwnerView, Position, StoppedNode};

/// The changes of the table up to an entry.
#[derive(Clone, Debug, Serialize)]
pub struct EventsView {
    /// The owner.
    #[serde(flatten)]
    pub owner: OwnerView,
    /// The entry up to which they are listed.
    #[serde(flatten)]
    pub position: Position,
    /// The revision after which they begin: earlier changes are no longer in the log.
    pub after_revision: Revision,
    /// In order.
    pub events: Vec<EventView>,
}

/// A change of the table.
#[derive(Clone, Debug, Serialize)]
pub struct EventView {
    /// The entry that made it.
    #[serde(flatten)]
    pub position: Position,
    /// Milliseconds of the cluster's clock.
    pub at_ms: u64,
    /// Its number.
    pub revision: Revision,
    /// The lease that changed.
    pub lease_id: LeaseId,
    /// What happened to it.
    pub change: ChangeName,
    /// Why it ended or left; `None` if its wait timed out.
    pub reason: Option<EndReason>,
    /// Its token; `None` for a lease that waits or was never granted.
    pub token: Option<Token>,
    /// Its keys, in the order of the request.
    pub keys: Vec<ChangedKey>,
    /// The public label.
    pub holder: Option<Holder>,
    /// The principal that acquired it; `None` if nobody owns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<PrincipalName>,
}

impl StoppedNode {
    /// All known changes up to entry `index`, committed or not; `None`: up to the last entry it knows to be committed. They
    /// begin after the oldest usable snapshot that the log continues from, or with the log.
    pub fn events(&self, index: Option<u64>) -> Result<EventsView, InspectError> {
        let replay = self.replay(index)?;
        let log_reaches = replay.entries.last().is_some_and(|last| last.log_id.index() >= replay.asked);
        let oldest = replay.generations.iter().copied().rev();
        let base = match replay.begins {
            None if log_reaches => None,
            // The log does not have the changes up to a snapshot of a later entry.
            _ => self.base(oldest.filter(|index| log_reaches || *index == replay.asked), &replay)?,
        };
        let after_revision = base.as_ref().map_or(Revision(0), |(_, table)| table.revision());
        let mut events = Vec::new();
        let (position, _) = replay.run(base, |position, table, changes| {
            events.extend(changes.into_iter().map(|change| EventView::of(position, table.at_ms(), change)));
        })?;
        Ok(EventsView { owner: self.owner(), position, after_revision, events })
    }
}

impl EventView {
    fn of(position: Position, at_ms: u64, event: Event) -> Self {
        let (change, reason) = match event.change {
            Change::Granted => (ChangeName::Granted, None),
            Change::Queued => (ChangeName::Queued, None),
            Change::Ended(reason) => (ChangeName::Ended, Some(reason)),
            Change::Left(reason) => (ChangeName::Left, reason),
        };
        let keys = event.keys.into_iter().map(|(key, mode, fence)| ChangedKey { key, mode, fence });
        Self {
            position,
            at_ms,
            revision: event.revision,
            lease_id: event.lease_id,
            change,
            reason,
            token: event.token,
            keys: keys.collect(),
            holder: event.holder,
            by: event.by,
        }
    }
}
