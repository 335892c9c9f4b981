use super::scene::{acquire, call, granted, look, numbered, read, unknown};
use super::*;
use crate::check::library::RAISED;

fn of_library(call: Call) -> Call {
    Call { node: None, ..call }
}

fn refused(problem: ProblemKind) -> Call {
    of_library(call(0, 1, acquire(1), Conclusion::Refused { problem, reason: None }))
}

#[test]
fn a_call_of_the_library_fails_if_its_outcome_is_unknown_or_its_lease_is_lost() {
    let fine = [
        of_library(call(0, 1, acquire(1), granted(1, 1, 1))),
        refused(ProblemKind::Held),
        refused(ProblemKind::WaitTimeout),
    ];
    let found = judge(&LIBRARY, &numbered(fine.clone()));
    assert_eq!((found.verdict(), found.counts["calls of the client library"]), (Verdict::Valid, 3));
    let not_done = Conclusion::NotDone { why: "no leader".to_owned() };
    for failed in [
        unknown(fine[0].clone()),
        Call { conclusion: not_done, ..fine[0].clone() },
        refused(ProblemKind::LeaseGone),
        refused(ProblemKind::UnknownLease),
        refused(ProblemKind::Overloaded),
    ] {
        let found = judge(&LIBRARY, &numbered(fine.iter().cloned().chain([failed])));
        assert_eq!(found.breaches.len(), 1, "{found:?}");
    }
}

#[test]
fn few_may_wait_once_the_rules_are_raised_and_not_before() {
    let refused = Call { sent_us: 50, ended_us: 60, ..refused(ProblemKind::Overloaded) };
    for (raised_us, verdict) in [(55, Verdict::Valid), (70, Verdict::Invalid)] {
        let raised = Fault {
            nemesis: RAISED.to_owned(),
            what: String::new(),
            nodes: vec![1],
            from_us: raised_us,
            to_us: raised_us + 10,
        };
        let history = History { faults: vec![raised], ..numbered([refused.clone()]) };
        assert_eq!(judge(&LIBRARY, &history).verdict(), verdict);
    }
}

#[test]
fn other_calls_may_fail() {
    let others = [unknown(call(0, 1, look(1), Conclusion::Done)), of_library(unknown(read(0, 1, 1, 0)))];
    assert_eq!(judge(&LIBRARY, &numbered(others)).verdict(), Verdict::Unknown);
}
