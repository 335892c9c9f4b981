//! Writes of tens of kilobytes, one after the other, so that the log grows as fast as the cluster lets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_harness::Client;
use ringfence_wire::LeaseId;
use serde_json::json;
use tokio::time::sleep;

/// How many clients write.
const CLIENTS: usize = 4;
/// A lease has this many keys, of about this many bytes each.
const KEYS: usize = 64;
const KEY_BYTES: usize = 480;
/// How many bytes of keys new leases have at most: nodes keep them all.
const MOST_NEW: u64 = 24 << 20;

/// What clients wrote.
#[derive(Clone, Debug, Default)]
pub(super) struct Flood {
    bytes: Arc<AtomicU64>,
    new_leases: bool,
}

impl Flood {
    /// Each write is a new lease, so that the table grows too, up to a size. Otherwise each client repeats its own.
    pub(super) fn of_new_leases() -> Self {
        Self { new_leases: true, ..Self::default() }
    }

    /// Writes through one node, without an end.
    pub(super) async fn pour(&self, client: &Client) -> anyhow::Result<()> {
        join_all((0..CLIENTS).map(|number| self.write(client, number))).await;
        Ok(())
    }

    /// How many bytes of keys were written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    async fn write(&self, client: &Client, number: usize) {
        let (mut lease, filler) = (LeaseId::random(), "x".repeat(KEY_BYTES));
        for turn in 0.. {
            if self.new_leases && self.bytes() > MOST_NEW {
                return std::future::pending().await;
            }
            let turn = if self.new_leases { turn } else { 0 };
            let keys: Vec<String> =
                (0..KEYS).map(|key| format!("flood/{number}/{turn}/{key}/{filler}")).collect();
            let request = json!({ "keys": keys, "ttl_ms": 600_000 }).to_string();
            match client.raw("PUT", &format!("/v1/leases/{lease}"), request).await {
                Ok(answer) if answer.status < 300 => {
                    self.bytes.fetch_add((KEYS * KEY_BYTES) as u64, Ordering::Relaxed);
                    if self.new_leases {
                        lease = LeaseId::random();
                    }
                }
                _ => sleep(Duration::from_millis(100)).await,
            }
        }
    }
}
