//! How much real time has passed: never more than did.
//!
//! NTP slews CLOCK_MONOTONIC, which tokio reads: chrony by up to 8.3 % with its defaults, adjtimex by up to 10 %. So a wall clock
//! that is wrong by some seconds would bend it, and leases would end early. NTP does not touch CLOCK_MONOTONIC_RAW, which is off
//! by no more than the quartz is. The smaller of the two counts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The clock that a leader counts by, besides tokio's. Clones share it.
#[derive(Clone)]
pub struct Quartz(Option<Arc<dyn Fn() -> Duration + Send + Sync>>);

impl Quartz {
    /// The machine's, which nothing slews: CLOCK_MONOTONIC_RAW.
    pub fn system() -> Self {
        Self(Some(Arc::new(|| {
            let now = clock_gettime(ClockId::MonotonicRaw);
            // Since the machine started, so neither is negative.
            Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
        })))
    }

    /// None but tokio's, for a simulation.
    pub fn none() -> Self {
        Self(None)
    }

    pub(crate) fn now(&self) -> Moment {
        Moment { tokio: Instant::now(), quartz: self.0.as_ref().map(|now| now()) }
    }
}

impl fmt::Debug for Quartz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Quartz")
    }
}

/// A moment by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) tokio: Instant,
    quartz: Option<Duration>,
}

impl Moment {
    /// The real time since `earlier`, or less.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        let tokio = self.tokio.saturating_duration_since(earlier.tokio);
        let quartz = self.quartz.zip(earlier.quartz).map(|(now, then)| now.saturating_sub(then));
        quartz.map_or(tokio, |quartz| quartz.min(tokio))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::time::advance;

    use super::*;

    impl Quartz {
        /// Runs at `rate` of tokio's.
        pub(crate) fn at(rate: f64) -> Self {
            let begun = Instant::now();
            Self(Some(Arc::new(move || begun.elapsed().mul_f64(rate))))
        }
    }

    /// With a clock that was slewed by 8.3 %, a lease of 30 s once ended after 27.7 s.
    #[tokio::test(start_paused = true)]
    async fn the_slower_clock_counts() {
        const MS: Duration = Duration::from_millis(1);
        for (rate, counted) in [(1.0, 1_000), (1.1, 1_000), (0.9, 900), (0.0, 0)] {
            let quartz = Quartz::at(rate);
            let earlier = quartz.now();
            advance(1_000 * MS).await;
            let since = quartz.now().since(earlier);
            assert!(since.abs_diff(counted * MS) < MS, "{since:?} at {rate}");
            assert_eq!(earlier.since(quartz.now()), Duration::ZERO);
        }
    }

    /// Neither is slewed this much.
    #[test]
    fn the_clocks_of_the_machine_agree() {
        let quartz = Quartz::system();
        let earlier = quartz.now();
        std::thread::sleep(Duration::from_millis(100));
        let later = quartz.now();
        let (since, tokio) = (later.since(earlier), later.tokio - earlier.tokio);
        assert!(since > Duration::ZERO && since <= tokio, "{since:?} of {tokio:?}");
        assert!(since.as_secs_f64() > 0.85 * tokio.as_secs_f64(), "{since:?} of {tokio:?}");
    }
}
