//! Closed and open load.
//!
//! *Closed*: each worker takes its next turn when the last one is over; shows what a service can do. *Open*: turns are due
//! at fixed times, and latency counts from the due time, so that a stall is charged to every turn it delayed; shows what a
//! user would see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Does one thing again and again.
pub(crate) trait Work: Send {
    /// Does it once; returns the end of the part whose latency counts.
    fn turn(&mut self) -> impl Future<Output = Result<Instant>> + Send;
}

/// [`Work`] of any type.
pub(crate) struct Worker(Box<dyn Turn>);

trait Turn: Send {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>>;
}

impl<W: Work> Turn for W {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        Work::turn(self).boxed()
    }
}

impl Worker {
    pub(crate) fn new(work: impl Work + 'static) -> Self {
        Self(Box::new(work))
    }

    pub(crate) fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        self.0.turn()
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) took: Duration,
    /// In nanoseconds, one value a turn.
    pub(crate) latency: Histogram<u64>,
}

impl Load {
    pub(crate) fn turns(&self) -> u64 {
        self.latency.len()
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.turns() as f64 / self.took.as_secs_f64()
    }

    pub(crate) fn quantile_ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// Runs all workers without a pause for `time`.
pub(crate) async fn closed(workers: &mut Vec<Worker>, time: Duration) -> Result<Load> {
    let begun = Instant::now();
    let end = begun + time;
    run(workers, begun, move |_, _| Some(Instant::now()).filter(|now| *now < end)).await
}

/// Runs all workers without a pause until `stop` is set.
pub(crate) async fn closed_until(workers: &mut Vec<Worker>, stop: &Arc<AtomicBool>) -> Result<Load> {
    let stop = Arc::clone(stop);
    run(workers, Instant::now(), move |_, _| (!stop.load(Ordering::Relaxed)).then(Instant::now)).await
}

/// Runs `rate` turns a second over all workers for `time`.
pub(crate) async fn open(workers: &mut Vec<Worker>, rate: f64, time: Duration) -> Result<Load> {
    let (begun, count) = (Instant::now(), workers.len() as u64);
    run(workers, begun, move |worker, turn| {
        let due = Duration::from_secs_f64((worker + turn * count) as f64 / rate);
        (due < time).then_some(begun + due)
    })
    .await
}

/// Runs `rate` turns a second over all workers until `stop` is set.
pub(crate) async fn open_until(workers: &mut Vec<Worker>, rate: f64, stop: &Arc<AtomicBool>) -> Result<Load> {
    let (begun, count, stop) = (Instant::now(), workers.len() as u64, Arc::clone(stop));
    run(workers, begun, move |worker, turn| {
        let due = begun + Duration::from_secs_f64((worker + turn * count) as f64 / rate);
        (!stop.load(Ordering::Relaxed)).then_some(due)
    })
    .await
}

/// Each worker takes its turns when they are `due`, or as soon as it can after that, until `due` returns `None`.
async fn run(
    workers: &mut Vec<Worker>,
    begun: Instant,
    due: impl Fn(u64, u64) -> Option<Instant> + Clone + Send + 'static,
) -> Result<Load> {
    let mut tasks = JoinSet::new();
    for (number, mut worker) in (0..).zip(workers.drain(..)) {
        let due = due.clone();
        tasks.spawn(async move {
            let mut latency = histogram();
            for turn in 0.. {
                let Some(due) = due(number, turn) else { break };
                // The timer sleeps for at least a millisecond: too long for a turn that is due now.
                if due > Instant::now() {
                    sleep_until(due).await;
                }
                let over = worker.turn().await?;
                latency.saturating_record((over - due).as_nanos() as u64);
            }
            anyhow::Ok((worker, latency))
        });
    }
    let mut latency = histogram();
    while let Some(done) = tasks.join_next().await {
        let (worker, own) = done??;
        workers.push(worker);
        latency.add(own)?;
    }
    Ok(Load { took: begun.elapsed(), latency })
}

/// Two significant digits, from a microsecond to a minute.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 60_000_000_000, 2).expect("these bounds are sound")
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// Takes 10 ms a turn, and once 1 s.
    struct Stalls(u32);

    impl Work for Stalls {
        async fn turn(&mut self) -> Result<Instant> {
            self.0 += 1;
            sleep(Duration::from_millis(if self.0 == 10 { 1_000 } else { 10 })).await;
            Ok(Instant::now())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_load_charges_a_stall_to_all_that_were_due_meanwhile() {
        let mut workers = vec![Worker::new(Stalls(0))];
        let load = open(&mut workers, 20.0, Duration::from_secs(5)).await.unwrap();
        assert_eq!(load.turns(), 100);
        let late = load.latency.count_between(100_000_000, u64::MAX);
        assert!((15..=25).contains(&late), "{late} turns of 100 were late");

        let mut workers = vec![Worker::new(Stalls(0))];
        let load = closed(&mut workers, Duration::from_secs(5)).await.unwrap();
        assert!(load.turns() > 390, "{}", load.turns());
        assert_eq!(load.latency.count_between(100_000_000, u64::MAX), 1);
        assert_eq!(workers.len(), 1);
    }
}
