//! The cluster's clock: milliseconds that only a leader advances.
//!
//! It is a value in the leader's memory. It starts at the last time in the log, and follows real time from below. It never
//! runs faster than real time, never goes back, and stands still whenever the leader cannot be sure to lead:
//!
//! - a tick counts at most [`MAX_TICK`]: a leader that was stopped or stalled never counts the gap;
//! - a tick counts only if a quorum acknowledged the leader recently: a leader that is cut off does not count;
//! - it is never more than [`MAX_AHEAD_MS`] past the oldest uncommitted stamp: if commits stall, so does time.
//!
//! So whatever delays the cluster delays the end of its leases too; none ends because the cluster was busy with itself.
//!
//! How late can a lease end? While one leader has its quorum and commits: by a tick, and the commit of the entry that carries
//! the time. A stall longer than [`MAX_TICK`], and time without a quorum, come on top in full. A new leader starts at the
//! last time in the log, so a change of leaders adds the time since the last entry. That is no more than the lease's
//! time-to-live: the entry that granted or renewed it is in the log.

use std::time::Duration;

/// The most that one tick counts.
pub(crate) const MAX_TICK: Duration = Duration::from_millis(100);
/// How often the leader ticks.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// How far the clock may be ahead of the oldest uncommitted stamp, in milliseconds.
pub(crate) const MAX_AHEAD_MS: u64 = 500;

/// The clock of one leadership.
#[derive(Debug)]
pub(crate) struct ClusterClock {
    now: Duration,
}

impl ClusterClock {
    /// Starts at the last time in the log, in milliseconds.
    pub(crate) fn start(at_ms: u64) -> Self {
        Self { now: Duration::from_millis(at_ms) }
    }

    /// The time in milliseconds: the stamp of the next entry.
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
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_follows_real_time_and_keeps_fractions() {
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
    fn it_stands_still_without_a_quorum() {
        let mut clock = ClusterClock::start(7);
        clock.tick(MS * 50, false, None);
        assert_eq!(clock.now_ms(), 7);
    }

    #[test]
    fn it_waits_for_commits_and_never_goes_back() {
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

    /// A cluster as the clock sees it: one leader after the other, whose entries are committed or lost, in real time.
    struct World {
        real: Duration,
        clock: ClusterClock,
        advanced: Duration,
        fresh: bool,
        /// Real time and stamp of the uncommitted entries, each of which grants a lease.
        proposed: VecDeque<(Duration, u64)>,
        applied_ms: u64,
        /// When each lease was granted in real time, and its deadline in the log's time.
        live: Vec<(Duration, u64)>,
        /// How much real time the clock was allowed to skip.
        excused: Duration,
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Real time passes.
        Pass(u64),
        Propose,
        Commit(usize),
        Fresh(bool),
        /// Another leader, which has so many of the uncommitted entries.
        Depose(usize),
    }

    const TTL_MS: u64 = 700;

    impl World {
        fn new() -> Self {
            Self {
                real: Duration::ZERO,
                clock: ClusterClock::start(5_000),
                advanced: Duration::ZERO,
                fresh: true,
                proposed: VecDeque::new(),
                applied_ms: 5_000,
                live: Vec::new(),
                excused: Duration::ZERO,
            }
        }

        fn advance(&mut self) -> u64 {
            let before = self.clock.now;
            let elapsed = self.real - self.advanced;
            self.advanced = self.real;
            self.clock.tick(elapsed, self.fresh, self.proposed.front().map(|(_, at_ms)| *at_ms));
            let counted = self.clock.now - before;
            assert!(counted <= elapsed, "faster than real time");
            let is_held = self
                .proposed
                .front()
                .is_some_and(|(_, at_ms)| self.clock.now >= Duration::from_millis(at_ms + MAX_AHEAD_MS));
            if !self.fresh || is_held || elapsed > MAX_TICK {
                self.excused += elapsed - counted;
            } else {
                assert_eq!(counted, elapsed, "slower than real time for no reason");
            }
            self.clock.now_ms()
        }

        fn commit(&mut self, count: usize) {
            for (granted, at_ms) in self.proposed.drain(..count.min(self.proposed.len())) {
                self.applied_ms = self.applied_ms.max(at_ms);
                let applied_ms = self.applied_ms;
                let real = self.real;
                self.live.retain(|(granted, deadline_ms)| {
                    let ends = applied_ms > *deadline_ms;
                    let lived = real - *granted;
                    assert!(!ends || lived >= Duration::from_millis(TTL_MS), "ended after {lived:?}");
                    !ends
                });
                self.live.push((granted, applied_ms + TTL_MS));
            }
        }

        fn take(&mut self, step: Step) {
            match step {
                Step::Pass(ms) => {
                    self.real += Duration::from_millis(ms);
                    self.advance();
                }
                Step::Propose => {
                    let at_ms = self.advance();
                    assert!(self.proposed.back().is_none_or(|(_, before)| *before <= at_ms), "backwards");
                    self.proposed.push_back((self.real, at_ms));
                }
                Step::Commit(count) => self.commit(count),
                Step::Fresh(fresh) => {
                    self.advance();
                    self.fresh = fresh;
                }
                Step::Depose(survive) => {
                    self.commit(survive);
                    self.proposed.clear();
                    self.excused += self.clock.now.saturating_sub(Duration::from_millis(self.applied_ms));
                    self.clock = ClusterClock::start(self.applied_ms);
                    self.advanced = self.real;
                }
            }
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..=60u64).prop_map(Step::Pass),
            1 => (60..=3_000u64).prop_map(Step::Pass),
            6 => Just(Step::Propose),
            6 => (1..4usize).prop_map(Step::Commit),
            1 => any::<bool>().prop_map(Step::Fresh),
            1 => (0..4usize).prop_map(Step::Depose),
        ];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        /// Under stalls, partitions, depositions and slow disks: the clock never runs faster than real time and never goes
        /// back, no lease ends early, and the clock loses time only for one of the reasons above.
        #[test]
        fn no_lease_ends_early_and_no_time_is_lost_without_a_reason(steps in steps()) {
            let mut world = World::new();
            for step in steps {
                world.take(step);
            }
            world.advance();
            let since = world.clock.now.saturating_sub(Duration::from_millis(5_000));
            prop_assert!(since <= world.real);
            prop_assert!(since + world.excused + MS >= world.real);
        }
    }
}
