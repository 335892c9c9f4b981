//! The only place that maps failures to [`Problem`]s, with their statuses and headers.

use std::borrow::Cow;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use ringfence_service::Failure;
use ringfence_wire::{EndReason, FieldError, Key, LeaseId, Problem, ProblemKind, Revision};

use crate::response::with_type;

/// Hexadecimal digits in a row that may be of a secret: a few less than a lease id has, and more than any number.
const SECRET_DIGITS: usize = 24;

/// A failed request. Boxed because it is large and rare.
#[derive(Clone, Debug)]
pub(crate) struct Failed(Box<Problem>);

impl Failed {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(kind, detail)))
    }

    /// Adds the lease of an acquire: if the server chose the id, the client learns it here.
    pub(crate) fn of_lease(mut self, lease_id: LeaseId) -> Self {
        self.0.lease_id = Some(lease_id);
        self
    }

    /// The name of the problem, without `urn:ringfence:problem:`.
    pub(crate) fn name(&self) -> &'static str {
        self.0.kind.name()
    }

    /// Whether it is for the rate at which its principal asks.
    pub(crate) fn is_rate_limited(&self) -> bool {
        self.0.kind == ProblemKind::RateLimited
    }

    /// Whether the request names a host that is none of this node.
    pub(crate) fn is_misdirected(&self) -> bool {
        self.0.kind == ProblemKind::Misdirected
    }

    /// Says no more of this node than whether it can answer.
    pub(crate) fn for_a_stranger(mut self) -> Self {
        if self.0.kind == ProblemKind::Unavailable {
            "this node hangs".clone_into(&mut self.0.detail);
        }
        self
    }

    /// Whether what was asked for may have been done, or may be done later.
    pub(crate) fn is_indeterminate(&self) -> bool {
        self.0.kind == ProblemKind::Indeterminate
    }

    /// What happened, for people.
    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    pub(crate) fn into_problem(self) -> Box<Problem> {
        self.0
    }
}

/// What the client of a plain connection to a port with TLS is told: a whole response.
pub fn requires_tls() -> Bytes {
    let failed = Failed::new(ProblemKind::InvalidRequest, "this port requires TLS: use an https URL");
    let body = serde_json::to_vec(&failed.0).expect("a problem is valid JSON");
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat().into()
}

impl From<FieldError> for Failed {
    fn from(error: FieldError) -> Self {
        let mut failed = Self::new(ProblemKind::InvalidRequest, without_secrets(&error.detail));
        failed.0.field = error.field.as_deref().map(without_secrets);
        failed
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        let mut failed = Self::new(failure.kind(), detail(&failure));
        failed.0.reason = failure.end_reason();
        match failure {
            Failure::Held { holders, waiters, .. } => {
                (failed.0.holders, failed.0.waiters) = (holders, Some(waiters));
            }
            Failure::HistoryGone { oldest, .. } => failed.0.oldest = Some(oldest),
            _ => {}
        }
        failed
    }
}

/// What a failure means to a client that speaks HTTP.
fn detail(failure: &Failure) -> Cow<'static, str> {
    Cow::Borrowed(match failure {
        Failure::Unauthenticated(why)
        | Failure::Forbidden(why)
        | Failure::RateLimited(why)
        | Failure::TooManyWatches(why)
        | Failure::OrderRefused(why) => return why.clone().into(),
        Failure::OverQuota { most, of } => {
            let detail =
                format!("the principal has all the {most} {of} that its limits allow: release some first");
            return detail.into();
        }
        Failure::NotYet { rules, since } => return not_yet(*rules, *since).into(),
        Failure::OfDatabase(key) => return of_database(key).into(),
        Failure::HistoryGone { after, oldest, last } => return history_gone(*after, *oldest, *last).into(),
        Failure::Held { by_waiters: true, .. } => {
            "an earlier waiter is first in the queue of a key: set wait_ms to wait"
        }
        Failure::Held { .. } => "another lease holds a key: set wait_ms to wait for it",
        Failure::WaitTimeout => {
            "the wait ended before the keys were free, and the lease left the queue: use a new lease_id"
        }
        Failure::Mismatch => "this lease_id was used with other keys: use a new one",
        Failure::NotGranted => "the lease is still in the queue: repeat its PUT instead",
        Failure::NotLive => "no live lease holds this key with this token: nothing was revoked",
        Failure::Gone(reason) => gone(*reason),
        Failure::Unknown => "no lease with this id exists, or it ended so long ago that it is forgotten",
        Failure::QueueFull => "the queue of a key is full: the lease was not queued",
        Failure::TableFull => {
            "the leases of the cluster take all the memory that they may: the lease was not granted"
        }
        Failure::NoRoom => {
            "the response became too large before this operation, which was not done: send fewer operations at once"
        }
        Failure::AfterUnanswered => "an earlier operation has no outcome, so this one was certainly not done",
        Failure::Changed => "its keys changed again and again while it was decided: it was not done",
        Failure::NotMirrored => "the mirror did not have the grant in time: it is taken back",
        Failure::NotStarted => {
            "this new cluster has no revision yet: if it does not start, the log of the leader says why"
        }
        Failure::NoLeader => "no leader accepted the request in time: it was not done",
        Failure::Crowded => "too many requests wait for the leader: this one was not done",
        Failure::CutOff { disk_hangs: true } => {
            "this node may learn late of a grant: its disk hangs. Wait at another node"
        }
        Failure::CutOff { disk_hangs: false } => {
            "this node may learn late of a grant: it does not keep up with a leader, or has none, and its log says why. Wait at \
             another node"
        }
        Failure::Blocked => {
            "the Raft thread of this node is blocked: the request was not done. Ask another node"
        }
        Failure::Indeterminate => {
            "the request may have been done, or may be done later: repeat it until the response is definite"
        }
        Failure::StoppedWaiting => {
            "this node stopped waiting, but the lease may still be granted: repeat the PUT, or DELETE"
        }
    })
}

