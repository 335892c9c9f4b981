//! Errors, as a holder sees them.

use std::time::Duration;

use ringfence_wire::{Blocker, EndReason, FieldError, LeaseId, Problem, ProblemKind};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid; nothing was sent. `field` names what is wrong: `ttl`, `keys[2]`, `urls[0]`.
    #[error("{}: {}", .0.field.as_deref().unwrap_or("the request"), .0.detail)]
    Invalid(FieldError),
    /// A key was not free, and the acquire did not wait.
    #[error("{}", held(.holders, *.waiters))]
    Held {
        /// Some of the live leases in the way; none if only earlier waiters are.
        holders: Vec<Blocker>,
        /// The number of waiters in the longest of the queues.
        waiters: u64,
    },
    /// Not granted in time. The place in the queue is given up.
    #[error("not granted within {} ms", .waited.as_millis())]
    TimedOut {
        /// How long it was to wait.
        waited: Duration,
    },
    /// The lease has ended, or may have.
    #[error("the lease is lost: {0}")]
    Lost(Loss),
    /// No node was reachable, or none found a leader, for as long as the client retries. Or TLS failed twice with each of its
    /// URLs, and as often as it has addresses, for a reason that no repeat mends, such as an authority that the client does not trust: then
    /// soon. Nothing was done.
    #[error("the cluster is not available: {why}")]
    Unavailable {
        /// How the last attempt failed.
        why: String,
    },
    /// It may or may not have been done: no repeat was answered for as long as the client retries. After an acquire or a
    /// release the lease is being released in the background; if that fails, too, it ends with its time-to-live.
    #[error("the outcome is unknown: {why}")]
    Unknown {
        /// The lease, if the call was about one.
        lease_id: Option<LeaseId>,
        /// How the last attempt failed.
        why: String,
    },
    /// The cluster rejected the request. Nothing was done.
    #[error("{}", .0.detail)]
    Rejected(Box<Problem>),
    /// The client was [closed](crate::Client::close). Nothing was begun. What an acquire had begun by then is given back.
    #[error("the client is closed")]
    Closed,
    /// A watch cannot go on: the cluster no longer keeps events that old, or never had that revision. List the keys, and
    /// watch from the revision of the list.
    #[error("the changes after revision {after} are not available: {detail}")]
    HistoryGone {
        /// The revision after which the watch was to go on.
        after: u64,
        /// The node's explanation.
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
    /// The cluster has forgotten it: it ended long ago.
    #[error("the cluster no longer knows it")]
    Forgotten,
    /// The time in which it certainly lived passed without a renewal. The cluster may still have it.
    #[error("no renewal was confirmed in time")]
    Unconfirmed,
    /// A guard refused its token: a later one was there, and somebody else may work. [`Lease::stale`](crate::Lease::stale) says so.
    #[error("a guard refused its token")]
    Stale,
    /// It reached its [`max_hold`](crate::Lock::max_hold).
    #[error("it reached its maximum hold time")]
    MaxHold,
}

impl Loss {
    /// The loss that a refusal reports, if it reports one.
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
        EndReason::Abandoned => "abandoned, because the connection was lost before the response",
    }
}

fn held(holders: &[Blocker], waiters: u64) -> String {
    match holders.first() {
        Some(Blocker { key, token, holder, by, .. }) => {
            // Another client chose it: it must not reach terminals and logs unescaped.
            let holder = holder.as_ref().map(|holder| format!(" by {}", holder.as_str().escape_debug()));
            let by = by.as_ref().map(|by| format!(" (principal {by})")).unwrap_or_default();
            format!("{key} is held{}{by} with token {token}", holder.unwrap_or_default())
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
    /// The error of a refusal.
    pub(crate) fn refused(problem: Box<Problem>) -> Self {
        match Loss::of(&problem) {
            Some(loss) => Self::Lost(loss),
            None => Self::Rejected(problem),
        }
    }

    /// The error of a refusal after attempts that may have been done, of which a denial says nothing.
    pub(crate) fn denied(problem: Box<Problem>, lease_id: Option<LeaseId>) -> Self {
        if problem.kind.is_denial() {
            return Self::Unknown { lease_id, why: problem.detail };
        }
        Self::refused(problem)
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
    fn the_name_of_another_client_is_escaped() {
        let blocker = Blocker {
            key: Key::new("a").unwrap(),
            token: Token(7),
            holder: Holder::new("Ä\u{1b}[2J\nme"),
            mode: Mode::Exclusive.name(),
            limit: None,
            expires_in_ms: 1,
            by: None,
        };
        let held = Error::Held { holders: vec![blocker], waiters: 0 };
        assert_eq!(held.to_string(), r"a is held by Ä\u{1b}[2J\nme with token 7");
    }

    #[test]
    fn a_refusal_reports_a_loss_only_if_the_lease_is_lost() {
        for &kind in ProblemKind::ALL {
            let mut problem = Problem::new(kind, "why");
            problem.reason = (kind == ProblemKind::LeaseGone).then_some(EndReason::Expired);
            let expected = match kind {
                ProblemKind::LeaseGone => Some(Loss::Ended(EndReason::Expired)),
                ProblemKind::UnknownLease => Some(Loss::Forgotten),
                _ => None,
            };
            assert_eq!(Loss::of(&problem), expected, "{kind:?}");
        }
    }
}
