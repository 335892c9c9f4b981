//! Checkers: each looks for breaches of one law.
//!
//! ```text
//!  history ──▶ in the words of leases ──▶ log replayed on a model of the table ──▶ facts ──▶ one checker per law ──▶ verdict
//!                                     ──▶ calls by lease, bounds of the revision ──┘
//! ```
//! [`plain`] makes leases of the keys that were set over RESP.
//! [`log`] replays the agreed log once, and judges it by itself. [`answers`] compares every answer with it, and [`causes`]
//! every change with the calls that asked for it. [`exclusion`] and [`tokens`] also judge what clients were told alone, and
//! [`register`] judges nothing else: they do not depend on the product's log.

pub mod answers;
mod bounds;
pub mod causes;
pub mod clock;
pub mod exclusion;
pub mod facts;
mod found;
pub mod library;
mod log;
pub mod loop_lag;
pub mod mirror;
pub mod nodes;
pub mod plain;
pub mod queues;
pub mod register;
pub mod repeats;
mod tally;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
pub(crate) mod tests;
pub mod tokens;
pub mod transactions;

use serde::{Deserialize, Serialize};

use crate::check::facts::Facts;
pub use crate::check::found::{Breach, Found, Verdict};
use crate::check::plain::Plain;
use crate::history::{About, History};

/// One law: a name, as reports show it, and the function that looks for breaches.
pub struct Checker {
    /// Its name in reports: a few words with dashes.
    pub name: &'static str,
    /// The law, in one sentence for people.
    pub law: &'static str,
    /// Looks.
    pub check: fn(&Facts) -> Found,
}

/// The laws of every run, whatever is asked.
pub const ALWAYS: [&Checker; 10] = [
    &nodes::EQUAL_STATES,
    &nodes::ALL_SERVE,
    &nodes::NO_PANIC,
    &nodes::NOTHING_MALFORMED,
    &clock::CLUSTER_TIME,
    &loop_lag::LOOP_LAG,
    &tokens::TOKENS,
    &answers::NO_GRANT_LOST,
    &exclusion::EXCLUSION,
    &causes::NO_EARLY_END,
];
/// The laws of runs that make all calls, on many keys.
pub const OF_ALL_CALLS: [&Checker; 5] = [
    &causes::BOUNDED_END,
    &repeats::ONE_GRANT_PER_LEASE,
    &queues::QUEUE_ORDER,
    &queues::NO_LATE_WAITER,
    &answers::LINEARIZABLE_READS,
];
/// The laws of runs that set keys over RESP.
pub const OF_SETS: [&Checker; 1] = [&transactions::WHOLE_SETS];

/// What all checkers of a run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The worst of all laws.
    pub verdict: Verdict,
    /// What was run.
    pub about: About,
    /// Each law, the worst first.
    pub laws: Vec<Judged>,
}

/// What a checker found, and what that comes to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judged {
    /// The checker's name.
    pub name: String,
    /// The law, for people.
    pub law: String,
    /// What it comes to.
    pub verdict: Verdict,
    /// What was found.
    #[serde(flatten)]
    pub found: Found,
}

/// Lets each of `checkers` look at `history`.
pub fn judge(history: &History, checkers: &[&Checker]) -> Results {
    let plain = Plain::of(history);
    let facts = Facts::of(&plain);
    let judged = checkers.iter().map(|checker| {
        let found = (checker.check)(&facts);
        Judged { name: checker.name.to_owned(), law: checker.law.to_owned(), verdict: found.verdict(), found }
    });
    let mut laws: Vec<Judged> = judged.collect();
    laws.sort_by_key(|law| std::cmp::Reverse(law.verdict));
    let untold = if history.end.missing.is_empty() { Verdict::Valid } else { Verdict::Unknown };
    let verdict = laws.first().map_or(Verdict::Unknown, |worst| worst.verdict).max(untold);
    Results { verdict, about: history.about.clone(), laws }
}
