//! What must hold of nodes: equal states, no panic, all back in the end; and of answers: that they keep to the contract.

use std::collections::BTreeMap;

use super::{Checker, Found};
use crate::history::{Came, History};

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

fn equal_states(history: &History) -> Found {
    let mut found = Found::default();
    let mut by_index: BTreeMap<u64, Vec<(u64, &str)>> = BTreeMap::new();
    for node in &history.end.nodes {
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

fn all_serve(history: &History) -> Found {
    let mut found = Found::default();
    for node in &history.end.nodes {
        found.saw("nodes");
        if !node.serves {
            found.breach(format!("Node {} does not serve, though all is healed.", node.id), []);
        }
    }
    all_are_known(history, &mut found);
    found
}

fn no_panic(history: &History) -> Found {
    let mut found = Found::default();
    for node in &history.end.nodes {
        found.saw("nodes");
        for line in &node.panics {
            found.breach(format!("Node {} panicked: {line}", node.id), []);
        }
    }
    all_are_known(history, &mut found);
    found
}

fn nothing_malformed(history: &History) -> Found {
    let mut found = Found::default();
    for call in &history.calls {
        found.saw("answers");
        if let Came::Malformed { why } = &call.came {
            found.breach(format!("Call {} was answered against the contract: {why}", call.id), [call.id]);
        }
    }
    if history.calls.is_empty() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;
    use crate::check::scene::{call, look, numbered};
    use crate::history::NodeEnd;

    fn node(id: u64, states: &[(u64, &str)]) -> NodeEnd {
        let states = states.iter().map(|&(index, checksum)| (index, checksum.to_owned())).collect();
        NodeEnd { id, serves: true, panics: Vec::new(), states }
    }

    fn history(nodes: Vec<NodeEnd>) -> History {
        let mut history = History::default();
        history.about.nodes = 3;
        history.end.nodes = nodes;
        history
    }

    #[test]
    fn states_after_the_same_entry_must_be_the_same() {
        let equal = history(vec![node(1, &[(5, "a"), (9, "b")]), node(2, &[(9, "b")]), node(3, &[(5, "a")])]);
        let found = equal_states(&equal);
        assert_eq!((found.verdict(), found.counts.values().sum::<u64>()), (Verdict::Valid, 2));
        let differ =
            history(vec![node(1, &[(5, "a"), (9, "b")]), node(2, &[(9, "b")]), node(3, &[(5, "c")])]);
        let found = equal_states(&differ);
        assert!(found.breaches[0].what.contains("After entry 5"), "{found:?}");
        let apart = history(vec![node(1, &[(5, "a")]), node(2, &[(9, "b")]), node(3, &[])]);
        assert_eq!(equal_states(&apart).verdict(), Verdict::Unknown);
    }

    #[test]
    fn every_node_must_serve_and_none_may_have_panicked() {
        let mut run = history((1..=3).map(|id| node(id, &[])).collect());
        assert_eq!(all_serve(&run).verdict(), Verdict::Valid);
        assert_eq!(no_panic(&run).verdict(), Verdict::Valid);
        run.end.nodes[1].serves = false;
        run.end.nodes[2].panics.push("panicked at raft/src/node.rs:7".to_owned());
        assert!(all_serve(&run).breaches[0].what.contains("Node 2"));
        assert!(no_panic(&run).breaches[0].what.contains("Node 3 panicked: panicked at raft"));
        run.end.nodes = vec![node(1, &[]), node(2, &[])];
        assert_eq!(all_serve(&run).verdict(), Verdict::Unknown, "nobody knows of node 3");
        assert_eq!(no_panic(&run).verdict(), Verdict::Unknown);
    }

    #[test]
    fn an_answer_against_the_contract_is_found() {
        assert_eq!(nothing_malformed(&History::default()).verdict(), Verdict::Unknown);
        let mut run = numbered([call(0, 1, look(1), Came::Done)]);
        assert_eq!(nothing_malformed(&run).verdict(), Verdict::Valid);
        run.calls[0].came = Came::Malformed { why: "status 418".to_owned() };
        assert_eq!(nothing_malformed(&run).breaches[0].calls, [0]);
    }
}
