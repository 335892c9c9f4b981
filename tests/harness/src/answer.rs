//! The outcomes of a call.

use ringfence_wire::{Grant, Problem, ProblemKind, Waiting};
use serde::Deserialize;

use crate::error::{Error, Failure, Fate};

/// A definite answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply<T> {
    /// A 2xx.
    Done {
        /// The HTTP status.
        status: u16,
        /// The body.
        body: T,
    },
    /// A 4xx: the cluster refused. Nothing was done.
    Refused(Box<Problem>),
}

/// The result of a typed call.
pub type Called<T> = Result<Reply<T>, Failure>;

/// The success of an acquire.
#[derive(Clone, Debug, PartialEq)]
pub enum Acquired {
    /// 201: granted now.
    Granted(Grant),
    /// 200: granted before.
    Standing(Grant),
    /// 202: it waits in the queue.
    Waiting(Waiting),
}

/// A lease as its owner sees it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum LeaseView {
    /// It is granted.
    Granted(Box<Grant>),
    /// It waits.
    Waiting(Waiting),
}

impl Acquired {
    /// The grant, if there is one.
    pub fn grant(self) -> Option<Grant> {
        match self {
            Self::Granted(grant) | Self::Standing(grant) => Some(grant),
            Self::Waiting(_) => None,
        }
    }
}

impl<T> Reply<T> {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Done { status, .. } => *status,
            Self::Refused(problem) => problem.status,
        }
    }
}

/// Extracts the expected answer; any other is an error or a panic.
pub trait Answered<T> {
    /// The body of a 2xx, or an error.
    fn success(self) -> Result<T, Error>;

    /// The body of a 2xx.
    ///
    /// # Panics
    /// On anything else.
    fn done(self) -> T;

    /// The problem of a refusal of this kind.
    ///
    /// # Panics
    /// On anything else.
    fn refused(self, kind: ProblemKind) -> Problem;

    /// The failure, where there is no definite answer.
    ///
    /// # Panics
    /// On a definite answer, and on one that breaks the contract.
    fn failed(self) -> Failure;
}

impl<T: std::fmt::Debug> Answered<T> for Called<T> {
    fn success(self) -> Result<T, Error> {
        match self? {
            Reply::Done { body, .. } => Ok(body),
            Reply::Refused(problem) => Err(Error::Refused(problem)),
        }
    }

    #[track_caller]
    fn done(self) -> T {
        match self {
            Ok(Reply::Done { body, .. }) => body,
            other => panic!("expected a success, not {other:?}"),
        }
    }

    #[track_caller]
    fn refused(self, kind: ProblemKind) -> Problem {
        match self {
            Ok(Reply::Refused(problem)) if problem.kind == kind => *problem,
            other => panic!("expected {kind:?}, not {other:?}"),
        }
    }

    #[track_caller]
    fn failed(self) -> Failure {
        match self {
            Err(failure) if failure.fate != Fate::Malformed => failure,
            other => panic!("expected no definite answer, not {other:?}"),
        }
    }
}
