//! A holder that is never heard of again, the waiter behind it, and one who comes later: the same in each row.

use std::time::Duration;

use anyhow::{Context, bail};
use ringfence_harness::{Client, Consistency, Reply, definite, key, try_once, until, wait_for};
use ringfence_wire::{AcquireRequest, LeaseId, Ttl};
use tokio::time::{Instant, sleep};

use super::figure::{Figure, Figures};
use super::locker::{KEY, Locker};
use super::stage::Stage;

/// What a client takes off its lease for clocks that differ.
const DRIFT: f64 = 0.002;
const MARGIN: Duration = Duration::from_millis(5);
/// After so long a waiter knows that it waits: its first request waits for 100 ms only.
const KNOWS: Duration = Duration::from_millis(500);
/// Bounds what is done before something is wrong.
const SOON: Duration = Duration::from_secs(20);

/// Who holds the key at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// Somebody who acquires it just before something goes wrong, and dies.
    Dies,
    /// `ringfence lock`, which counts by itself when it must stop.
    Locks,
}

/// The three of them.
pub(super) struct Queue {
    ttl: Duration,
    holder: Held,
    /// When the holder's lease would end if nothing were wrong.
    ends: Instant,
    waiter: Locker,
    late: Option<Locker>,
}

enum Held {
    /// Until when it could count on its lease.
    Until(Instant),
    By(Locker),
}

impl Queue {
    /// The holder holds, and the waiter waits by way of `node`. A waiter that has not come into the queue is no error here.
    pub(super) async fn form(
        stage: &Stage,
        node: u64,
        ttl: Duration,
        holder: Holder,
    ) -> anyhow::Result<Self> {
        let others = stage.others(&[node]);
        let client = stage.node(others[0]).client();
        let wait = || Locker::waits(stage, "waiter", ttl, &stage.urls(&[node]));
        if holder == Holder::Locks {
            let locker = Locker::holds(stage, "holder", ttl, &stage.urls(&[node]))?;
            until(SOON, "the holder has the lock", async || locker.granted().map(drop)).await?;
            let waiter = wait()?;
            let _ = until(SOON, "the waiter waits", async || are_queued(&client, 1).await).await;
            return Ok(Self {
                ttl,
                holder: Held::By(locker),
                ends: Instant::now() + ttl,
                waiter,
                late: None,
            });
        }
        // Until the waiter waits, another lease is before that of the holder.
        let (early, lease) = (LeaseId::random(), LeaseId::random());
        let ttl_ms = Ttl::from_ms(u32::try_from(ttl.as_millis())?).context("a ttl that may be asked for")?;
        let first = try_once(KEY);
        definite(SOON, || client.acquire(early, &first)).await?;
        let (asks, request) = (client.clone(), AcquireRequest { ttl_ms, ..wait_for(KEY, 60_000) });
        let holds = tokio::spawn(async move { asks.acquire(lease, &request).await });
        until(SOON, "the holder is next", async || are_queued(&client, 1).await).await?;
        let waiter = wait()?;
        let _ = until(SOON, "the waiter waits", async || are_queued(&client, 2).await).await;
        sleep(KNOWS).await;
        definite(SOON, || client.release(early)).await?;
        let held = holds.await?;
        let sent = Instant::now();
        let renewed = client.renew(lease, None).await;
        let Ok(Reply::Done { body, .. }) = renewed else { bail!("no holder: {held:?}, {renewed:?}") };
        let lasts_ms = body.expires_in_ms.context("the holder's lease has no end")?;
        let counts_on = Duration::from_millis(lasts_ms).mul_f64(1.0 - DRIFT).saturating_sub(MARGIN);
        let (holder, ends) = (Held::Until(sent + counts_on), Instant::now() + ttl);
        Ok(Self { ttl, holder, ends, waiter, late: None })
    }

    /// The holder's process, if it has one, of which the cluster does not hear from now on.
    pub(super) fn falls_silent(&mut self) -> Option<&Locker> {
        self.ends = Instant::now() + self.ttl;
        self.holder()
    }

    /// The holder's process, if it has one.
    pub(super) fn holder(&self) -> Option<&Locker> {
        match &self.holder {
            Held::Until(_) => None,
            Held::By(locker) => Some(locker),
        }
    }

    /// Another one waits, by way of nodes that nothing is wrong with.
    pub(super) fn comes_late(&mut self, stage: &Stage, through: &[u64]) -> anyhow::Result<()> {
        self.late = Some(Locker::waits(stage, "late", self.ttl, &stage.urls(through))?);
        Ok(())
    }

    /// What came of it until then.
    pub(super) fn tell(&self, until: Instant, figures: &mut Figures) {
        let granted = self.waiter.granted();
        let late = self.late.as_ref().and_then(Locker::granted);
        let at = granted.map_or(until, |(at, _)| at.min(until));
        figures.insert(Figure::NextHolder, at.saturating_duration_since(self.ends).as_secs_f64());
        let overtaken = match (granted, late) {
            (Some((_, token)), Some((_, late))) => late < token,
            (None, Some(_)) => true,
            _ => false,
        };
        figures.insert(Figure::Overtaken, f64::from(overtaken));
        let next = granted.into_iter().chain(late).map(|(at, _)| at).min();
        let ended = match &self.holder {
            Held::Until(end) => Some(*end),
            Held::By(locker) => locker.last(),
        };
        if let (Some(ended), Some(next)) = (ended, next) {
            let both = ended.saturating_duration_since(next).as_secs_f64();
            // A fault may have measured it by itself.
            figures.entry(Figure::Overlap).or_insert(both);
        }
    }
}

/// Whether this many wait.
async fn are_queued(client: &Client, count: usize) -> Option<()> {
    match client.key(&key(KEY), Consistency::Local).await {
        Ok(Reply::Done { body, .. }) => (body.waiters.len() == count).then_some(()),
        _ => None,
    }
}
