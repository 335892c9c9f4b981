//! The requests that tests make most.

use ringfence_wire::{AcquireRequest, Claim, Key, Metadata, Mode, Ttl, Wait};

/// The key `text`.
///
/// # Panics
/// Where that is no key.
pub fn key(text: &str) -> Key {
    Key::new(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// An acquire of `text` alone that does not wait. With the longest time-to-live, so that nothing ends by itself in a
/// test that is not about that.
pub fn try_once(text: &str) -> AcquireRequest {
    AcquireRequest {
        keys: vec![Claim { key: key(text), mode: Mode::Exclusive }],
        ttl_ms: Ttl::from_ms(ringfence_wire::MAX_TTL_MS).unwrap_or_default(),
        wait_ms: Wait::default(),
        keep_place: false,
        holder: None,
        metadata: Metadata::default(),
    }
}

/// The same, waiting for up to `ms`.
///
/// # Panics
/// Where `ms` is more than a request may wait.
pub fn wait_for(text: &str, ms: u32) -> AcquireRequest {
    let wait_ms = Wait::from_ms(ms).unwrap_or_else(|| panic!("{ms} ms is more than a request may wait"));
    AcquireRequest { wait_ms, ..try_once(text) }
}
