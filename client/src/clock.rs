//! The clock that leases are measured on. It keeps running while the machine sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A reading of `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default()))
    }

    #[cfg(test)]
    pub(crate) fn from_ms(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// The time since `earlier`; zero if that is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    pub(crate) fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}
