use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of changes that the cluster has made: grants, ends, places taken in a queue. It only rises, and stays below
/// 2^53, so that every JSON reader represents it exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

/// The fencing token of a grant: the [`Revision`] that the grant made. A key's *fence*, the lowest token that may still
/// be live, is a `Token` too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u64);

impl Revision {
    /// The revision of the change after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A grant's token is its revision.
impl From<Revision> for Token {
    fn from(revision: Revision) -> Self {
        Self(revision.0)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
