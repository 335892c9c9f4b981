//! The instant by which a command must be dead, as `lock` tells it to other processes of this machine.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use ringfence_client::Lease;
use rustix::time::{ClockId, clock_gettime};

/// How long before the end of a lease the supervisor kills: `lock`, if it runs, has killed before, and said why.
const MARGIN: Duration = Duration::from_millis(100);

/// An instant, on both clocks of a lease (see `client/src/clock.rs`): the command must be dead once one of them shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    boot: Duration,
    /// The raw clock and the time that the machine slept.
    raw: Duration,
}

impl Deadline {
    /// For a command under `lease`, as last confirmed.
    pub(crate) fn of(lease: &Lease) -> Self {
        // In this order, a pause between the two makes the deadline earlier, never later.
        let now = Self::now();
        now.after(lease.remaining().saturating_sub(MARGIN))
    }

    fn now() -> Self {
        let [raw, boot, monotonic] = [ClockId::MonotonicRaw, ClockId::Boottime, ClockId::Monotonic].map(read);
        Self { boot, raw: (raw + boot).saturating_sub(monotonic) }
    }

    fn after(self, time: Duration) -> Self {
        Self { boot: self.boot + time, raw: self.raw + time }
    }

    /// The time until then; zero once it has come.
    pub(super) fn left(self) -> Duration {
        self.since(Self::now())
    }

    /// How much later this is than `earlier`, by the clock on which it is less; zero if that is later.
    pub(super) fn since(self, earlier: Self) -> Duration {
        self.boot.saturating_sub(earlier.boot).min(self.raw.saturating_sub(earlier.raw))
    }
}

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// As [`FromStr`] reads it: nanoseconds of both clocks.
impl Display for Deadline {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{},{}", self.boot.as_nanos(), self.raw.as_nanos())
    }
}

impl FromStr for Deadline {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (boot, raw) = text.split_once(',').context("not two numbers")?;
        let [boot, raw] = [boot.parse()?, raw.parse()?].map(Duration::from_nanos);
        Ok(Self { boot, raw })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_is_the_same_for_another_process() {
        let deadline = Deadline::now().after(60 * SECOND);
        assert_eq!(deadline.to_string().parse::<Deadline>().unwrap(), deadline);
        assert!(deadline.left() > 30 * SECOND && deadline.left() <= 60 * SECOND);
        for wrong in ["", "1", "1,", "1,-1", "1,2,3"] {
            assert!(wrong.parse::<Deadline>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_deadline_has_come_once_one_clock_shows_it() {
        let now = Deadline::now();
        assert_eq!(now.left(), Duration::ZERO);
        for one in
            [Deadline { boot: now.boot, ..now.after(SECOND) }, Deadline { raw: now.raw, ..now.after(SECOND) }]
        {
            assert_eq!(one.left(), Duration::ZERO);
        }
    }
}
