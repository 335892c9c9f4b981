//! Load, closed and open.
//!
//! *Closed*: each worker takes its next turn when the last one is over; shows what a service can do. *Open*: turns come
//! at fixed times, whatever became of the earlier ones, and their latency counts from the time they were due: a service
//! that stalls is charged for all that had to wait meanwhile. Shows what a user would see.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::service::{Locker, Service};

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

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// Acquire and release a key of one's own.
    OwnKey,
    /// Acquire and release the one key that all want.
    OneKey,
    /// Acquire and release so many keys of one's own, in one call each.
    Batch(usize),
    /// Ask whether a token is live, or for a value; the answer was true during the call.
    Read,
    /// The same, of what one server happens to know.
    ReadLocally,
    /// Write a value.
    Write,
    /// The same if the token is not below any that was seen.
    GuardedWrite,
}

impl Job {
    /// How many locks, reads or writes are one turn.
    pub(crate) fn units(self) -> usize {
        match self {
            Self::Batch(size) => size,
            _ => 1,
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnKey => f.write_str("acquire and release a key of one's own"),
            Self::OneKey => f.write_str("acquire and release the one key that all want"),
            Self::Batch(size) => write!(f, "acquire and release {size} keys of one's own in one call each"),
            Self::Read => f.write_str("read, linearizably"),
            Self::ReadLocally => f.write_str("read what one server knows"),
            Self::Write => f.write_str("write a value"),
            Self::GuardedWrite => f.write_str("write a value, guarded"),
        }
    }
}

/// So many who do this.
///
/// Those who want one key wait in `queue`.
pub(crate) async fn workers(
    service: &dyn Service,
    job: Job,
    count: usize,
    queue: &Arc<Queue>,
) -> Result<Vec<Box<dyn Work>>> {
    if job == Job::OwnKey {
        return cycles(service, count, |client| format!("own/{client}")).await;
    }
    let mut workers = Vec::new();
    for number in 0..count {
        workers.push(if job == Job::OneKey {
            let (locker, queue) = (service.locker().await?, Arc::clone(queue));
            Box::new(Contender { locker, queue, number }) as Box<dyn Work>
        } else {
            service.worker(job, number).await?.with_context(|| format!("nobody can {job} there"))?
        });
    }
    Ok(workers)
}

/// So many clients that each acquire and release a key of their own.
pub(crate) async fn cycles(
    service: &dyn Service,
    clients: usize,
    key: impl Fn(usize) -> String,
) -> Result<Vec<Box<dyn Work>>> {
    let mut workers: Vec<Box<dyn Work>> = Vec::new();
    for client in 0..clients {
        workers.push(Box::new(Cycle { locker: service.locker().await?, key: key(client) }));
    }
    Ok(workers)
}

/// Acquires and releases a lock. It is the acquire whose latency counts.
struct Cycle {
    locker: Box<dyn Locker>,
    key: String,
}

impl Work for Cycle {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        async move {
            self.locker.acquire(&self.key).await?;
            let over = Instant::now();
            self.locker.release().await?;
            Ok(over)
        }
        .boxed()
    }
}

/// Who waits for the one key, and since when.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<(BTreeSet<(Instant, usize)>, Served)>);

#[derive(Clone, Copy, Debug, Default)]
struct Served {
    all: u64,
    in_order: u64,
}

/// Requests that are sent as close together as this may arrive in any order.
const TOGETHER: Duration = Duration::from_millis(10);

impl Queue {
    fn lock(&self) -> MutexGuard<'_, (BTreeSet<(Instant, usize)>, Served)> {
        self.0.lock().expect("nobody panics with the queue")
    }

    fn enter(&self, place: (Instant, usize)) {
        self.lock().0.insert(place);
    }

    /// Served: in order, if nobody waits who had come before.
    fn leave(&self, place: (Instant, usize)) {
        let (waiting, served) = &mut *self.lock();
        waiting.remove(&place);
        served.all += 1;
        served.in_order += u64::from(waiting.first().is_none_or(|(since, _)| *since + TOGETHER > place.0));
    }

    /// How many of a hundred were served in order; `None` where nobody was.
    pub(crate) fn in_order_percent(&self) -> Option<f64> {
        let served = self.lock().1;
        (served.all > 0).then(|| 100.0 * served.in_order as f64 / served.all as f64)
    }
}

/// Waits for the one key, and releases it at once.
struct Contender {
    locker: Box<dyn Locker>,
    queue: Arc<Queue>,
    number: usize,
}

impl Work for Contender {
    fn turn(&mut self) -> BoxFuture<'_, Result<Instant>> {
        async move {
            let place = (Instant::now(), self.number);
            self.queue.enter(place);
            self.locker.acquire("wanted").await?;
            let over = Instant::now();
            self.queue.leave(place);
            self.locker.release().await?;
            Ok(over)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn whoever_overtakes_an_earlier_one_is_not_in_order() {
        let (queue, start) = (Queue::default(), Instant::now());
        assert_eq!(queue.in_order_percent(), None);
        let places = [0, 1, 500].map(|ms| (start + Duration::from_millis(ms), 0));
        for place in places {
            queue.enter(place);
        }
        queue.leave(places[1]);
        assert_eq!(queue.in_order_percent(), Some(100.0), "these came together");
        queue.leave(places[2]);
        queue.leave(places[0]);
        assert_eq!(queue.in_order_percent().map(f64::round), Some(67.0));
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
