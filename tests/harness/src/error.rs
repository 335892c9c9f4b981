use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use ringfence_wire::Problem;

/// Why the harness cannot do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What it said.
        error: io::Error,
    },
    /// This machine lacks what is asked for.
    #[error("{0}")]
    Unavailable(String),
    /// A node is not in the state that the call is for.
    #[error("node {id} {why}")]
    State {
        /// The node.
        id: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// A node ended by itself.
    #[error("node {id} has ended ({status}); the end of its log:\n{log}")]
    Ended {
        /// The node.
        id: u64,
        /// How.
        status: ExitStatus,
        /// Its last lines.
        log: String,
    },
    /// A node answered against the contract.
    #[error(transparent)]
    Answer(#[from] crate::Failure),
    /// A node refused a call that had to succeed.
    #[error("refused: {}", .0.detail)]
    Refused(Box<Problem>),
    /// Something did not come about.
    #[error("not within {within:?}: {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        within: Duration,
    },
}

impl Error {
    /// For `map_err`: the error of having tried `what`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }
}
