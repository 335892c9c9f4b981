//! What this process knows about the owner of each master.
//!
//! Two clusters configured for one Redis are configured for all its masters. So another cluster's marker on one master
//! means that masters without a marker may not be free either: that cluster may just not have reached them yet.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::Identity;
use crate::connection::Claimed;
use crate::redis_url::Address;

#[derive(Default)]
pub(crate) struct Owners(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// All masters of this Redis.
    masters: Vec<Address>,
    /// The owner last seen at each.
    seen: BTreeMap<Address, OwnedBy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnedBy {
    Nobody,
    Own,
    Other(Identity),
}

impl Owners {
    /// A new term of leadership. This cluster may have lost its masters meanwhile; other owners are remembered.
    pub(crate) fn begin(&self) {
        self.set_masters(Vec::new());
    }

    /// The masters have changed. If another cluster owned one that is gone, it may come back under another address.
    pub(crate) fn set_masters(&self, masters: Vec<Address>) {
        let mut inner = self.lock();
        inner.seen.retain(|address, owner| masters.contains(address) || matches!(owner, OwnedBy::Other(_)));
        inner.masters = masters;
    }

    /// Notes the outcome of a claim.
    pub(crate) fn note(&self, address: &Address, claimed: &Claimed) {
        let Inner { masters, seen } = &mut *self.lock();
        let owner = match claimed {
            // Without a marker, a master still belongs to its last known owner.
            Claimed::Refused { owner: None, .. } => *seen.get(address).unwrap_or(&OwnedBy::Nobody),
            Claimed::Refused { owner: Some(other), .. } => OwnedBy::Other(*other),
            Claimed::Held => OwnedBy::Own,
            Claimed::Vacant | Claimed::TakenOver(_) => {
                // Masters that are gone do not matter once this cluster gets one.
                seen.retain(|address, _| masters.contains(address));
                OwnedBy::Own
            }
        };
        seen.insert(address.clone(), owner);
    }

    /// Whether this cluster may claim the master there at once if it has no marker.
    pub(crate) fn may_claim(&self, address: &Address) -> bool {
        let Inner { masters, seen } = &*self.lock();
        if seen.get(address) == Some(&OwnedBy::Own) {
            return true;
        }
        let owns_any = seen.values().any(|owner| *owner == OwnedBy::Own);
        let mut others = masters.iter().filter(|master| *master != address);
        other(seen).is_none() && (owns_any || others.all(|master| seen.contains_key(master)))
    }

    /// Another cluster that owns a master.
    pub(crate) fn other(&self) -> Option<Identity> {
        other(&self.lock().seen)
    }

    /// Whether every master has been checked.
    pub(crate) fn all_seen(&self) -> bool {
        let Inner { masters, seen } = &*self.lock();
        masters.iter().all(|master| seen.contains_key(master))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no panic while the owners are locked")
    }
}

fn other(seen: &BTreeMap<Address, OwnedBy>) -> Option<Identity> {
    seen.values().find_map(|owner| match owner {
        OwnedBy::Other(other) => Some(*other),
        OwnedBy::Nobody | OwnedBy::Own => None,
    })
}
