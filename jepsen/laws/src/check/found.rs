//! What a checker found, and what that comes to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    pub(super) fn needs(&mut self, counts: &[&str], otherwise: &str) {
        if self.undecided.is_none() && counts.iter().all(|what| !self.counts.contains_key(*what)) {
            self.undecided = Some(otherwise.to_owned());
        }
    }
}
