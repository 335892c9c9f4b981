//! What is measured, and the clients that take locks.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::load::{Work, Worker};

/// What each turn of a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// Acquire and release a key of the client's own.
    OwnKey,
    /// Acquire and release the one key that all clients want.
    OneKey,
    /// Acquire and release this many keys of the client's own, in one call each.
    Batch(usize),
    /// Validate a token, or get a value; the answer is linearizable.
    Read,
    /// The same from one server's state, however old.
    ReadLocally,
    /// Write a value.
    Write,
    /// The same, unless the token is below any that was seen.
    GuardedWrite,
}

impl Job {
    /// The locks, reads or writes of one turn.
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

/// One client of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) job: Job,
    pub(crate) number: usize,
    /// Whether it shares connections with the others, as the tasks of one program do. Only for locks.
    pub(crate) is_task: bool,
    /// The queue for the one key.
    pub(crate) queue: Arc<Queue>,
}

impl Assignment {
    /// A client that takes locks through `locker`.
    pub(crate) fn lock(&self, locker: impl Locker) -> Worker {
        Worker::new(match self.job {
            Job::OneKey => {
                let place = Some((Arc::clone(&self.queue), self.number));
                Cycle { locker, key: "wanted".to_owned(), place }
            }
            _ => Cycle { locker, key: format!("own/{}", self.number), place: None },
        })
    }
}

/// A connection that takes locks.
pub(crate) trait Locker: Send + 'static {
    /// What it needs to release a lock.
    type Held: Send;

    /// Waits until it holds the lock.
    fn acquire(&mut self, key: &str) -> impl Future<Output = Result<Self::Held>> + Send;

    fn release(&mut self, held: Self::Held) -> impl Future<Output = Result<()>> + Send;
}

/// Acquires and releases `key`. The latency of the acquire counts.
pub(crate) struct Cycle<L> {
    pub(crate) locker: L,
    pub(crate) key: String,
    /// Where others want the key, too: their queue, and this client's number.
    pub(crate) place: Option<(Arc<Queue>, usize)>,
}

impl<L: Locker> Work for Cycle<L> {
    async fn turn(&mut self) -> Result<Instant> {
        let begun = self.place.as_ref().map(|(queue, number)| queue.enter(*number));
        let held = self.locker.acquire(&self.key).await?;
        let over = Instant::now();
        if let Some(((queue, number), begun)) = self.place.as_ref().zip(begun) {
            queue.leave(begun, *number);
        }
        self.locker.release(held).await?;
        Ok(over)
    }
}

/// The clients that wait for one key, by when they began to.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: BTreeSet<(Instant, usize)>,
    served: u64,
    served_in_order: u64,
}

/// Requests sent within this time of each other may arrive in any order.
const TOGETHER: Duration = Duration::from_millis(10);

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics with the queue")
    }

    fn enter(&self, number: usize) -> Instant {
        let now = Instant::now();
        self.lock().waiting.insert((now, number));
        now
    }

    /// Counts a client as served: in order, if nobody waits who came before it.
    fn leave(&self, entered: Instant, number: usize) {
        let state = &mut *self.lock();
        state.waiting.remove(&(entered, number));
        state.served += 1;
        let is_first = state.waiting.first().is_none_or(|(since, _)| *since + TOGETHER > entered);
        state.served_in_order += u64::from(is_first);
    }

    /// The percentage served in order; `None` where nobody was served.
    pub(crate) fn in_order_percent(&self) -> Option<f64> {
        let state = self.lock();
        (state.served > 0).then(|| 100.0 * state.served_in_order as f64 / state.served as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_overtakes_an_earlier_one_is_not_in_order() {
        let (queue, start) = (Queue::default(), Instant::now());
        assert_eq!(queue.in_order_percent(), None);
        let entered = [0, 1, 500].map(|ms| start + Duration::from_millis(ms));
        queue.lock().waiting.extend(entered.map(|entered| (entered, 0)));
        queue.leave(entered[1], 0);
        assert_eq!(queue.in_order_percent(), Some(100.0), "these came together");
        queue.leave(entered[2], 0);
        queue.leave(entered[0], 0);
        assert_eq!(queue.in_order_percent().map(f64::round), Some(67.0));
    }
}
