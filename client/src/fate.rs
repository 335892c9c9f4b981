//! What an answer says of a call, and what follows from that: the only place where this is decided.
//!
//! ```text
//!  what came                                   fate         acquire, renew, release, read     cannot be repeated
//!  2xx that reads as it should                 done         the end                           the end
//!  4xx with a `type` of ours                   refused      the end                           the end
//!  503 `unavailable`; nothing was sent         not done     again, elsewhere                  again, elsewhere
//!  504, a 5xx or 4xx that is not ours,         unknown      the same again, elsewhere         the end: unknown
//!  a 2xx that is not ours, no whole answer
//! ```
//! **Unknown is sticky**: after it, *not done* of a repeat says nothing of the first; only *done* or *refused* ends it.
//! Patience is 5 s for all repeats of a call together, so a repeat never comes near the 60 s after which the cluster may
//! forget an id.

use std::time::Duration;

use ringfence_wire::{LeaseId, Problem, ProblemKind};

use crate::Error;
use crate::exchange::{Answer, Failure};

/// How long a call without a definite answer is repeated.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What has become of one attempt.
#[derive(Debug)]
pub(crate) enum Fate<T> {
    Done(T),
    Refused(Box<Problem>),
    NotDone(String),
    Unknown(String),
}

/// Sorts what came. `read` reads a 2xx.
pub(crate) fn fate<T>(
    came: Result<Answer, Failure>,
    read: impl FnOnce(&Answer) -> serde_json::Result<T>,
) -> Fate<T> {
    let answer = match came {
        Ok(answer) => answer,
        Err(Failure::NotSent(why)) => return Fate::NotDone(why),
        Err(Failure::Broken(why)) => return Fate::Unknown(why),
    };
    let status = answer.status.as_u16();
    if answer.status.is_success() {
        return read(&answer).map_or_else(
            |error| Fate::Unknown(format!("a {status} that cannot be read: {error}")),
            Fate::Done,
        );
    }
    match problem(&answer) {
        Some(problem) if status < 500 => Fate::Refused(problem),
        Some(problem) if problem.kind == ProblemKind::Unavailable => Fate::NotDone(problem.detail),
        Some(problem) => Fate::Unknown(problem.detail),
        None => Fate::Unknown(format!("a {status} that is not a node's")),
    }
}

/// The problem of an answer that is a node's own.
pub(crate) fn problem(answer: &Answer) -> Option<Box<Problem>> {
    let problem: Box<Problem> = serde_json::from_slice(&answer.body).ok()?;
    (problem.status == answer.status.as_u16()).then_some(problem)
}

/// What is known of a call so far.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// Whether an attempt may have been done.
    maybe_done: bool,
    last: String,
}

impl Doubt {
    pub(crate) fn not_done(&mut self, why: String) {
        self.last = why;
    }

    pub(crate) fn unknown(&mut self, why: String) {
        self.maybe_done = true;
        self.last = why;
    }

    pub(crate) fn maybe_done(&self) -> bool {
        self.maybe_done
    }

    /// What to say when there will be no definite answer.
    pub(crate) fn into_error(self, lease_id: Option<LeaseId>) -> Error {
        match self.maybe_done {
            true => Error::Unknown { lease_id, why: self.last },
            false => Error::Unavailable { why: self.last },
        }
    }
}
