use super::*;

/// What node 2 counted at this second.
fn sight(at_s: u64, samples: u64, longer: [u64; 2]) -> LagSight {
    let at_us = at_s * 1_000_000;
    let longer = BTreeMap::from([(250, longer[0]), (1_000, longer[1])]);
    LagSight { sent_us: at_us, ended_us: at_us + 1_000, node: 2, samples, longer }
}

fn seen(lags: Vec<LagSight>) -> History {
    History { lags, ..History::default() }
}

#[test]
fn a_long_wait_is_found_and_a_shorter_one_is_told() {
    let quick = seen(vec![sight(1, 100, [0, 0]), sight(2, 200, [1, 0]), sight(3, 300, [1, 0])]);
    let found = judge(&LOOP_LAG, &quick);
    assert_eq!((found.verdict(), found.counts.values().max()), (Verdict::Valid, Some(&250)));
    let slow = seen(vec![sight(1, 100, [0, 0]), sight(3, 101, [1, 1])]);
    let found = judge(&LOOP_LAG, &slow);
    assert!(found.breaches[0].what.contains("node 2 waited for more than 1000 ms"), "{found:?}");
}

#[test]
fn what_was_held_up_or_started_again_tells_nothing() {
    let mut slow = seen(vec![sight(1, 100, [0, 0]), sight(3, 101, [1, 1])]);
    let fault = |nemesis: &str, node| Fault {
        nemesis: nemesis.to_string(),
        what: String::new(),
        nodes: vec![node],
        from_us: 1_500_000,
        to_us: 2_500_000,
    };
    slow.faults = vec![fault("pause", 2)];
    assert_eq!(judge(&LOOP_LAG, &slow).verdict(), Verdict::Unknown);
    slow.faults = vec![fault("pause", 1), fault("partition", 2)];
    assert_eq!(judge(&LOOP_LAG, &slow).verdict(), Verdict::Invalid);
    let again = seen(vec![sight(1, 100, [0, 0]), sight(3, 50, [1, 1])]);
    assert_eq!(judge(&LOOP_LAG, &again).verdict(), Verdict::Unknown);
    assert_eq!(judge(&LOOP_LAG, &History::default()).verdict(), Verdict::Unknown);
}
