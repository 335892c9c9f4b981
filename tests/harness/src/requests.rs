//! Common requests of tests.

use std::time::Duration;

use ringfence_wire::{AcquireRequest, Grant, Key, LeaseId, Metadata, Mode, Ttl, Wait, WantedKey};

use crate::{Acquired, Client, Consistency, Reply, definite, until};

/// Bounds requests that may wait for a minute, while nodes may be down.
const GRANTED_WITHIN: Duration = Duration::from_secs(90);

/// The key `text`.
///
/// # Panics
/// Where that is not a key.
pub fn key(text: &str) -> Key {
    Key::new(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// A request for the key `text` that does not wait. It has the longest TTL, so that no lease expires unless a test wants that.
pub fn try_once(text: &str) -> AcquireRequest {
    AcquireRequest {
        keys: vec![WantedKey { key: key(text), mode: Mode::Exclusive }],
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

/// Acquires a lease that must be granted, and repeats the call until its answer is definite.
///
/// # Panics
/// Where it is not granted.
pub async fn granted(client: &Client, lease: LeaseId, request: &AcquireRequest) -> Grant {
    match definite(GRANTED_WITHIN, || client.acquire(lease, request)).await {
        Ok(Reply::Done { body: Acquired::Granted(grant) | Acquired::Standing(grant), .. }) => grant,
        other => panic!("{lease} is not granted: {other:?}"),
    }
}

/// Acquires the key `text` with a new lease, as [`granted`].
///
/// # Panics
/// Where it is not granted.
pub async fn take(client: &Client, text: &str) -> Grant {
    granted(client, LeaseId::random(), &try_once(text)).await
}

/// Releases a lease, and repeats the call until its answer is definite.
///
/// # Panics
/// Where it is refused.
pub async fn released(client: &Client, lease: LeaseId) {
    let released = definite(GRANTED_WITHIN, || client.release(lease)).await;
    assert!(matches!(released, Ok(Reply::Done { status: 204, .. })), "{lease}: {released:?}");
}

/// Waits until `count` leases wait for the key `text`.
///
/// # Panics
/// Where that takes too long.
pub async fn queued(client: &Client, text: &str, count: usize) {
    let key = key(text);
    let look = async || match client.key(&key, Consistency::Linearizable).await {
        Ok(Reply::Done { body, .. }) => (body.waiters.len() == count).then_some(()),
        _ => None,
    };
    let queued = until(GRANTED_WITHIN, format!("{count} wait for {text}"), look).await;
    queued.unwrap_or_else(|error| panic!("{error}"));
}
