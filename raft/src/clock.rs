//! The cluster's clock: milliseconds that only a leader advances.
//!
//! It is a value in the leader's memory that starts at the last time the log says, and follows real time from below.
//! It never runs faster than real time, never goes back, and stands still whenever the leader cannot be sure to lead:
//!
//! - a tick counts at most [`MAX_TICK`]: a leader that was stopped, or stalled, does not count the gap, then or later;
//! - a tick counts only if a quorum acknowledged the leader lately: a leader cut off does not count on;
//! - it is never more than [`MAX_AHEAD_MS`] past the oldest stamp not yet committed: if commits stall, so does time.
//!
//! So whatever holds up the cluster holds up its leases too; none is ended because the cluster was busy with itself.

use std::time::Duration;

/// The most that one tick counts.
pub(crate) const MAX_TICK: Duration = Duration::from_millis(100);
/// How often the leader ticks.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// How far the clock may run ahead of the oldest stamp that is not committed, in milliseconds.
pub(crate) const MAX_AHEAD_MS: u64 = 500;

/// The clock of one leadership.
#[derive(Debug)]
pub(crate) struct ClusterClock {
    now: Duration,
}

impl ClusterClock {
    /// Starts where the log has come to, in milliseconds.
    pub(crate) fn start(at_ms: u64) -> Self {
        Self { now: Duration::from_millis(at_ms) }
    }

    /// The time in milliseconds: what the next entry is stamped with.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.now.as_millis()).expect("half a billion years are not over")
    }

    /// Advances by the real time `elapsed` since the last tick, within the rules above.
    pub(crate) fn tick(
        &mut self,
        elapsed: Duration,
        quorum_is_fresh: bool,
        oldest_uncommitted_ms: Option<u64>,
    ) {
        if !quorum_is_fresh {
            return;
        }
        let next = self.now + elapsed.min(MAX_TICK);
        let bound = oldest_uncommitted_ms.map_or(next, |stamp| Duration::from_millis(stamp + MAX_AHEAD_MS));
        self.now = self.now.max(next.min(bound));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_follows_real_time_and_keeps_the_fractions() {
        let mut clock = ClusterClock::start(1_000);
        for _ in 0..4 {
            clock.tick(MS * 50 + MS / 2, true, None);
        }
        assert_eq!(clock.now_ms(), 1_202);
    }

    #[test]
    fn a_stopped_leader_does_not_count_the_gap() {
        let mut clock = ClusterClock::start(0);
        clock.tick(Duration::from_secs(3_600), true, None);
        assert_eq!(clock.now_ms(), 100);
    }

    #[test]
    fn a_leader_that_no_quorum_hears_stands_still() {
        let mut clock = ClusterClock::start(7);
        clock.tick(MS * 50, false, None);
        assert_eq!(clock.now_ms(), 7);
    }

    #[test]
    fn it_waits_for_commits_and_never_goes_back_for_them() {
        let mut clock = ClusterClock::start(0);
        for _ in 0..20 {
            clock.tick(MS * 50, true, Some(100));
        }
        assert_eq!(clock.now_ms(), 600);
        clock.tick(MS * 50, true, Some(50));
        assert_eq!(clock.now_ms(), 600);
        clock.tick(MS * 50, true, None);
        assert_eq!(clock.now_ms(), 650);
    }
}
