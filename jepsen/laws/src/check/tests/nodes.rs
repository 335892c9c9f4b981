use super::scene::{call, look, numbered};
use super::*;

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
    let found = judge(&EQUAL_STATES, &equal);
    assert_eq!((found.verdict(), found.counts.values().sum::<u64>()), (Verdict::Valid, 2));
    let differ = history(vec![node(1, &[(5, "a"), (9, "b")]), node(2, &[(9, "b")]), node(3, &[(5, "c")])]);
    let found = judge(&EQUAL_STATES, &differ);
    assert!(found.breaches[0].what.contains("After entry 5"), "{found:?}");
    let apart = history(vec![node(1, &[(5, "a")]), node(2, &[(9, "b")]), node(3, &[])]);
    assert_eq!(judge(&EQUAL_STATES, &apart).verdict(), Verdict::Unknown);
}

#[test]
fn every_node_must_serve_and_none_may_have_panicked() {
    let mut run = history((1..=3).map(|id| node(id, &[])).collect());
    assert_eq!(judge(&ALL_SERVE, &run).verdict(), Verdict::Valid);
    assert_eq!(judge(&NO_PANIC, &run).verdict(), Verdict::Valid);
    run.end.nodes[1].serves = false;
    run.end.nodes[2].panics.push("panicked at raft/src/node.rs:7".to_owned());
    assert!(judge(&ALL_SERVE, &run).breaches[0].what.contains("Node 2"));
    assert!(judge(&NO_PANIC, &run).breaches[0].what.contains("Node 3 panicked: panicked at raft"));
    run.end.nodes = vec![node(1, &[]), node(2, &[])];
    assert_eq!(judge(&ALL_SERVE, &run).verdict(), Verdict::Unknown, "nobody knows of node 3");
    assert_eq!(judge(&NO_PANIC, &run).verdict(), Verdict::Unknown);
}

#[test]
fn an_answer_against_the_contract_is_found() {
    assert_eq!(judge(&NOTHING_MALFORMED, &History::default()).verdict(), Verdict::Unknown);
    let mut run = numbered([call(0, 1, look(1), Conclusion::Done)]);
    assert_eq!(judge(&NOTHING_MALFORMED, &run).verdict(), Verdict::Valid);
    run.calls[0].conclusion = Conclusion::Malformed { why: "status 418".to_owned() };
    assert_eq!(judge(&NOTHING_MALFORMED, &run).breaches[0].calls, [0]);
}
