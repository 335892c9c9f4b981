use std::io;
use std::time::Duration;

use ringfence_wire::Problem;

/// An error of the harness.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the system failed.
    #[error("{what}: {error}")]
    Io {
        /// The operation.
        what: String,
        /// Its error.
        error: io::Error,
    },
    /// This machine lacks something that is needed.
    #[error("{0}")]
    Unavailable(String),
    /// A program failed, or is in the wrong state.
    #[error("{0}")]
    Failed(String),
    /// A node gave no definite answer.
    #[error(transparent)]
    Answer(#[from] Failure),
    /// A node refused a call that had to succeed.
    #[error("refused: {}", .0.detail)]
    Refused(Box<Problem>),
    /// Something did not happen in time.
    #[error("not within {within:?}: {what}")]
    Timeout {
        /// The expected event.
        what: String,
        /// How long.
        within: Duration,
    },
}

/// The outcome of a call without a definite answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Certainly not done: nothing was sent, or the answer was 503 `unavailable`.
    NotDone,
    /// May or may not have been done, or be done later: no answer in time, a connection that broke after something was
    /// sent, 504 `indeterminate`, or a 5xx that is not ours.
    Unknown,
    /// The answer breaks the contract. No test may treat it as one of the others.
    Malformed,
}

/// A call without a definite answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{fate:?}: {why}")]
pub struct Failure {
    /// The outcome.
    pub fate: Fate,
    /// The node's answer, if it gave one.
    pub problem: Option<Box<Problem>>,
    /// The reason, for messages.
    pub why: String,
}

impl Failure {
    pub(crate) fn new(fate: Fate, why: impl Into<String>) -> Self {
        Self { fate, problem: None, why: why.into() }
    }

    /// The status of the node's answer, if that obeys the contract.
    pub fn status(&self) -> Option<u16> {
        self.problem.as_ref().map(|problem| problem.status)
    }
}

impl Error {
    /// For `map_err`: an I/O error of the operation `what`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }
}

/// The value, or `None` after printing what this machine lacks: then the test returns.
///
/// # Panics
/// On any other error.
pub fn available<T>(made: Result<T, Error>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(Error::Unavailable(why)) => {
            eprintln!("skipped: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
