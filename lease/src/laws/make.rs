//! Commands for tests.

use ringfence_wire::{Key, LeaseId, Metadata, Mode, Ttl, Wait};

use crate::{Acquire, Attachment, Command};

pub(crate) fn id(n: u128) -> LeaseId {
    LeaseId::from_u128(n).expect("not nil")
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).expect("a legal key")
}

/// With the default time-to-live, no holder, no metadata and the attachment 7.
pub(crate) fn acquire(n: u128, keys: impl IntoIterator<Item = (Key, Mode)>, wait_ms: u32) -> Acquire {
    Acquire {
        lease_id: id(n),
        claims: keys.into_iter().collect(),
        ttl: Ttl::default(),
        wait: Wait::from_ms(wait_ms).expect("within the limit"),
        keep_place: false,
        holder: None,
        metadata: Metadata::default(),
        attachment: Attachment(7),
    }
}

impl From<Acquire> for Command {
    fn from(acquire: Acquire) -> Self {
        Self::Acquire(Box::new(acquire))
    }
}
