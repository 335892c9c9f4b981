//! Other clients, which go to a node directly.

use anyhow::{Context, bail};
use ringfence_harness::{Acquired, Answered, Client};
use ringfence_wire::{AcquireRequest, Holder, Key, LeaseId, Metadata, Mode, Token, Ttl, Wait, WantedKey};

/// A time-to-live that no scenario outlives.
pub const LONG_MS: u64 = 600_000;

/// A lease of another client, which goes to the node directly.
#[derive(Clone, Copy, Debug)]
pub struct Rival {
    /// The id.
    pub id: LeaseId,
    /// The token.
    pub token: Token,
}

/// A client that goes to a node directly takes a key.
pub async fn take(
    client: &Client,
    key: &str,
    mode: Mode,
    ttl_ms: u64,
    wait_ms: u32,
) -> anyhow::Result<Rival> {
    let id = LeaseId::random();
    let request = AcquireRequest {
        keys: vec![WantedKey { key: Key::new(key)?, mode }],
        ttl_ms: ttl_ms.try_into().ok().and_then(Ttl::from_ms).context("a ttl")?,
        wait_ms: Wait::from_ms(wait_ms).context("a wait")?,
        keep_place: false,
        holder: Holder::new("rival"),
        metadata: Metadata::default(),
    };
    match client.patient().acquire(id, &request).await.success()? {
        Acquired::Granted(grant) | Acquired::Standing(grant) => Ok(Rival { id, token: grant.token }),
        Acquired::Waiting(_) => bail!("a rival still waits"),
    }
}
