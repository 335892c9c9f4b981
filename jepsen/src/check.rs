//! Checkers: each looks for breaches of one law.
//!
//! ```text
//!  history ──▶ log replayed on a model of the table ──▶ facts ──▶ one checker per law ──▶ verdict
//!          ──▶ calls by lease, bounds of the revision ──┘
//! ```
//! [`log`] replays the agreed log once, and judges it by itself. [`answers`] compares every answer with it, and [`causes`]
//! every change with the calls that asked for it. [`exclusion`] and [`tokens`] also judge what clients were told alone, and
//! [`register`] judges nothing else: they do not depend on the product's log.

pub mod answers;
mod bounds;
pub mod causes;
pub mod clock;
pub mod exclusion;
pub mod facts;
mod log;
pub mod loop_lag;
pub mod mirror;
pub mod nodes;
pub mod queues;
pub mod register;
pub mod repeats;
mod tally;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests;
pub mod tokens;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::check::facts::Facts;
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

/// What a checker found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// How much of each kind it has seen, by a few words: what it says rests on that.
    pub counts: BTreeMap<String, u64>,
    /// Breaches, the worst first.
    pub breaches: Vec<Breach>,
    /// Why it cannot tell, in plain words: nothing of what it is about happened, or too much to decide.
    pub undecided: Option<String>,
}

/// One breach of a law.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Breach {
    /// In plain words, with tokens, keys and times.
    pub what: String,
    /// The calls that show it, by id.
    pub calls: Vec<u64>,
}

/// What a run comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every checker has seen what it is about, and no breach.
    Valid,
    /// There is no breach, but not all could be told.
    Unknown,
    /// There is a breach.
    Invalid,
}

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
    let facts = Facts::of(history);
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

impl Found {
    /// What it comes to.
    pub fn verdict(&self) -> Verdict {
        match (self.breaches.is_empty(), &self.undecided) {
            (false, _) => Verdict::Invalid,
            (true, Some(_)) => Verdict::Unknown,
            (true, None) => Verdict::Valid,
        }
    }

    /// Counts one more of `what`.
    pub fn saw(&mut self, what: &str) {
        match self.counts.get_mut(what) {
            Some(count) => *count += 1,
            None => drop(self.counts.insert(what.to_owned(), 1)),
        }
    }

    /// Notes a breach.
    pub fn breach(&mut self, what: impl Into<String>, calls: impl IntoIterator<Item = u64>) {
        self.breaches.push(Breach { what: what.into(), calls: calls.into_iter().collect() });
    }

    /// Cannot tell unless one of these was counted.
    fn needs(&mut self, counts: &[&str], otherwise: &str) {
        if self.undecided.is_none() && counts.iter().all(|what| !self.counts.contains_key(*what)) {
            self.undecided = Some(otherwise.to_owned());
        }
    }
}
