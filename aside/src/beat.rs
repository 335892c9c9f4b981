//! Signs of life of a thread, which others look at: a thread that hangs cannot say so itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;

/// How often a thread shows that it runs.
const EVERY: Duration = Duration::from_millis(100);

/// When a thread ran last.
#[derive(Debug)]
pub struct Beat {
    begun: Instant,
    /// Milliseconds from there.
    last: AtomicU64,
}

impl Default for Beat {
    fn default() -> Self {
        Self { begun: Instant::now(), last: AtomicU64::new(0) }
    }
}

impl Beat {
    /// Shows that whose beat it is runs now.
    pub fn beat(&self) {
        self.last.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// Beats for as long as it is polled, on the thread that it is of.
    pub async fn go_on(&self) {
        loop {
            self.beat();
            sleep(EVERY).await;
        }
    }

    /// How long ago the last beat was: of a thread that runs, hardly longer than the time between two.
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.elapsed_ms().saturating_sub(self.last.load(Ordering::Relaxed)))
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
