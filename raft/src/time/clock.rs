//! The cluster's clock: milliseconds that only a leader advances.
//!
//! It is a value in the leader's memory. It starts at the last time in the log, and follows real time from below:
//!
//! - it never runs faster than real time, whatever NTP does (`elapsed`), and never goes back;
//! - it is never more than [`MAX_AHEAD_MS`] past the last time that is committed: if commits stall, so does time.
//!
//! What that ensures: *between two entries of the log, at least as much real time has passed as their stamps differ by.* Within
//! a term, because the clock never runs faster. Across terms, because a leader begins with the last time in its log, later than
//! the leader that stamped it: what a deposed leader counted, but did not get into the log, is lost. So no lease ends early, and
//! nobody need know for that whether the leader still leads.
//!
//! Outages do not end leases either: a leader that commits nothing, or is stopped, counts [`MAX_AHEAD_MS`] of that at most, so
//! holders can renew when it is over.
//!
//! The leader keeps what it has counted in the log: if nothing else does, entries without commands do, while any lease has a
//! deadline ([`ClusterClock::should_be_logged`]).
//!
//! How late can a lease end? While one leader commits: by a tick, and the commit of the entry that carries the time. Time runs
//! as fast as real time as long as an entry is committed within [`MAX_AHEAD_MS`] less [`MAX_UNLOGGED`], and in proportion
//! slower beyond. The time without a leader that commits comes on top in full. A change of leaders adds [`MAX_UNLOGGED`], or
//! 1/[`SHARE`] of how long the leader has led if that is less, and one commit.

use std::time::Duration;

/// How often the leader ticks.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// How far the clock may be ahead of the last committed stamp, in milliseconds: [`MAX_UNLOGGED`], and a commit over slow disks and
/// links.
pub(crate) const MAX_AHEAD_MS: u64 = 2_000;
/// The most that the clock counts without an entry that says so.
const MAX_UNLOGGED: Duration = Duration::from_millis(500);
/// A leader that has led for so many times as much as it has not logged should log its time: however often leaders change, no
/// larger share of the time is lost.
const SHARE: u32 = 32;

/// The clock of one leadership.
#[derive(Debug)]
pub(crate) struct ClusterClock {
    began: Duration,
    now: Duration,
    /// The last stamp, committed or not, of which it is not known that it is lost.
    stamped: Duration,
}

impl ClusterClock {
    /// Starts at the last time in the log, in milliseconds.
    pub(crate) fn start(at_ms: u64) -> Self {
        let now = Duration::from_millis(at_ms);
        Self { began: now, now, stamped: now }
    }

