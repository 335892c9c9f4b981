//! Everything of a node runs on one thread: a long step of it holds up heartbeats, renewals and the whole queue.
//!
//! A node counts how long what was due had to wait. What a fault of its process, disk or clock held up tells nothing.

use std::collections::BTreeMap;

use super::lives::at;
use super::{Checker, Found};
use crate::history::{Fault, History, LagSight};
use crate::nemesis::Nemesis;

/// No step of a node takes long.
pub const LOOP_LAG: Checker = Checker {
    name: "loop-lag",
    law: "Nothing that is due on a node's thread waits for a second, unless its process, disk or clock was held up.",
    check,
};

/// How long something may wait, in milliseconds: a bound of the node's own counters. Debug builds on two cores with a load of
/// 11 stayed below 250 ms.
const BOUND_MS: u64 = 1_000;
/// Among the counts: the largest bound of the node's counters that was passed, in milliseconds.
pub(crate) const LONGEST: &str = "ms that the longest wait on a node's thread took, at least";
/// So long after a fault a node may still do what was held up, or start.
const AFTER_US: u64 = 3_000_000;

fn check(history: &History) -> Found {
    let mut found = Found::default();
    let mut before: BTreeMap<u64, &LagSight> = BTreeMap::new();
    let mut longest_ms = 0;
    for sight in &history.lags {
        let Some(before) = before.insert(sight.node, sight) else { continue };
        // It was started again between the two.
        if sight.samples < before.samples || held_up(history, before, sight) {
            continue;
        }
        found.saw("times a node was looked at again");
        let more =
            |(ms, count): (&u64, &u64)| (*count > before.longer.get(ms).copied().unwrap_or(0)).then_some(*ms);
        let longer_ms = sight.longer.iter().filter_map(more).max().unwrap_or(0);
        longest_ms = longest_ms.max(longer_ms);
        if longer_ms >= BOUND_MS {
            let what = format!(
                "what was due on node {} waited for more than {longer_ms} ms, between {} and {}",
                sight.node,
                at(before.sent_us),
                at(sight.ended_us)
            );
            found.breach(what, []);
        }
    }
    if found.counts.is_empty() {
        found.undecided = Some("no node was looked at twice while nothing held it up".to_owned());
    }
    found.counts.insert(LONGEST.to_owned(), longest_ms);
    found
}

fn held_up(history: &History, before: &LagSight, sight: &LagSight) -> bool {
    let near = |fault: &Fault| fault.from_us < sight.ended_us && before.sent_us < fault.to_us + AFTER_US;
    let hits = |fault: &&Fault| near(fault) && fault.nodes.contains(&sight.node) && holds_up(fault);
    history.faults.iter().any(|fault| hits(&fault))
}

/// All but those of the network, and those that ask for nothing extraordinary.
fn holds_up(fault: &Fault) -> bool {
    let harmless = [Nemesis::Partition, Nemesis::SlowLinks, Nemesis::HalfOpen, Nemesis::Transfer];
    !harmless.iter().any(|nemesis| nemesis.to_string() == fault.nemesis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

    /// What node 2 counted at this second.
    fn sight(at_s: u64, samples: u64, longer: [u64; 2]) -> LagSight {
        let at_us = at_s * 1_000_000;
        let longer = BTreeMap::from([(250, longer[0]), (BOUND_MS, longer[1])]);
        LagSight { sent_us: at_us, ended_us: at_us + 1_000, node: 2, samples, longer }
    }

    fn seen(lags: Vec<LagSight>) -> History {
        History { lags, ..History::default() }
    }

    #[test]
    fn a_long_wait_is_found_and_a_shorter_one_is_told() {
        let quick = seen(vec![sight(1, 100, [0, 0]), sight(2, 200, [1, 0]), sight(3, 300, [1, 0])]);
        let found = check(&quick);
        assert_eq!((found.verdict(), found.counts.values().max()), (Verdict::Valid, Some(&250)));
        let slow = seen(vec![sight(1, 100, [0, 0]), sight(3, 101, [1, 1])]);
        let found = check(&slow);
        assert!(found.breaches[0].what.contains("node 2 waited for more than 1000 ms"), "{found:?}");
    }

    #[test]
    fn what_was_held_up_or_started_again_tells_nothing() {
        let mut slow = seen(vec![sight(1, 100, [0, 0]), sight(3, 101, [1, 1])]);
        let fault = |nemesis: Nemesis, node| Fault {
            nemesis: nemesis.to_string(),
            what: String::new(),
            nodes: vec![node],
            from_us: 1_500_000,
            to_us: 2_500_000,
        };
        slow.faults = vec![fault(Nemesis::Pause, 2)];
        assert_eq!(check(&slow).verdict(), Verdict::Unknown);
        slow.faults = vec![fault(Nemesis::Pause, 1), fault(Nemesis::Partition, 2)];
        assert_eq!(check(&slow).verdict(), Verdict::Invalid);
        let again = seen(vec![sight(1, 100, [0, 0]), sight(3, 50, [1, 1])]);
        assert_eq!(check(&again).verdict(), Verdict::Unknown);
        assert_eq!(check(&History::default()).verdict(), Verdict::Unknown);
    }
}
