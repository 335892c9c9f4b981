//! What a run comes to, in numbers.

use std::collections::BTreeSet;
use std::fmt;

use ringfence_laws::history::{Call, Conclusion, History, Invocation};
use ringfence_wire::{ProblemKind, Role};

use super::scene::REFUSED;
use crate::nemesis::UPGRADE;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    calls: usize,
    of_library: usize,
    failed: usize,
    unknown: usize,
    /// Acquires that were refused because too many wait.
    overloaded: usize,
    restarts: usize,
    /// Restarts after which nodes refused a command that only newer rules have.
    too_early: usize,
    installs: usize,
    elections: usize,
    /// The longest time in which no call of the library was answered.
    gap_us: u64,
}

impl Numbers {
    pub(super) fn of(history: &History) -> Self {
        let (calls, faults) = (&history.calls, &history.faults);
        let failed =
            |call: &&Call| matches!(call.conclusion, Conclusion::NotDone { .. } | Conclusion::Unknown { .. });
        let of_library = || calls.iter().filter(|call| call.is_of_library());
        let terms: BTreeSet<u64> = history
            .sights
            .iter()
            .filter(|sight| sight.role == Role::Leader)
            .map(|sight| sight.term)
            .collect();
        let ends = of_library().filter(|call| !failed(call)).map(|call| call.ended_us);
        let mut answered: Vec<u64> = of_library().map(|call| call.sent_us).take(1).chain(ends).collect();
        answered.sort_unstable();
        // After the last acquire, the load is over.
        let last = of_library()
            .filter(|call| matches!(call.invocation, Invocation::Acquire { .. }))
            .map(|call| call.sent_us)
            .max();
        let gaps = answered.windows(2).map(|pair| (pair[0], pair[1])).filter(|gap| Some(gap.0) < last);
        Self {
            calls: calls.len(),
            of_library: of_library().count(),
            failed: of_library().filter(failed).count(),
            unknown: calls.iter().filter(|call| !call.is_of_library()).filter(failed).count(),
            overloaded: calls.iter().filter(|call| is_overloaded(call)).count(),
            restarts: faults.iter().filter(|fault| fault.nemesis == UPGRADE).count(),
            too_early: faults.iter().filter(|fault| fault.what.contains(REFUSED)).count(),
            installs: faults.iter().filter(|fault| fault.what.contains("by a snapshot")).count(),
            elections: terms.len().saturating_sub(1),
            gap_us: gaps.map(|(from, to)| to - from).max().unwrap_or(0),
        }
    }

    /// Adds another run; the longest gap is that of either.
    pub(super) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.of_library += other.of_library;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.overloaded += other.overloaded;
        self.restarts += other.restarts;
        self.too_early += other.too_early;
        self.installs += other.installs;
        self.elections += other.elections;
        self.gap_us = self.gap_us.max(other.gap_us);
    }
}

fn is_overloaded(call: &Call) -> bool {
    matches!(call.conclusion, Conclusion::Refused { problem: ProblemKind::Overloaded, .. })
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls; {} of the client library, {} failed, longest gap {:.2} s; {} others failed; {} refused as overloaded; {} restarts, {} \
             followed by refusals of a command of newer rules, {} snapshots installed, {} elections",
            self.calls,
            self.of_library,
            self.failed,
            self.gap_us as f64 / 1e6,
            self.unknown,
            self.overloaded,
            self.restarts,
            self.too_early,
            self.installs,
            self.elections
        )
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::LeaseId;

    use super::*;

    fn call(node: Option<u64>, ended_us: u64, conclusion: Conclusion) -> Call {
        let (lease, keys) = (LeaseId::random(), Vec::new());
        let invocation = Invocation::Acquire { lease, keys, ttl_ms: 1_000, wait_ms: 0, keep_place: false };
        Call {
            id: 0,
            process: 0,
            node,
            batch: None,
            sent_us: ended_us - 90,
            ended_us,
            invocation,
            conclusion,
        }
    }

    #[test]
    fn a_gap_lasts_from_one_answer_of_the_library_to_the_next() {
        let failed = || Conclusion::NotDone { why: "no leader".to_owned() };
        let calls = vec![
            call(None, 100, Conclusion::Done),
            call(None, 300, failed()),
            call(Some(1), 310, Conclusion::Done),
            call(None, 500, Conclusion::Done),
            call(Some(2), 600, failed()),
            // It waited for longer than the load went on.
            Call { sent_us: 120, ..call(None, 5_000, Conclusion::Done) },
        ];
        let numbers = Numbers::of(&History { calls, ..History::default() });
        let expected =
            Numbers { calls: 6, of_library: 4, failed: 1, unknown: 1, gap_us: 400, ..Numbers::default() };
        assert_eq!(numbers, expected);
        let mut sum = expected.clone();
        sum.add(&Numbers { calls: 1, gap_us: 7, ..Numbers::default() });
        assert_eq!((sum.calls, sum.gap_us), (7, 400));
    }
}
