//! The clock that leases are measured on.
//!
//! It keeps running while the machine sleeps (`CLOCK_BOOTTIME`), and nobody can slow it down. A time service may slew
//! `CLOCK_BOOTTIME` by up to 10 % (chrony: 8.3 %), so that a holder would count too long. It does not touch
//! `CLOCK_MONOTONIC_RAW`, which stands still while the machine sleeps, and runs as wrong as the crystal. So each reading is of both, and
//! an instant has come once it has come by either: what is left of a lease is never too much if one of the two clocks is right.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// An instant, on both clocks. There is no order of two instants: the clocks may disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    boot: Duration,
    /// The raw clock and the time that the machine slept.
    raw: Duration,
}

impl Moment {
    pub(crate) fn now() -> Self {
        // In this order a pause between two of them makes the reading older, never newer.
        let [raw, boot, monotonic] = [ClockId::MonotonicRaw, ClockId::Boottime, ClockId::Monotonic].map(read);
        let now = Self { boot, raw: (raw + boot).saturating_sub(monotonic) };
        #[cfg(feature = "test-util")]
        let now = now.with([crate::test_util::ahead(0), crate::test_util::ahead(1)]);
        now
    }

    /// That much later by either clock.
    #[cfg(feature = "test-util")]
    fn with(self, [boot, raw]: [Duration; 2]) -> Self {
        Self { boot: self.boot + boot, raw: self.raw + raw }
    }

    #[cfg(test)]
    pub(crate) fn from_ms(ms: u64) -> Self {
        Self::on_both(ms, ms)
    }

    #[cfg(test)]
    pub(crate) fn on_both(boot_ms: u64, raw_ms: u64) -> Self {
        Self { boot: Duration::from_millis(boot_ms), raw: Duration::from_millis(raw_ms) }
    }

    /// Whether `moment` has come, by either clock.
    pub(crate) fn has_reached(self, moment: Self) -> bool {
        self.boot >= moment.boot || self.raw >= moment.raw
    }

    /// How much later this is than `earlier`, by the clock on which it is less; zero if that is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.boot.saturating_sub(earlier.boot).min(self.raw.saturating_sub(earlier.raw))
    }

    pub(crate) fn after(self, time: Duration) -> Self {
        Self { boot: self.boot.saturating_add(time), raw: self.raw.saturating_add(time) }
    }

    pub(crate) fn before(self, time: Duration) -> Self {
        Self { boot: self.boot.saturating_sub(time), raw: self.raw.saturating_sub(time) }
    }

    /// The earlier one, by each clock.
    pub(crate) fn min(self, other: Self) -> Self {
        Self { boot: self.boot.min(other.boot), raw: self.raw.min(other.raw) }
    }

    /// The later one, by each clock.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { boot: self.boot.max(other.boot), raw: self.raw.max(other.raw) }
    }
}

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_run() {
        let before = Moment::now();
        while Moment::now().since(before) < Duration::from_millis(2) {}
        assert!(Moment::now().has_reached(before.after(Duration::from_millis(2))));
    }

    #[test]
    fn an_instant_has_come_once_it_has_by_one_clock() {
        let until = Moment::from_ms(11_000);
        for now in [Moment::on_both(10_000, 10_999), Moment::on_both(10_999, 10_000)] {
            assert!(!now.has_reached(until));
            assert_eq!(until.since(now), Duration::from_millis(1));
        }
        for now in [Moment::on_both(10_000, 11_000), Moment::on_both(11_000, 10_000)] {
            assert!(now.has_reached(until));
            assert_eq!(until.since(now), Duration::ZERO);
        }
    }
}
