//! Whether cluster time follows real time.
//!
//! The leader tells its clock again and again. From one answer to the next of the same leader, cluster time must go on by [`SHARE`]
//! of the real time between them, while leases are to end, if the leader commits, and is one of a quorum that is well. Another
//! leader may begin earlier than the last answer, by [`CHANGE`] and two commits. What is missing adds up, and what is more than was
//! due makes up for it.
//!
//! So while leases are to end and one leader answers after the other, cluster time goes on by 0.9 of real time, less that for each
//! change of leaders, and [`DEBT`] once. A lease that nobody renews ends within its time-to-live / 0.9 and the same.

use ringfence_raft::NodeId;

use super::super::World;

/// Of 1,000.
const SHARE: u64 = 900;
/// What a change of leaders may cost beside commits, in milliseconds: two ticks of a leader's clock.
const CHANGE: u64 = 100;
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

/// Cluster time, as leaders answer it.
#[derive(Default)]
pub(super) struct Time {
    last: Option<Answer>,
    /// What is missing.
    debt: u64,
}

/// What a leader has answered.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub(super) leader: NodeId,
    /// When.
    pub(super) now: u64,
    /// Its clock, in milliseconds.
    pub(super) at_ms: u64,
    /// Whether time is to go on.
    pub(super) is_due: bool,
    /// How long a commit may take.
    pub(super) commit: u64,
}

impl Time {
    /// Notes an answer, if all clocks run at `speed` thousandths of real time or faster. Returns what is missing, if that is too
    /// much.
    pub(super) fn goes_on(&mut self, answer: Answer, speed: u64) -> Option<u64> {
        let before = self.last.replace(answer)?;
        let passed = answer.now - before.now;
        let is_same = answer.leader == before.leader && passed <= GAP;
        let due = if is_same && answer.is_due { passed * SHARE / 1_000 * speed / 1_000 } else { 0 };
        let may_cost = CHANGE + 2 * before.commit.max(answer.commit);
        let lost = before.at_ms.saturating_sub(answer.at_ms).saturating_sub(may_cost);
        let owed = self.debt + due + if before.is_due { lost } else { 0 };
        self.debt = owed.saturating_sub(answer.at_ms.saturating_sub(before.at_ms));
        (self.debt > DEBT).then_some(self.debt)
    }

    /// What is missing, for people.
    pub(super) fn says(&self) -> String {
        let is_due = self.last.is_some_and(|answer| answer.is_due);
        format!("it lags by {} ms{}", self.debt, if is_due { "" } else { ", and may lag" })
    }
}

impl World {
    /// What a leader answers now.
    pub(super) fn answer_of(&self, leader: NodeId, at_ms: u64) -> Answer {
        let commit = self.flush.1 + 2 * self.network.latency().most;
        Answer { leader, now: self.now, at_ms, is_due: self.is_time_due(leader), commit }
    }

    /// Whether time is to go on while `node` leads.
    fn is_time_due(&self, node: NodeId) -> bool {
        let Some(machine) = self.machines.get(&node) else { return false };
        let ends_something = machine.status().is_some_and(|status| status.live_leases + status.waiters > 0);
        let quorum = self.alive.health.quorum_with(node, &self.alive.voters);
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

    fn answer(leader: NodeId, now: u64, at_ms: u64) -> Answer {
        Answer { leader, now, at_ms, is_due: true, commit: 20 }
    }

    #[test]
    fn time_that_stands_still_is_found_and_time_that_is_slow_for_a_moment_is_not() {
        let mut time = Time::default();
        for second in 0..100 {
            assert_eq!(time.goes_on(answer(1, second * 1_000, second * 900), 1_000), None);
        }
        let found = (100..110).find_map(|second| time.goes_on(answer(1, second * 1_000, 90_000), 1_000));
        assert!(found.is_some_and(|debt| debt > DEBT), "{found:?}");
    }

    #[test]
    fn a_new_leader_may_begin_a_little_earlier_and_the_time_between_leaders_is_not_judged() {
        let play = |lost: u64| {
            let (mut time, mut at_ms) = (Time::default(), 100_000);
            (0..400).find_map(|step| {
                at_ms = if step % 4 == 0 { at_ms - lost } else { at_ms + 901 };
                // Within GAP of each other, so that it is the change that counts.
                time.goes_on(answer(step / 4, step * 1_000 + step / 4 * 400, at_ms), 1_000)
            })
        };
        assert_eq!(play(CHANGE + 40), None);
        assert!(play(CHANGE + 240).is_some());
    }
}
