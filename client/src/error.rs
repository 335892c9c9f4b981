//! What may go wrong, in the words of a holder.

use std::time::Duration;

use ringfence_wire::{Blocker, EndReason, FieldError, LeaseId, Problem, ProblemKind};

/// Why a call did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for cannot be; nothing was sent. `field` says what is wrong: `ttl`, `keys[2]`, `urls[0]`.
    #[error("{}: {}", .0.field.as_deref().unwrap_or("the request"), .0.detail)]
    Invalid(FieldError),
    /// A try, and a key was not free.
    #[error("{}", held(.holders, *.waiters))]
    Held {
        /// Some of the live leases in the way; none where earlier waiters are.
        holders: Vec<Blocker>,
        /// How many wait in the longest of the queues.
        waiters: u64,
    },
    /// Waited in vain: the lease is not held, and its place in the queue is given up.
    #[error("not granted within {} ms", .waited.as_millis())]
    TimedOut {
        /// How long it was willing to wait.
        waited: Duration,
    },
    /// The lease has ended, or may have.
    #[error("the lease is lost: {0}")]
    Lost(Loss),
    /// No node could be reached, or none found a leader, for as long as the client is patient. Nothing was done.
    #[error("the cluster is not available: {why}")]
    Unavailable {
        /// What the last attempt came to.
        why: String,
    },
    /// It may or may not have been done, and no repeat was answered for as long as the client is patient. Of an acquire
    /// and of a release: the lease is being released in the background, for some time yet; if that fails, too, it ends
    /// with its time-to-live.
    #[error("the outcome is not known: {why}")]
    Unknown {
        /// The lease, where the call was about one.
        lease_id: Option<LeaseId>,
        /// What the last attempt came to.
        why: String,
    },
    /// The cluster understood, and will not. Nothing was done.
    #[error("{}", .0.detail)]
    Rejected(Box<Problem>),
    /// A watch cannot go on from where it was: the cluster does not keep so old events any more, or never had that
    /// revision. List the keys, and watch from the revision of the list.
    #[error("the events after revision {after} are not kept: {detail}")]
    HistoryGone {
        /// From where the watch was to go on.
        after: u64,
        /// What the node said.
        detail: String,
    },
}

/// Why a lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The cluster said that it has ended.
    #[error("it has ended: {}", reason(*.0))]
    Ended(EndReason),
    /// The cluster does not know it: it ended long ago.
    #[error("the cluster does not know it any more")]
    Forgotten,
    /// The time in which it surely lives ran out, and no renewal was confirmed. The cluster may still have it.
    #[error("no renewal was confirmed in time")]
    Unconfirmed,
    /// It was held for as long as [`max_hold`](crate::Lock::max_hold) allows.
    #[error("it was held for as long as it may be")]
    MaxHold,
}

impl Loss {
    /// What a refusal says of a lease, if it says that it is lost.
    pub(crate) fn of(problem: &Problem) -> Option<Self> {
        match (problem.kind, problem.reason) {
            (ProblemKind::LeaseGone, Some(reason)) => Some(Self::Ended(reason)),
            (ProblemKind::LeaseGone, None) | (ProblemKind::UnknownLease, _) => Some(Self::Forgotten),
            _ => None,
        }
    }
}

fn reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Released => "released",
        EndReason::Expired => "expired",
        EndReason::Revoked => "revoked by an operator",
        EndReason::Abandoned => "abandoned, as the connection was lost before the answer",
    }
}

fn held(holders: &[Blocker], waiters: u64) -> String {
    match holders.first() {
        Some(Blocker { key, token, holder, .. }) => {
            // Another client chose it: it must reach no terminal and no log as it is.
            let holder = holder.as_ref().map(|holder| format!(" by {}", holder.as_str().escape_debug()));
            format!("{key} is held{} with token {token}", holder.unwrap_or_default())
        }
        None => format!("{waiters} earlier waiters come first"),
    }
}

impl From<FieldError> for Error {
    fn from(error: FieldError) -> Self {
        Self::Invalid(error)
    }
}

impl Error {
    /// A refusal, in the words of a holder.
    pub(crate) fn refused(problem: Box<Problem>) -> Self {
        match Loss::of(&problem) {
            Some(loss) => Self::Lost(loss),
            None => Self::Rejected(problem),
        }
    }

    pub(crate) fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Invalid(FieldError::new(field, detail))
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{Holder, Key, Mode, Token};

    use super::*;

    #[test]
    fn what_another_client_calls_itself_is_no_more_than_a_word() {
        let blocker = Blocker {
            key: Key::new("a").unwrap(),
            token: Token(7),
            holder: Holder::new("Ä\u{1b}[2J\nme"),
            mode: Mode::Exclusive.name(),
            limit: None,
            expires_in_ms: 1,
        };
        let held = Error::Held { holders: vec![blocker], waiters: 0 };
        assert_eq!(held.to_string(), r"a is held by Ä\u{1b}[2J\nme with token 7");
    }
}
