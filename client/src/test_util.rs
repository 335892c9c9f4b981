//! A clock that a test can set ahead, to see what a program does when its machine was asleep. It needs the feature `test-util`, which is
//! for tests alone: a crate names it under `dev-dependencies`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How far each clock is ahead, in nanoseconds.
static AHEAD: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Sets the clocks that leases are measured on ahead, for all clients of this process: `CLOCK_BOOTTIME` by `boot`, and
/// `CLOCK_MONOTONIC_RAW`, with the time that the machine slept, by `raw`. A lease has ended once it has by either. The timers of the
/// runtime are not set ahead: who waits for a loss learns of it within a second.
///
/// ```
/// # use std::time::Duration;
/// # use ringfence_client::{Lease, State, test_util};
/// # fn example(lease: &Lease) {
/// // The machine was asleep for an hour.
/// let hour = Duration::from_secs(3_600);
/// test_util::advance(hour, hour);
/// assert!(matches!(lease.state(), State::Lost(_)));
/// # }
/// ```
pub fn advance(boot: Duration, raw: Duration) {
    for (ahead, by) in AHEAD.iter().zip([boot, raw]) {
        ahead.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

pub(crate) fn ahead(clock: usize) -> Duration {
    Duration::from_nanos(AHEAD[clock].load(Ordering::SeqCst))
}
