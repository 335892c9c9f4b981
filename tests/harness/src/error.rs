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
    Answer(#[from] crate::Failure),
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
