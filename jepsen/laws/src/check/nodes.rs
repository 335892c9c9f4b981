//! What must hold of nodes: equal states, no panic, all back in the end; and of answers: that they keep to the contract.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::{Checker, Found};
use crate::history::{Conclusion, History};

/// Nodes that applied the same entries have the same state, to the bit.
pub const EQUAL_STATES: Checker = Checker {
    name: "equal-states",
    law: "Nodes that have applied the same entries of the log have the same state.",
    check: equal_states,
};

/// Every node is back and serves when all is healed.
pub const ALL_SERVE: Checker = Checker {
    name: "all-serve",
    law: "When all is healed, every node is ready and serves a write through itself.",
    check: all_serve,
};

/// No log tells of a panic.
pub const NO_PANIC: Checker =
    Checker { name: "no-panic", law: "No node's log tells of a panic.", check: no_panic };

/// All answers keep to the contract.
pub const NOTHING_MALFORMED: Checker = Checker {
    name: "nothing-malformed",
    law: "Every answer is one that the contract knows for that call.",
    check: nothing_malformed,
};

fn equal_states(facts: &Facts) -> Found {
    let mut found = Found::default();
    let mut by_index: BTreeMap<u64, Vec<(u64, &str)>> = BTreeMap::new();
    for node in &facts.history.end.nodes {
        for (&index, checksum) in &node.states {
            by_index.entry(index).or_default().push((node.id, checksum));
        }
    }
    by_index.retain(|_, states| states.len() > 1);
    for (index, states) in &by_index {
        found.saw("entries after which states were compared");
        if states.iter().any(|(_, checksum)| *checksum != states[0].1) {
            let each: Vec<String> =
                states.iter().map(|(node, checksum)| format!("node {node} has {checksum}")).collect();
            found.breach(format!("After entry {index} the states differ: {}.", each.join(", ")), []);
        }
    }
    if by_index.is_empty() {
        found.undecided = Some("no entry is known after which two nodes tell their state".to_owned());
    }
    found
}

fn all_serve(facts: &Facts) -> Found {
    let mut found = Found::default();
    for node in &facts.history.end.nodes {
        found.saw("nodes");
        if !node.serves {
            found.breach(format!("Node {} does not serve, though all is healed.", node.id), []);
        }
    }
    all_are_known(facts.history, &mut found);
    found
}

fn no_panic(facts: &Facts) -> Found {
    let mut found = Found::default();
    for node in &facts.history.end.nodes {
        found.saw("nodes");
        for line in &node.panics {
            found.breach(format!("Node {} panicked: {line}", node.id), []);
        }
    }
    all_are_known(facts.history, &mut found);
    found
}

fn nothing_malformed(facts: &Facts) -> Found {
    let mut found = Found::default();
    for call in &facts.history.calls {
        found.saw("answers");
        if let Conclusion::Malformed { why } = &call.conclusion {
            found.breach(format!("Call {} was answered against the contract: {why}", call.id), [call.id]);
        }
    }
    if facts.history.calls.is_empty() {
        found.undecided = Some("nothing was asked".to_owned());
    }
    found
}

/// A node of which nothing is known may have done anything.
fn all_are_known(history: &History, found: &mut Found) {
    let known = history.end.nodes.len() as u64;
    if known == 0 || known < history.about.nodes {
        found.undecided = Some(format!("of {} nodes {known} are known in the end", history.about.nodes));
    }
}
