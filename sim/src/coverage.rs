//! What runs have exercised, and how often.

use std::collections::BTreeMap;
use std::fmt;

use ringfence_laws::history::{Call, Conclusion, Invocation};
use ringfence_wire::ProblemKind;

/// How often each thing happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<&'static str, u64>);

/// What must happen in any run.
const OF_ONE: [&str; 1] = ["grants"];
/// What must happen in many runs together. Without one of these, they say nothing about it.
const OF_MANY: [&str; 66] = [
    "a disk turned back",
    "acknowledgements held",
    "acknowledgements lost",
    "additions asked for",
    "calls that were not done",
    "calls with an unknown end",
    "channels held",
    "clocks slowed",
    "connections broken",
    "copies of all disks",
    "copies refused",
    "cuts of one direction",
    "disk errors",
    "disks of some turned back",
    "disks slowed",
    "disks wiped",
    "elections won",
    "flushes hung",
    "freezes",
    "grants",
    "joint configurations",
    "kills",
    "large messages held",
    "leaders cut off, their answers late",
    "leases of clients that hung up far from faults",
    "long flushes",
    "machines replaced",
    "machines that went on after they were replaced",
    "messages on narrow paths",
    "networks slowed",
    "nodes clogged",
    "nodes isolated",
    "nodes made deaf",
    "nodes removed while frozen",
    "paths narrowed",
    "power cuts",
    "programs replaced",
    "programs that did not know the rules",
    "raises asked for",
    "rules raised",
    "power cuts of all",
    "processes that ended by themselves",
    "refusals",
    "removals asked for",
    "renewals",
    "replacements of wiped disks",
    "second processes with a copy of a disk",
    "sets",
    "sets of several keys",
    "sets on a condition",
    "sets refused",
    "sets whose condition did not hold",
    "snapshots installed",
    "snapshots rotten",
    "snapshots torn",
    "stops between two disk operations",
    "stops in order",
    "tokens of values told",
    "torn writes",
    "transfers asked for",
    "truncations",
    "values deleted",
    "values given another time",
    "values looked at",
    "wall clocks wrong",
    "messages",
];

impl Coverage {
    /// Counts one more.
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// Counts some more.
    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// Counts calls by what they came to.
    pub(crate) fn count_calls(&mut self, calls: &[Call]) {
        use ProblemKind::LeaseGone;
        for call in calls {
            let name = match (&call.invocation, &call.conclusion) {
                (_, Conclusion::Unknown { .. }) => "calls with an unknown end",
                (_, Conclusion::NotDone { .. }) => "calls that were not done",
                (Invocation::Acquire { .. }, Conclusion::Granted { .. }) => "grants",
                (Invocation::Renew { .. }, Conclusion::Granted { .. }) => "renewals",
                (Invocation::Set { only_if: Some(_), .. }, Conclusion::Done) => "sets on a condition",
                (Invocation::Set { keys, .. }, Conclusion::Done) if keys.len() > 1 => "sets of several keys",
                (Invocation::Set { .. }, Conclusion::Done) => "sets",
                (
                    Invocation::Set { only_if: Some(_), .. },
                    Conclusion::Refused { problem: LeaseGone, .. },
                ) => "sets whose condition did not hold",
                (Invocation::Set { .. }, Conclusion::Refused { .. }) => "sets refused",
                (Invocation::EndIf { .. }, Conclusion::Done) => "values deleted",
                (Invocation::ExpireIf { .. }, Conclusion::Done) => "values given another time",
                (Invocation::Token { .. }, Conclusion::Token { .. }) => "tokens of values told",
                (Invocation::Get { .. }, Conclusion::Value { .. }) => "values looked at",
                (_, Conclusion::Refused { .. }) => "refusals",
                _ => "other answers",
            };
            self.count(name);
        }
    }

    /// Adds what another run has exercised.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, count)| self.add(what, *count));
    }

    /// What one run should have exercised, and did not.
    pub fn missing_of_one(&self) -> Vec<&'static str> {
        self.missing(&OF_ONE)
    }

    /// What many runs should have exercised, and did not.
    pub fn missing_of_many(&self) -> Vec<&'static str> {
        self.missing(&OF_MANY)
    }

    fn missing(&self, expected: &[&'static str]) -> Vec<&'static str> {
        expected.iter().copied().filter(|what| self.0.get(what).is_none_or(|count| *count == 0)).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| writeln!(f, "{count:>12} {what}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_happened_is_missing() {
        let mut coverage = Coverage::default();
        coverage.add("kills", 0);
        assert_eq!(coverage.missing_of_many().len(), OF_MANY.len());
        let mut other = Coverage::default();
        OF_MANY.iter().for_each(|what| other.count(what));
        coverage.merge(&other);
        assert!(coverage.missing_of_many().is_empty());
        assert!(Coverage::default().missing_of_one().contains(&"grants"));
    }
}