    /// The time in milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.now.as_millis()).expect("half a billion years are not over")
    }

    /// Advances by the real time `elapsed` since the last tick, within the rules above. `committed_ms` is the last time that an
    /// applied entry carries.
    pub(crate) fn tick(&mut self, elapsed: Duration, committed_ms: u64) {
        let bound = Duration::from_millis(committed_ms.saturating_add(MAX_AHEAD_MS));
        self.now = self.now.max(bound.min(self.now + elapsed));
    }

    /// The stamp of the next entry, in milliseconds.
    pub(crate) fn stamp_ms(&mut self) -> u64 {
        self.stamped = self.now;
        self.now_ms()
    }

    /// No entry is on its way: what was stamped after the last applied time, in milliseconds, is lost.
    pub(crate) fn none_in_flight(&mut self, applied_ms: u64) {
        self.stamped = self.stamped.min(Duration::from_millis(applied_ms));
    }

    /// Whether the time should be logged. Not while it stands still: so few such entries are in flight.
    pub(crate) fn should_be_logged(&self) -> bool {
        let led = self.now - self.began;
        self.now - self.stamped >= (led / SHARE).clamp(TICK, MAX_UNLOGGED)
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
            clock.tick(MS * 50 + MS / 2, 1_000);
        }
        assert_eq!(clock.now_ms(), 1_202);
    }

    #[test]
    fn a_stopped_leader_counts_little_of_the_gap() {
        let mut clock = ClusterClock::start(0);
        clock.tick(Duration::from_secs(3_600), 0);
        assert_eq!(clock.now_ms(), MAX_AHEAD_MS);
    }

    #[test]
    fn it_waits_for_commits_and_never_goes_back() {
        let mut clock = ClusterClock::start(0);
        for _ in 0..100 {
            clock.tick(MS * 50, 100);
        }
        assert_eq!(clock.now_ms(), 100 + MAX_AHEAD_MS);
        clock.tick(MS * 50, 50);
        assert_eq!(clock.now_ms(), 100 + MAX_AHEAD_MS);
        clock.tick(MS * 50, 2_000);
        assert_eq!(clock.now_ms(), 150 + MAX_AHEAD_MS);
        assert!(clock.should_be_logged());
        assert_eq!(clock.stamp_ms(), 150 + MAX_AHEAD_MS);
        assert!(!clock.should_be_logged());
    }

    /// Ticks for so long, and commits each entry so much later. How many entries there were, and the time at the end.
    fn lead(real: Duration, commit: Duration) -> (usize, u64) {
        let (mut clock, mut committed_ms, mut in_flight) = (ClusterClock::start(0), 0, VecDeque::new());
        let (mut at, mut count) = (Duration::ZERO, 0);
        while at < real {
            at += TICK;
            while in_flight.front().is_some_and(|(done, _)| *done <= at) {
                (_, committed_ms) = in_flight.pop_front().unwrap();
            }
            clock.tick(TICK, committed_ms);
            if clock.should_be_logged() {
                count += 1;
                in_flight.push_back((at + commit, clock.stamp_ms()));
            }
        }
        (count, clock.now_ms())
    }

    /// With flushes of 600 ms, time once advanced 750 ms in a minute.
    #[test]
    fn it_is_as_fast_as_real_time_with_slow_commits_and_in_proportion_slower_with_slower_ones() {
        let minute = Duration::from_secs(60);
        let (entries, now_ms) = lead(minute, MS * 1_450);
        assert_eq!(now_ms, 60_000);
        assert!(entries <= 200, "{entries} entries");
        let (entries, now_ms) = lead(minute, MS * 4_000);
        assert!((24_000..=31_000).contains(&now_ms), "{now_ms} ms");
        assert!(entries <= 200, "{entries} entries");
        // As without a quorum.
        let (entries, now_ms) = lead(minute, minute);
        assert_eq!(now_ms, MAX_AHEAD_MS);
        assert!(entries <= 45, "{entries} entries");
    }

    /// A cluster as the clock sees it: one leader after the other, whose entries are committed or lost, in real time.
    struct World {
        real: Duration,
        clock: ClusterClock,
        advanced: Duration,
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
                proposed: VecDeque::new(),
                applied_ms: 5_000,
                live: Vec::new(),
                excused: Duration::ZERO,
            }
        }

        fn advance(&mut self) {
            let before = self.clock.now;
            let elapsed = self.real - self.advanced;
            self.advanced = self.real;
            self.clock.tick(elapsed, self.applied_ms);
            let counted = self.clock.now - before;
            let bound = Duration::from_millis(self.applied_ms + MAX_AHEAD_MS);
            assert!(counted <= elapsed, "faster than real time");
            assert!(counted.is_zero() || self.clock.now <= bound, "too far ahead of what is committed");
            if self.clock.now >= bound {
                self.excused += elapsed - counted;
            } else {
                assert_eq!(counted, elapsed, "slower than real time for no reason");
            }
        }

        fn propose(&mut self) {
            self.advance();
            let at_ms = self.clock.stamp_ms();
            assert!(self.proposed.back().is_none_or(|(_, before)| *before <= at_ms), "backwards");
            self.proposed.push_back((self.real, at_ms));
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
                    if self.clock.should_be_logged() {
                        self.propose();
                    }
                }
                Step::Propose => self.propose(),
                Step::Commit(count) => self.commit(count),
                Step::Depose(survive) => {
                    let led = self.clock.now - self.clock.began;
                    let not_logged = self.clock.now - self.clock.stamped;
                    assert!(
                        not_logged < TICK.max(led / SHARE).min(MAX_UNLOGGED),
                        "{not_logged:?} of {led:?}"
                    );
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
