//! The latency of acquires while the leader takes a snapshot, and while no node does, out of the same run.
//!
//! Each acquire is noted with its time. Meanwhile the nodes are asked again and again how many snapshots they have taken,
//! and how long these took: so it is known afterwards which acquires a snapshot may have touched.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hdrhistogram::Histogram;
use ringfence_harness::{Cluster, Node};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::node::Counted;
use crate::load::{Work, closed_until, histogram};

/// How many snapshots of the leader are measured.
const ENOUGH: u64 = 3;
/// After so long, one more will do: with many leases the log has to grow by half the size of the last snapshot.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bounds how long it takes.
const WITHIN: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(100);
/// Before a snapshot the state is frozen, after it the log is cut: that is charged to it as well.
const AROUND: Duration = Duration::from_millis(250);

/// What snapshots cost those who acquire.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Snapshots {
    /// By the leader.
    taken: u64,
    /// Each of these, on average.
    pub(super) each_s: f64,
    /// While the leader took one.
    pub(super) p99_9_ms: f64,
    acquires: u64,
    /// While no node did.
    pub(super) without_p99_9_ms: f64,
    without_acquires: u64,
    /// Of the leader's runtime, over 50 ms, in the whole run.
    pub(super) delays: u64,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    from: Instant,
    to: Instant,
}

/// A snapshot, or several at once, and when that was at most.
#[derive(Clone, Copy, Debug)]
struct Taken {
    by_leader: bool,
    span: Span,
}

pub(super) async fn snapshots(
    cluster: &Cluster,
    leader: &Node,
    workers: Vec<Box<dyn Work>>,
) -> Result<Snapshots> {
    let acquires = Arc::default();
    let mut workers = workers
        .into_iter()
        .map(|work| Box::new(Noted { work, acquires: Arc::clone(&acquires) }) as Box<dyn Work>)
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let before = Counted::of(leader).await?;
    let watched = async {
        let taken = watch(cluster, leader).await?;
        stop.store(true, Ordering::Relaxed);
        Ok(taken)
    };
    let (_, taken) = tokio::try_join!(closed_until(&mut workers, &stop), watched)?;
    let after = Counted::of(leader).await?;

    let acquires = acquires.lock().expect("nobody panics with the acquires");
    let with = latency(&acquires, |acquire| taken.iter().any(|one| one.by_leader && one.span.meets(acquire)));
    let without = latency(&acquires, |acquire| !taken.iter().any(|one| one.span.meets(acquire)));
    ensure!(!with.is_empty() && !without.is_empty(), "no acquire during a snapshot, or none without");
    let number = after.snapshots - before.snapshots;
    Ok(Snapshots {
        taken: number,
        each_s: (after.snapshots_s - before.snapshots_s) / number as f64,
        p99_9_ms: with.value_at_quantile(0.999) as f64 / 1e6,
        acquires: with.len(),
        without_p99_9_ms: without.value_at_quantile(0.999) as f64 / 1e6,
        without_acquires: without.len(),
        delays: after.delays - before.delays,
    })
}

/// Waits until the leader has taken enough; gives those of the other nodes as well.
async fn watch(cluster: &Cluster, leader: &Node) -> Result<Vec<Taken>> {
    let begun = Instant::now();
    let (mut taken, mut so_far) = (Vec::new(), 0);
    let (mut before, mut looked) = (counted(cluster).await?, begun);
    loop {
        ensure!(begun.elapsed() < WITHIN, "the leader took {so_far} snapshots in {WITHIN:?}");
        sleep(LOOK).await;
        let looks = Instant::now();
        let after = counted(cluster).await?;
        let mut is_over = false;
        for ((node, before), after) in cluster.nodes().iter().zip(&before).zip(&after) {
            let number = after.snapshots - before.snapshots;
            if number == 0 {
                continue;
            }
            let by_leader = node.id() == leader.id();
            let took = Duration::from_secs_f64(after.snapshots_s - before.snapshots_s);
            let span = Span { from: looked - took - AROUND, to: Instant::now() + AROUND };
            taken.push(Taken { by_leader, span });
            if by_leader {
                so_far += number;
                is_over = so_far >= ENOUGH || begun.elapsed() > PATIENCE;
            }
        }
        if is_over {
            break;
        }
        (before, looked) = (after, looks);
    }
    // Acquires until then are known to lie within its span.
    sleep(AROUND).await;
    Ok(taken)
}

async fn counted(cluster: &Cluster) -> Result<Vec<Counted>> {
    let mut all = Vec::new();
    for node in cluster.nodes() {
        all.push(Counted::of(node).await?);
    }
    Ok(all)
}

/// Of those acquires that are wanted.
fn latency(acquires: &[Span], is_wanted: impl Fn(Span) -> bool) -> Histogram<u64> {
    let mut latency = histogram();
    for acquire in acquires.iter().filter(|acquire| is_wanted(**acquire)) {
        latency.saturating_record((acquire.to - acquire.from).as_nanos() as u64);
    }
    latency
}

/// Notes when each of its turns was.
struct Noted {
    work: Box<dyn Work>,
    acquires: Arc<Mutex<Vec<Span>>>,
}

impl Work for Noted {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        async move {
            let from = Instant::now();
            let to = self.work.turn().await?;
            self.acquires.lock().expect("nobody panics with the acquires").push(Span { from, to });
            Ok(to)
        }
        .boxed()
    }
}

impl Span {
    fn meets(self, other: Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acquire_that_lasts_into_a_snapshot_is_met_by_it() {
        let start = Instant::now();
        let span = |from, to| Span {
            from: start + Duration::from_millis(from),
            to: start + Duration::from_millis(to),
        };
        let snapshot = span(100, 200);
        let acquires = [span(0, 90), span(50, 110), span(120, 130), span(90, 250), span(201, 202)];
        assert_eq!(latency(&acquires, |acquire| snapshot.meets(acquire)).len(), 3);
        assert_eq!(latency(&acquires, |acquire| !snapshot.meets(acquire)).len(), 2);
    }
}
