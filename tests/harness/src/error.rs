use std::io;
use std::time::Duration;

use ringfence_wire::Problem;

/// An error of the harness.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// Its error.
        error: io::Error,
    },
    /// This machine lacks what is needed.
    #[error("{0}")]
    Unavailable(String),
    /// A program failed, or is not in the state that the call is for.
    #[error("{0}")]
    Failed(String),
    /// A node gave no definite answer.
    #[error(transparent)]
    Answer(#[from] crate::Failure),
    /// A node refused a call that had to succeed.
    #[error("refused: {}", .0.detail)]
    Refused(Box<Problem>),
    /// Something did not happen in time.
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

/// What this machine has; prints what it lacks otherwise. A test that needs it returns then.
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
