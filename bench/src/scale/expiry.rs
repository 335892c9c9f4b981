//! Many leases that expire at the same instant. The keys of half of them have waiters.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use ringfence_harness::{HttpConnection, Node, until};
use ringfence_wire::{LeaseId, MAX_KEYS};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::SOON;
use super::batches::{fill, key, release};
use super::node::{Counted, status};
use crate::calls::{self, Times};

/// The prefix of the keys.
const NAME: &str = "expiring";
/// The least time from the first grant to the deadline.
const LEAD: Duration = Duration::from_secs(10);
/// How long renewals are watched at least after the deadline.
const AFTERMATH: Duration = Duration::from_secs(1);
/// Waiters at most: a process may usually have 1,024 files open. They share the keys among them.
const CONNECTIONS: u64 = 800;

/// How long it took until all leases were gone, and their keys granted to the waiters.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Expiry {
    leases: u64,
    /// The leases whose keys had waiters.
    waited_for: u64,
    /// Each wants several keys at once.
    waiters: u64,
    /// From the deadline until the last lease was gone.
    pub(super) gone_s: f64,
    /// From the deadline to the last answer to a waiter.
    pub(super) granted_s: f64,
    /// Times that the leader's runtime was late by more than 50 ms.
    pub(super) delays: u64,
    #[serde(skip)]
    pub(super) begun: Instant,
    #[serde(skip)]
    pub(super) over: Instant,
}

/// A tenth as many leases as are `live` expire. A grant takes `each_s` seconds.
pub(super) async fn expire(leader: &Node, live: u64, each_s: f64) -> Result<Expiry> {
    let leases = live.div_ceil(10);
    let deadline = Instant::now() + LEAD + Duration::from_secs_f64(2.0 * each_s * leases as f64);
    // A TTL counts from when the leader has the call: leases expire at this instant or a little later, never earlier.
    let left = move || deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    fill(leader.http(), NAME, leases, left).await?;

    let keys_each = (leases / 2).div_ceil(CONNECTIONS).clamp(1, MAX_KEYS as u64);
    let waiters = leases / 2 / keys_each;
    let mut waiting = JoinSet::new();
    for waiter in 0..waiters {
        let keys = (waiter * keys_each..(waiter + 1) * keys_each).map(|number| key(NAME, number));
        waiting.spawn(wait(leader.http(), keys.collect()));
    }
    let all_wait = || async { (status(leader).await.ok()?.waiters == waiters).then_some(()) };
    until(SOON, format!("{waiters} wait"), all_wait).await?;
    let seen = status(leader).await?;
    ensure!(
        Instant::now() < deadline && seen.live_leases == live + leases,
        "the first leases expired before all waiters were queued: this machine is too slow"
    );

    let before = Counted::of(leader).await?;
    sleep_until(deadline).await;
    let all_gone = || async {
        let status = status(leader).await.ok()?;
        (status.live_leases == live + waiters && status.waiters == 0).then_some(Instant::now())
    };
    let gone = until(SOON, format!("{leases} leases are gone"), all_gone).await?;
    let (mut granted, mut ids) = (deadline, Vec::new());
    while let Some(done) = waiting.join_next().await {
        let (id, answered) = done??;
        granted = granted.max(answered);
        ids.push(id);
    }
    let over = gone.max(granted).max(deadline + AFTERMATH);
    sleep_until(over).await;
    let delays = Counted::of(leader).await?.delays - before.delays;
    release(leader.http(), &ids).await?;
    Ok(Expiry {
        leases,
        waited_for: waiters * keys_each,
        waiters,
        gone_s: (gone - deadline).as_secs_f64(),
        granted_s: (granted - deadline).as_secs_f64(),
        delays,
        begun: deadline,
        over,
    })
}

/// Waits for all these keys; returns the lease and the time of its grant.
async fn wait(address: SocketAddr, keys: Vec<String>) -> Result<(LeaseId, Instant)> {
    let (mut connection, lease) = (HttpConnection::open(address).await?, LeaseId::random());
    calls::acquire(&mut connection, lease, &keys, Times { ttl_ms: 600_000, wait_ms: 60_000 }).await?;
    Ok((lease, Instant::now()))
}
