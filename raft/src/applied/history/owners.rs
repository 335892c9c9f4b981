//! Whose changes the history keeps.

use std::collections::{BTreeSet, HashMap, VecDeque};

use ringfence_wire::{PrincipalName, Revision};

/// An owner, or nobody.
type MaybeOwner = Option<PrincipalName>;

/// The owners of the changes that are kept.
#[derive(Debug, Default)]
pub(super) struct Owners {
    all: HashMap<MaybeOwner, Owned>,
    by_bytes: BTreeSet<(usize, MaybeOwner)>,
}

/// The changes of one owner.
#[derive(Debug, Default)]
struct Owned {
    bytes: usize,
    /// Oldest first.
    revisions: VecDeque<Revision>,
}

impl Owners {
    /// A change of `owner` is kept.
    pub(super) fn add(&mut self, owner: &MaybeOwner, revision: Revision, bytes: usize) {
        let owned = self.all.entry(owner.clone()).or_default();
        owned.revisions.push_back(revision);
        let before = owned.bytes;
        owned.bytes += bytes;
        self.by_bytes.remove(&(before, owner.clone()));
        self.by_bytes.insert((before + bytes, owner.clone()));
    }

    /// The oldest change of `owner`, of so many bytes, is no longer kept.
    pub(super) fn drop_oldest(&mut self, owner: &MaybeOwner, bytes: usize) {
        let Some(owned) = self.all.get_mut(owner) else { return };
        owned.revisions.pop_front();
        self.by_bytes.remove(&(owned.bytes, owner.clone()));
        owned.bytes -= bytes;
        if owned.revisions.is_empty() {
            self.all.remove(owner);
        } else {
            self.by_bytes.insert((owned.bytes, owner.clone()));
        }
    }

    /// The oldest change of the owner whose changes take most bytes, and whether there is no other owner.
    pub(super) fn oldest_of_largest(&self) -> Option<(Revision, bool)> {
        let (_, owner) = self.by_bytes.last()?;
        let revision = *self.all.get(owner)?.revisions.front()?;
        Some((revision, self.all.len() == 1))
    }

    #[cfg(test)]
    pub(super) fn all_bytes(&self) -> usize {
        assert_eq!(self.all.len(), self.by_bytes.len());
        self.by_bytes.iter().map(|(bytes, _)| bytes).sum()
    }
}
