//! Everything of a node runs on one thread: a long step of it holds up heartbeats, renewals and the whole queue.
//!
//! A node counts how long what was due had to wait. What a fault of its process, disk or clock held up tells nothing.

use std::collections::BTreeMap;

use super::facts::{Facts, at};
use super::{Checker, Found};
use crate::history::{Fault, History, LagSight};

/// No step of a node takes long.
pub const LOOP_LAG: Checker = Checker {
    name: "loop-lag",
    law: "Nothing that is due on a node's thread waits for a second, unless its process, disk or clock was held up.",
    check,
};

/// How long something may wait, in milliseconds: a bound of the node's own counters. Debug builds on two cores with a load of
/// 11 stayed below 250 ms.
const BOUND_MS: u64 = 1_000;
/// Faults that hold up no process, disk or clock: of the network, and those that ask for nothing extraordinary.
pub const HARMLESS: [&str; 4] = ["partition", "slow-links", "half-open", "transfer"];
/// Among the counts: the largest bound of the node's counters that was passed, in milliseconds.
pub const LONGEST: &str = "ms that the longest wait on a node's thread took, at least";
/// So long after a fault a node may still do what was held up, or start.
const AFTER_US: u64 = 3_000_000;

fn check(facts: &Facts) -> Found {
    let history = facts.history;
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

fn holds_up(fault: &Fault) -> bool {
    !HARMLESS.contains(&fault.nemesis.as_str())
}