fn not_yet(rules: u8, since: u8) -> String {
    format!(
        "this cluster uses rules {rules}, and this needs rules {since}: it was not done. Once all nodes run a version that \
         supports them, `ringfence cluster upgrade` raises the rules"
    )
}

fn history_gone(after: Revision, oldest: Revision, last: Revision) -> String {
    if after > last {
        return format!(
            "the cluster is at revision {last} and has not reached {after}: list the keys, then watch from there"
        );
    }
    format!(
        "this node has the changes after revision {oldest}, and {after} is before that or was skipped: list the keys, then watch \
         from there"
    )
}

fn of_database(key: &Key) -> String {
    without_secrets(&format!(
        "`{key}`: a key must not begin with `@db` and a number: such keys are acquired over the Redis protocol only"
    ))
}

/// `text`, which quotes a request, without what may be a lease id or a credential: clients log errors.
pub(crate) fn without_secrets(text: &str) -> String {
    let (mut without, mut rest) = (String::new(), text);
    while let Some(begin) = rest.find(|c: char| c.is_ascii_hexdigit()) {
        let (before, run) = rest.split_at(begin);
        let end = run.find(|c: char| !c.is_ascii_hexdigit() && c != '-').unwrap_or(run.len());
        let (run, after) = run.split_at(end);
        let digits = run.bytes().filter(u8::is_ascii_hexdigit).count();
        without += before;
        without += if digits < SECRET_DIGITS { run } else { "…" };
        rest = after;
    }
    without + rest
}

fn gone(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Released => "the lease was released: use a new lease_id",
        EndReason::Expired => "the lease expired without a renewal: use a new lease_id",
        EndReason::Revoked => "an operator revoked the lease: use a new lease_id",
        EndReason::Abandoned => {
            "the connection of the PUT closed before the response, and no other PUT arrived in time: use a new lease_id"
        }
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).expect("every problem has an HTTP status");
        let body = serde_json::to_vec(&self.0).expect("a problem is valid JSON");
        let mut response = with_type(status, "application/problem+json", body);
        if matches!(
            self.0.kind,
            ProblemKind::Overloaded | ProblemKind::RateLimited | ProblemKind::Unavailable
        ) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.0.kind == ProblemKind::Unauthenticated {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_rules_do_not_have_yet_was_not_done_and_the_problem_says_what_raises_them() {
        let failed = Failed::from(Failure::NotYet { rules: 3, since: 4 });
        assert!(!failed.is_indeterminate());
        let detail = failed.detail().to_owned();
        for part in ["rules 3", "rules 4", "not done", "`ringfence cluster upgrade`"] {
            assert!(detail.contains(part), "{part}: {detail}");
        }
        let response = failed.into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.headers().contains_key(RETRY_AFTER));
    }

    #[test]
    fn what_may_be_a_secret_is_not_quoted() {
        for (text, expected) in [
            (
                "there is no route `/v1/lease/0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10`: see",
                "there is no route `/v1/lease/…`: see",
            ),
            ("unknown field `0B6F3A525CC54B0E9C1E2A6F1D3C7E10`", "unknown field `…`"),
            ("rfc_9f64a747e1b97f131fabb6b447296c9b6f0201e79fb3c5356e6c77e89b6a806a", "rfc_…"),
            (
                "invalid value: integer `18446744073709551615`, expected u32",
                "invalid value: integer `18446744073709551615`, expected u32",
            ),
            ("a face–decade café", "a face–decade café"),
        ] {
            assert_eq!(without_secrets(text), expected);
        }
    }
}
