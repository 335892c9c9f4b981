//! The one clock of a run: microseconds of this process's monotonic clock since the run began.

use std::time::Duration;

use tokio::time::Instant;

/// Tells how long ago the run began. Copies tell the same.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
}

impl Clock {
    /// The run begins now.
    pub fn start() -> Self {
        Self { began: Instant::now() }
    }

    /// Microseconds since the run began.
    pub fn now_us(self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).expect("no run lasts for 500,000 years")
    }

    /// The instant at which so much of the run has passed.
    pub fn instant(self, after: Duration) -> Instant {
        self.began + after
    }
}
