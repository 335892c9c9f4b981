//! The client library hides what a restart of single nodes does to calls: it asks another node, and repeats.
//!
//! The next rules, which only tests have, let few wait for a key. Until they are raised, no acquire may be refused for that: it
//! would be the answer of a node that decides by them too early.
//!
//! Where a majority is down or cut off for longer than the library repeats a call, nothing can hide that: then this is no law.

use ringfence_wire::ProblemKind;

use super::facts::{Facts, problem};
use super::{Checker, Found};
use crate::history::{Call, Conclusion};

/// The name of the fault from which on the next rules decide.
pub const RAISED: &str = "raised";

/// Every call of the client library succeeds, or finds a key that is not free, or too many who wait for it.
pub const LIBRARY: Checker = Checker {
    name: "library",
    law: "Every call of the client library is answered, and no lease of its is lost, while nodes are restarted one by one.",
    check,
};

fn check(facts: &Facts) -> Found {
    let mut found = Found::default();
    let raised = facts.history.faults.iter().find(|fault| fault.nemesis == RAISED);
    let raised_us = raised.map_or(u64::MAX, |fault| fault.from_us);
    for call in facts.history.calls.iter().filter(|call| call.is_of_library()) {
        found.saw("calls of the client library");
        let why = match (&call.conclusion, problem(call)) {
            (
                Conclusion::NotDone { why } | Conclusion::Unknown { why } | Conclusion::Malformed { why },
                _,
            ) => why.clone(),
            (_, Some(problem)) if !says_no(problem, call, raised_us) => format!("{problem:?}"),
            _ => continue,
        };
        found.breach(format!("Call {} of the client library failed: {why}", call.id), [call.id]);
    }
    found.needs(&["calls of the client library"], "nobody used the client library");
    found
}

/// Whether this refusal of an acquire is the decision of the cluster, rather than the loss of a lease.
fn says_no(problem: ProblemKind, call: &Call, raised_us: u64) -> bool {
    match problem {
        ProblemKind::Held | ProblemKind::WaitTimeout => true,
        ProblemKind::Overloaded => call.ended_us > raised_us,
        _ => false,
    }
}
