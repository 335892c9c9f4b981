//! The latency of acquires while the leader takes a snapshot, and while no node does, from the same run.
//!
//! Each acquire is recorded with its time. Meanwhile the nodes are polled for how many snapshots they have taken and how
//! long these took, which tells afterwards which acquires a snapshot may have touched.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use ringfence_harness::{Cluster, Node};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::node::Counted;
use crate::load::{Work, Worker, closed_until, histogram};

/// How many snapshots of the leader to measure.
const ENOUGH: u64 = 3;
/// After this, one more is enough: with many leases the log has to grow by half the size of the last snapshot.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bounds the whole measurement.
const WITHIN: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(100);
/// Freezing the state before a snapshot and truncating the log after it are charged to it, too.
const AROUND: Duration = Duration::from_millis(250);

/// What snapshots cost the clients that acquire.
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
    /// Times that the leader's runtime was late by more than 50 ms, in the whole run.
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

pub(super) async fn snapshots(cluster: &Cluster, leader: &Node, workers: Vec<Worker>) -> Result<Snapshots> {
    let acquires = Arc::default();
    let mut workers = workers
        .into_iter()
        .map(|worker| Worker::new(Recorded { worker, acquires: Arc::clone(&acquires) }))
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

/// Waits until the leader has taken enough. Returns those of the other nodes as well.
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
    // Acquires until then lie within its span.
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

/// The latency of the acquires that are wanted.
fn latency(acquires: &[Span], is_wanted: impl Fn(Span) -> bool) -> Histogram<u64> {
    let mut latency = histogram();
    for acquire in acquires.iter().filter(|acquire| is_wanted(**acquire)) {
        latency.saturating_record((acquire.to - acquire.from).as_nanos() as u64);
    }
    latency
}

/// Records when each of its turns was.
struct Recorded {
    worker: Worker,
    acquires: Arc<Mutex<Vec<Span>>>,
}

impl Work for Recorded {
    async fn turn(&mut self) -> Result<Instant> {
        let from = Instant::now();
        let to = self.worker.turn().await?;
        self.acquires.lock().expect("nobody panics with the acquires").push(Span { from, to });
        Ok(to)
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
    fn an_acquire_that_overlaps_a_snapshot_meets_it() {
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
