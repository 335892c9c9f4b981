//! Whether cluster time follows real time.
//!
//! The leader tells its clock again and again. From one answer to the next, cluster time must go on by [`SHARE`] of the real
//! time between them, while leases are to end, if the leader commits, and is one of a quorum that is well. A leader may begin
//! earlier than the one before it ended, by [`CHANGE`]. What is missing adds up, and what is more than was due makes up for it.
//!
//! So over any time in which leases are to end and some leader commits, cluster time goes on by 0.9 of it, less [`CHANGE`] for
//! each change of leaders and [`DEBT`]. A lease that nobody renews ends within its time-to-live / 0.9 and the same.

use ringfence_raft::NodeId;

use super::super::World;

/// Of 1,000.
const SHARE: u64 = 900;
/// Milliseconds.
const CHANGE: u64 = 1_500;
/// Milliseconds.
const DEBT: u64 = 5_000;
/// Between two answers, at most, if nothing was wrong between them; milliseconds.
const GAP: u64 = 1_500;
/// For how long a quorum must be well, in milliseconds.
const SETTLED: u64 = 3_000;
/// The longest flush, way of a message, and wait of an entry with which time is not to lag, in milliseconds.
const FLUSH: u64 = 600;
const ONE_WAY: u64 = 125;
const WAIT: u64 = 2_000;

/// Cluster time, as leaders told it.
#[derive(Default)]
pub(super) struct Time {
    /// When the last answer came, what it was, and whether time was to go on then.
    last: Option<(u64, u64, bool)>,
    /// What is missing.
    debt: u64,
}

impl Time {
    /// Notes that it was said to be `at_ms` at `now`, by leaders whose clocks run at `speed` thousandths of real time or faster.
    /// Returns what is missing, if that is too much.
    pub(super) fn goes_on(&mut self, now: u64, at_ms: u64, is_due: bool, speed: u64) -> Option<u64> {
        let (before, before_ms, was_due) = self.last.replace((now, at_ms, is_due))?;
        let passed = now - before;
        let due = if is_due && passed <= GAP { passed * SHARE / 1_000 * speed / 1_000 } else { 0 };
        let lost = before_ms.saturating_sub(at_ms).saturating_sub(CHANGE);
        let owed = self.debt + due + if was_due { lost } else { 0 };
        self.debt = owed.saturating_sub(at_ms.saturating_sub(before_ms));
        (self.debt > DEBT).then_some(self.debt)
    }

    /// What is missing, for people.
    pub(super) fn told(&self) -> String {
        let is_due = self.last.is_some_and(|(.., is_due)| is_due);
        format!("it lags by {} ms{}", self.debt, if is_due { "" } else { ", and may lag" })
    }
}

impl World {
    /// Whether time is to go on while `node` leads.
    pub(super) fn is_time_due(&self, node: NodeId) -> bool {
        let Some(machine) = self.machines.get(&node) else { return false };
        let ends_something = machine.status().is_some_and(|status| status.live_leases + status.waiters > 0);
        let quorum = self.alive.health.quorum_with(node, &self.voters);
        let is_near = self.network.latency().most <= ONE_WAY && self.flush.1 <= FLUSH;
        ends_something
            && is_near
            && machine.waits_ms() <= WAIT
            && quorum.is_some_and(|quorum| self.now.saturating_sub(quorum.since) > SETTLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_stands_still_is_found_and_time_that_is_slow_for_a_moment_is_not() {
        let mut time = Time::default();
        for second in 0..100 {
            assert_eq!(time.goes_on(second * 1_000, second * 900, true, 1_000), None);
        }
        let found = (100..110).find_map(|second| time.goes_on(second * 1_000, 90_000, true, 1_000));
        assert!(found.is_some_and(|debt| debt > DEBT), "{found:?}");
    }

    #[test]
    fn a_new_leader_may_begin_a_little_earlier_and_a_gap_is_not_judged() {
        let play = |lost: u64| {
            let (mut time, mut at_ms) = (Time::default(), 100_000);
            (0..400).find_map(|step| {
                at_ms = if step % 4 == 0 { at_ms - lost } else { at_ms + 950 };
                // Between leaders, there is no answer for a while.
                time.goes_on(step * 1_000 + step / 4 * 2_000, at_ms, true, 1_000)
            })
        };
        assert_eq!(play(CHANGE), None);
        assert!(play(CHANGE + 200).is_some());
    }
}
