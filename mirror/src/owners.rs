//! Whose the masters of this Redis are, as far as this process knows.
//!
//! Two clusters that are configured for the same Redis are both configured for all its masters. So one master that has
//! another cluster's marker says that those without a marker are not free either: that cluster may just not have got to
//! them yet.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::Identity;

/// What was seen at a master last, by its address.
#[derive(Default)]
pub(crate) struct Owners(Mutex<BTreeMap<String, Owner>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    Own,
    Other(Identity),
}

impl Owners {
    /// This node begins to lead: what belonged to its cluster may not by now. What another has is remembered.
    pub(crate) fn begin(&self) {
        self.owners().retain(|_, owner| matches!(owner, Owner::Other(_)));
    }

    /// The marker there names this cluster.
    pub(crate) fn is_own(&self, address: &str) {
        self.owners().insert(address.to_owned(), Owner::Own);
    }

    /// The marker there was left as it was. Where there is none, the master still is whose it was.
    pub(crate) fn is_left(&self, address: &str, owner: Option<Identity>) {
        let mut owners = self.owners();
        match owner {
            Some(other) => drop(owners.insert(address.to_owned(), Owner::Other(other))),
            None => drop(owners.entry(address.to_owned()).or_insert(Owner::Nobody)),
        }
    }

    /// It is a master no longer. If another cluster had it, that may come back under another address.
    pub(crate) fn is_gone(&self, address: &str) {
        let mut owners = self.owners();
        if !matches!(owners.get(address), Some(Owner::Other(_))) {
            owners.remove(address);
        }
    }

    /// This cluster has got a master. Those that are gone do not matter any more.
    pub(crate) fn keep(&self, masters: &[String]) {
        self.owners().retain(|address, _| masters.contains(address));
    }

    /// Whether this cluster may claim the master there at once if it has no marker. `masters` are all there are.
    pub(crate) fn may_claim(&self, address: &str, masters: &[String]) -> bool {
        let owners = self.owners();
        if owners.get(address) == Some(&Owner::Own) {
            return true;
        }
        let is_seen = |master: &String| master == address || owners.contains_key(master);
        let has_any = owners.values().any(|owner| *owner == Owner::Own);
        other(&owners).is_none() && (has_any || masters.iter().all(is_seen))
    }

    /// A cluster that has a master.
    pub(crate) fn other(&self) -> Option<Identity> {
        other(&self.owners())
    }

    /// Whether each of these was seen.
    pub(crate) fn know(&self, masters: &[String]) -> bool {
        let owners = self.owners();
        masters.iter().all(|master| owners.contains_key(master))
    }

    fn owners(&self) -> MutexGuard<'_, BTreeMap<String, Owner>> {
        self.0.lock().expect("no panic while the owners are locked")
    }
}

fn other(owners: &BTreeMap<String, Owner>) -> Option<Identity> {
    owners.values().find_map(|owner| match owner {
        Owner::Other(other) => Some(*other),
        Owner::Nobody | Owner::Own => None,
    })
}
