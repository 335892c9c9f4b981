//! Load, closed and open.
//!
//! *Closed*: each worker takes its next turn when the last one is over; shows what a service can do. *Open*: turns come
//! at fixed times, whatever became of the earlier ones, and their latency counts from the time they were due: a service
//! that stalls is charged for all that had to wait meanwhile. Shows what a user would see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Who does the same thing again and again.
pub(crate) trait Work: Send {
    /// Does it once; gives when the part of it was over whose latency counts.
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>>;
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// How long it was measured.
    pub(crate) took: Duration,
    /// In nanoseconds; one for each turn that was over in that time.
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

/// All workers without a pause, for so long.
pub(crate) async fn closed(workers: &mut Vec<Box<dyn Work>>, time: Duration) -> Result<Load> {
    let begun = Instant::now();
    let end = begun + time;
    run(workers, begun, move |_, _| Some(Instant::now()).filter(|now| *now < end)).await
}

/// All workers without a pause, until this is set.
pub(crate) async fn closed_until(workers: &mut Vec<Box<dyn Work>>, stop: &Arc<AtomicBool>) -> Result<Load> {
    let stop = Arc::clone(stop);
    run(workers, Instant::now(), move |_, _| (!stop.load(Ordering::Relaxed)).then(Instant::now)).await
}

/// So many turns a second over all workers, for so long.
pub(crate) async fn open(workers: &mut Vec<Box<dyn Work>>, rate: f64, time: Duration) -> Result<Load> {
    let (begun, count) = (Instant::now(), workers.len() as u64);
    run(workers, begun, move |worker, turn| {
        let due = Duration::from_secs_f64((worker + turn * count) as f64 / rate);
        (due < time).then_some(begun + due)
    })
    .await
}

/// Each worker takes its turns when they are `due`, or as soon as it can, until there are no more.
async fn run(
    workers: &mut Vec<Box<dyn Work>>,
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
                // The timer wakes nobody sooner than in a millisecond: too late for who is due now.
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

/// Two digits of what lies between a microsecond and a minute.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 60_000_000_000, 2).expect("these bounds are sound")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::sleep;

    use super::*;

    /// Takes 10 ms a turn, and once 1 s.
    struct Stalls(u32);

    impl Work for Stalls {
        fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
            async move {
                self.0 += 1;
                sleep(Duration::from_millis(if self.0 == 10 { 1_000 } else { 10 })).await;
                Ok(Instant::now())
            }
            .boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_load_charges_a_stall_to_all_that_were_due_meanwhile() {
        let mut workers: Vec<Box<dyn Work>> = vec![Box::new(Stalls(0))];
        let load = open(&mut workers, 20.0, Duration::from_secs(5)).await.unwrap();
        assert_eq!(load.turns(), 100);
        let late = load.latency.count_between(100_000_000, u64::MAX);
        assert!((15..=25).contains(&late), "{late} turns of 100 were late");

        let mut workers: Vec<Box<dyn Work>> = vec![Box::new(Stalls(0))];
        let load = closed(&mut workers, Duration::from_secs(5)).await.unwrap();
        assert!(load.turns() > 390, "{}", load.turns());
        assert_eq!(load.latency.count_between(100_000_000, u64::MAX), 1);
        assert_eq!(workers.len(), 1);
    }
}
