//! The only place where what went wrong becomes a status and a [`Problem`].

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ringfence_lease::Refusal;
use ringfence_mutant::{Mutant, is};
use ringfence_raft::Unanswered;
use ringfence_wire::{EndReason, FieldError, LeaseId, Problem, ProblemKind};

/// A request that failed, as it will be answered. Boxed because it is large and rare.
#[derive(Clone, Debug)]
pub(crate) struct Failed(Box<Problem>);

impl Failed {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(kind, detail)))
    }

    /// The problem of an acquire carries its lease: where the server made the id, the client learns it here.
    pub(crate) fn of_lease(mut self, lease_id: LeaseId) -> Self {
        self.0.lease_id = Some(lease_id);
        self
    }

    /// The name of the problem, without `urn:ringfence:problem:`.
    pub(crate) fn name(&self) -> &'static str {
        let urn = self.0.kind.urn();
        urn.rsplit_once(':').map_or(urn, |(_, name)| name)
    }

    /// What happened this time, for a person.
    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    pub(crate) fn into_problem(self) -> Box<Problem> {
        self.0
    }
}

impl From<FieldError> for Failed {
    fn from(error: FieldError) -> Self {
        let mut failed = Self::new(ProblemKind::InvalidRequest, error.detail);
        failed.0.field = error.field;
        failed
    }
}

impl From<Unanswered> for Failed {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Unavailable => {
                Self::new(ProblemKind::Unavailable, "no leader took this in time: it was certainly not done")
            }
            Unanswered::Indeterminate if is(Mutant::UnknownAsNotDone) => Unanswered::Unavailable.into(),
            Unanswered::Indeterminate => Self::new(
                ProblemKind::Indeterminate,
                "this may have been done, or be done later: repeat it until the answer is definite",
            ),
        }
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Held { holders, waiters } => {
                let detail = if holders.is_empty() {
                    "an earlier waiter comes first on a key; with wait_ms this waits its turn"
                } else {
                    "a live lease holds a key; with wait_ms this waits its turn"
                };
                let mut failed = Self::new(ProblemKind::Held, detail);
                failed.0.holders = Some(holders);
                failed.0.waiters = Some(waiters);
                failed
            }
            Refusal::WaitTimeout => Self::new(
                ProblemKind::WaitTimeout,
                "the wait ended before the keys were free, and the place in the queue is gone: take a new lease_id",
            ),
            Refusal::Mismatch => Self::new(
                ProblemKind::LeaseMismatch,
                "this lease_id was used with other keys: take a new one",
            ),
            Refusal::NotGranted => {
                Self::new(ProblemKind::NotGranted, "the lease still waits: repeat its PUT instead")
            }
            Refusal::NotLive => Self::new(
                ProblemKind::NotLive,
                "no live lease holds this key with this token: nothing was ended",
            ),
            Refusal::Gone(reason) => {
                let mut failed = Self::new(ProblemKind::LeaseGone, gone(reason));
                failed.0.reason = Some(reason);
                failed
            }
            Refusal::Unknown => Self::new(
                ProblemKind::UnknownLease,
                "no lease with this id was ever seen, or it ended so long ago that it is forgotten",
            ),
            Refusal::Overloaded => {
                Self::new(ProblemKind::Overloaded, "the queue of a key is full: the lease has no place in it")
            }
        }
    }
}

fn gone(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Released => "the lease was released: take a new lease_id",
        EndReason::Expired => "the time-to-live ran out without a renewal: take a new lease_id",
        EndReason::Revoked => "an operator revoked the lease: take a new lease_id",
        EndReason::Abandoned => {
            "the connection of its PUT closed before the answer, and nobody asked again in time: take a new lease_id"
        }
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).expect("every problem has a status of HTTP");
        let body = serde_json::to_vec(&self.0).expect("problems have nothing that JSON cannot say");
        let content_type = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(CONTENT_TYPE, content_type)], body).into_response();
        if matches!(self.0.kind, ProblemKind::Overloaded | ProblemKind::Unavailable) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
