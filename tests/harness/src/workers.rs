//! Tasks that do the same again and again, until they are stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::until;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

/// The tasks, and what each returns in the end.
#[derive(Debug)]
pub struct Workers<T = ()> {
    work: Work,
    tasks: Vec<JoinHandle<T>>,
}

/// What a worker knows of the others. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Work {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl Work {
    /// Whether there is more to do.
    pub fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Counts what was done.
    pub fn did(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }
}

impl<T: Send + 'static> Workers<T> {
    /// Starts so many, each with its number from 0 on.
    pub fn start<F>(count: usize, mut worker: impl FnMut(usize, Work) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let work = Work::default();
        let tasks = (0..count).map(|number| tokio::spawn(worker(number, work.clone()))).collect();
        Self { work, tasks }
    }

    /// How much was done.
    pub fn done(&self) -> u64 {
        self.work.done.load(Ordering::Relaxed)
    }

    /// Waits until so much more was done.
    ///
    /// # Panics
    /// If that takes too long, or a worker has ended.
    pub async fn more(&self, count: u64) {
        let goal = self.done() + count;
        let look = async || {
            assert!(!self.tasks.iter().any(JoinHandle::is_finished), "a worker has ended");
            (self.done() >= goal).then_some(())
        };
        until(SOON, format!("{count} more are done"), look).await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Has them end, and returns what they return.
    ///
    /// # Panics
    /// If a worker did.
    pub async fn end(self) -> Vec<T> {
        self.work.is_over.store(true, Ordering::Relaxed);
        let mut ends = Vec::new();
        for task in self.tasks {
            ends.push(task.await.unwrap_or_else(|error| panic!("{error}")));
        }
        ends
    }
}
