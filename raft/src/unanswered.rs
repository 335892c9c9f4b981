//! How long a request may take, and why it may have no answer, or was refused.

use std::time::Duration;

/// How long a proposal or a read may take, the search for a leader included.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the leader is looked up again, unless a change of it is noticed earlier.
pub(crate) const RETRY: Duration = Duration::from_millis(20);

/// Why there is no answer. Every path from the log to the client keeps the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Certainly not done: no leader took it.
    #[error("no leader took the request in time; it was certainly not done")]
    Unavailable,
    /// Certainly not done: the queue of the leader, or the link to it, is full, or the asker has its part of it.
    #[error("too many requests wait for the leader; this one was certainly not done")]
    Full,
    /// It may or may not have been done, or be done later.
    #[error("the request was passed on, but its outcome did not come back; it may or may not have been done")]
    Indeterminate,
}

/// The state of this node cannot be had, as the thread that has it hangs. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread that has the table hangs")]
pub struct Stuck;

impl From<Stuck> for Unanswered {
    fn from(Stuck: Stuck) -> Self {
        Self::Unavailable
    }
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// The leader refused it: nothing has changed.
    #[error("{0}")]
    Refused(String),
    /// There is no answer.
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
}
