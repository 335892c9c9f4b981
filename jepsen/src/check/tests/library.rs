use super::scene::{acquire, call, granted, look, numbered, read, unknown};
use super::*;

fn of_library(call: Call) -> Call {
    Call { node: None, ..call }
}

fn refused(problem: ProblemKind) -> Call {
    of_library(call(0, 1, acquire(1), Came::Refused { problem, reason: None }))
}

#[test]
fn a_call_of_the_library_fails_if_its_outcome_is_unknown_or_its_lease_is_lost() {
    let fine = [
        of_library(call(0, 1, acquire(1), granted(1, 1, 1))),
        refused(ProblemKind::Held),
        refused(ProblemKind::WaitTimeout),
        refused(ProblemKind::Overloaded),
    ];
    let found = judge(&LIBRARY, &numbered(fine.clone()));
    assert_eq!((found.verdict(), found.counts["calls of the client library"]), (Verdict::Valid, 4));
    let not_done = Came::NotDone { why: "no leader".to_owned() };
    for failed in [
        unknown(fine[0].clone()),
        Call { came: not_done, ..fine[0].clone() },
        refused(ProblemKind::LeaseGone),
        refused(ProblemKind::UnknownLease),
    ] {
        let found = judge(&LIBRARY, &numbered(fine.iter().cloned().chain([failed])));
        assert_eq!(found.breaches.len(), 1, "{found:?}");
    }
}

#[test]
fn other_calls_may_fail() {
    let others = [unknown(call(0, 1, look(1), Came::Done)), of_library(unknown(read(0, 1, 1, 0)))];
    assert_eq!(judge(&LIBRARY, &numbered(others)).verdict(), Verdict::Unknown);
}
