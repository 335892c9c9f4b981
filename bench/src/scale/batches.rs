//! Many leases, by many operations in one call.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use ringfence_harness::HttpConnection;
use ringfence_wire::{LeaseId, MAX_BATCH};
use tokio::task::JoinSet;

use crate::calls;

/// The connections that acquire leases.
const FILLERS: u64 = 4;
/// The length of each key.
const KEY_BYTES: usize = 32;

/// The key with this number.
pub(super) fn key(name: &str, number: u64) -> String {
    let width = KEY_BYTES - 1 - name.len();
    format!("{name}/{number:0width$}")
}

/// Acquires this many leases of one key each; `ttl` is called for each batch.
pub(super) async fn fill(
    address: SocketAddr,
    name: &'static str,
    leases: u64,
    ttl: impl Fn() -> Duration + Copy + Send + 'static,
) -> Result<Vec<LeaseId>> {
    let batch = MAX_BATCH as u64;
    let mut fillers = JoinSet::new();
    for filler in 0..FILLERS {
        fillers.spawn(async move {
            let mut connection = HttpConnection::open(address).await?;
            let mut ids = Vec::new();
            for first in (filler * batch..leases).step_by((FILLERS * batch) as usize) {
                let own: Vec<_> = (first..(first + batch).min(leases))
                    .map(|number| (LeaseId::random(), key(name, number)))
                    .collect();
                calls::acquire_many(&mut connection, &own, ttl().as_millis() as u64).await?;
                ids.extend(own.into_iter().map(|(id, _)| id));
            }
            anyhow::Ok(ids)
        });
    }
    let mut ids = Vec::new();
    while let Some(done) = fillers.join_next().await {
        ids.extend(done??);
    }
    Ok(ids)
}

/// Releases all these leases.
pub(super) async fn release(address: SocketAddr, ids: &[LeaseId]) -> Result<()> {
    let mut connection = HttpConnection::open(address).await?;
    for ids in ids.chunks(MAX_BATCH) {
        calls::release_many(&mut connection, ids).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_32_bytes_long() {
        assert_eq!(key("live", 7), "live/000000000000000000000000007");
        assert_eq!(key("expiring", 999_999).len(), KEY_BYTES);
    }
}
