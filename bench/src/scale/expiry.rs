//! Many leases whose deadlines are the same instant: half of them just end, the keys of the others are waited for.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use ringfence_harness::{Node, until};
use ringfence_wire::{LeaseId, MAX_KEYS};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::SOON;
use super::batches::{fill, key, release};
use super::node::{Counted, view};
use crate::calls::{self, Wish};
use crate::http::Connection;

/// What the keys of those that expire begin with.
const NAME: &str = "expiring";
/// How long it takes at least from the first grant to the end of all.
const LEAD: Duration = Duration::from_secs(10);
/// How long at least it is seen what becomes of renewals.
const AFTERMATH: Duration = Duration::from_secs(1);
/// With more connections, each waiter could have a key of its own; a process may have 1,024 files open as a rule.
const CONNECTIONS: u64 = 800;

/// How long it took until all were gone, or granted to those who waited.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Expiry {
    leases: u64,
    /// Of these leases the keys were waited for.
    waited_for: u64,
    /// By so many, each of which wants several keys at once.
    waiters: u64,
    /// From the first deadline to the last end.
    pub(super) gone_s: f64,
    /// From the first deadline to the last answer of a waiter.
    pub(super) granted_s: f64,
    /// Of the leader's runtime, over 50 ms.
    pub(super) delays: u64,
    #[serde(skip)]
    pub(super) begun: Instant,
    #[serde(skip)]
    pub(super) over: Instant,
}

/// Beside so many `live` leases a tenth as many expire; one is granted in `each_s` seconds.
pub(super) async fn expire(leader: &Node, live: u64, each_s: f64) -> Result<Expiry> {
    let leases = live.div_ceil(10);
    let deadline = Instant::now() + LEAD + Duration::from_secs_f64(2.0 * each_s * leases as f64);
    // A deadline counts from when the leader has the call: it is this instant or a little later, never earlier.
    let left = move || deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    fill(leader.http(), NAME, leases, left).await?;

    let keys_each = (leases / 2).div_ceil(CONNECTIONS).clamp(1, MAX_KEYS as u64);
    let waiters = leases / 2 / keys_each;
    let mut waiting = JoinSet::new();
    for waiter in 0..waiters {
        let keys = (waiter * keys_each..(waiter + 1) * keys_each).map(|number| key(NAME, number));
        waiting.spawn(wait(leader.http(), keys.collect()));
    }
    let all_wait = || async { (view(leader).await.ok()?.waiters == waiters).then_some(()) };
    until(SOON, format!("{waiters} wait"), all_wait).await?;
    let seen = view(leader).await?;
    ensure!(
        Instant::now() < deadline && seen.live_leases == live + leases,
        "the first leases ended before all waited: this machine is too slow"
    );

    let before = Counted::of(leader).await?;
    sleep_until(deadline).await;
    let all_gone = || async {
        let view = view(leader).await.ok()?;
        (view.live_leases == live + waiters && view.waiters == 0).then_some(Instant::now())
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

/// Waits for all these keys; gives the lease, and when it was granted.
async fn wait(address: SocketAddr, keys: Vec<String>) -> Result<(LeaseId, Instant)> {
    let (mut connection, lease) = (Connection::open(address).await?, LeaseId::random());
    calls::acquire(&mut connection, lease, &keys, Wish { ttl_ms: 600_000, wait_ms: 60_000 }).await?;
    Ok((lease, Instant::now()))
}
