//! A lease that outlives its release: it is held at least for a time.
//!
//! ```text
//!  granted            release                       at least
//!     |──────────────────|────────────────────────────|
//!     :   as any lease   : one renewal, for the rest  : released, if this process still runs
//! ```
//! The renewal is what keeps others out: this process may end right after it. The cluster never moves the end of a lease back, so a lease
//! that would live for longer does, unless it is released. The renewal is sent also for such a lease: its answer tells whether the
//! lease was lost before, as the answer to a release does.

use std::time::Duration;

use ringfence_wire::{MAX_TTL_MS, MIN_TTL_MS, Ttl};

use crate::clock::Moment;

/// The allowance for clocks that differ, as a fraction of the time.
const DRIFT: u32 = 500;

/// How long a lease is held at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Least {
    since: Moment,
    time: Duration,
    /// The cluster has confirmed that it lasts that long.
    is_sure: bool,
}

impl Least {
    pub(crate) fn new(since: Moment, time: Duration) -> Self {
        Self { since, time, is_sure: false }
    }

    /// What is left of it, by the clock that shows more; zero once it has passed.
    pub(crate) fn left(&self) -> Duration {
        self.time.saturating_sub(Moment::now().since(self.since))
    }

    /// Whether the cluster has confirmed it.
    pub(crate) fn is_sure(&self) -> bool {
        self.is_sure
    }

    /// The cluster has confirmed it.
    pub(crate) fn confirm(&mut self) {
        self.is_sure = true;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// A time-to-live that lasts so long by the clock of this process.
    pub(crate) fn ttl(&self) -> Ttl {
        let left = self.left();
        let ms = u32::try_from((left + left / DRIFT).as_millis() + 1).unwrap_or(u32::MAX);
        Ttl::from_ms(ms.clamp(MIN_TTL_MS, MAX_TTL_MS)).expect("it is within the bounds")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(ago: Duration, time: Duration) -> Least {
        Least::new(Moment::now().before(ago), time)
    }

    #[test]
    fn the_rest_is_asked_for_with_an_allowance_and_within_the_bounds_of_a_time_to_live() {
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let ttl = begun(10 * second, 60 * second).ttl().ms();
        assert!((50_000..=50_101).contains(&ttl), "{ttl}");
        assert_eq!(begun(Duration::ZERO, day).ttl().ms(), MAX_TTL_MS);
        assert_eq!(begun(60 * second, 60 * second).ttl().ms(), MIN_TTL_MS);
        assert!(begun(60 * second, 60 * second).is_over());
        assert!(!begun(30 * second, 60 * second).is_over());
    }
}
