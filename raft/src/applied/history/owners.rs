//! Whose changes the history keeps.

use std::collections::{HashMap, VecDeque};

use ringfence_room::Account;
use ringfence_wire::{PrincipalName, Revision};

/// An owner, or nobody.
type MaybeOwner = Option<PrincipalName>;

/// The owners of the changes that are kept.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Bytes of changes.
    kept: Account<MaybeOwner>,
    /// Oldest first.
    revisions: HashMap<MaybeOwner, VecDeque<Revision>>,
}

impl Owners {
    /// The bytes of all changes.
    pub(super) fn bytes(&self) -> usize {
        self.kept.all()
    }

    /// A change of `owner` is kept.
    pub(super) fn add(&mut self, owner: &MaybeOwner, revision: Revision, bytes: usize) {
        self.kept.add(owner, bytes);
        self.revisions.entry(owner.clone()).or_default().push_back(revision);
    }

    /// The oldest change of `owner`, of so many bytes, is no longer kept.
    pub(super) fn drop_oldest(&mut self, owner: &MaybeOwner, bytes: usize) {
        let Some(own) = self.revisions.get_mut(owner) else { return };
        own.pop_front();
        if own.is_empty() {
            self.revisions.remove(owner);
        }
        self.kept.remove(owner, bytes);
    }

    /// The oldest change of the owner whose changes take most bytes, and whether there is no other owner.
    pub(super) fn oldest_of_largest(&mut self) -> Option<(Revision, bool)> {
        let revision = *self.revisions.get(self.kept.greediest()?)?.front()?;
        Some((revision, self.kept.owners() == 1))
    }
}
