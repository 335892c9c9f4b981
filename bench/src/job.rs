//! What is measured, and who does it again and again.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::load::Work;
use crate::service::{Locker, Service};

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

/// So many who do this; those who take locks by connections of their own, or as `tasks` of one program.
///
/// Those who want one key wait in `queue`.
pub(crate) async fn workers(
    service: &dyn Service,
    job: Job,
    count: usize,
    tasks: bool,
    queue: &Arc<Queue>,
) -> Result<Vec<Box<dyn Work>>> {
    let nobody = || format!("nobody can {job} there");
    let locker = async || match tasks {
        true => service.task().await?.with_context(nobody),
        false => service.locker().await,
    };
    let mut workers: Vec<Box<dyn Work>> = Vec::new();
    for number in 0..count {
        workers.push(match job {
            Job::OwnKey => Box::new(Cycle { locker: locker().await?, key: format!("own/{number}") }),
            Job::OneKey => Box::new(Queuer { locker: locker().await?, queue: Arc::clone(queue), number }),
            _ => service.worker(job, number).await?.with_context(nobody)?,
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
struct Queuer {
    locker: Box<dyn Locker>,
    queue: Arc<Queue>,
    number: usize,
}

impl Work for Queuer {
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
    use super::*;

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
}
