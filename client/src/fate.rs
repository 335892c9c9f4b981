//! What an answer says of a call, and what follows from that: the only place where this is decided.
//!
//! ```text
//!  what came                                   fate         acquire, renew, release, read     cannot be repeated
//!  2xx that reads as it should                 done         the end                           the end
//!  4xx with a `type` of ours                   refused      the end                           the end
//!  503 `unavailable`; nothing was sent         not done     again, elsewhere                  again, elsewhere
//!  504, a 5xx or 4xx that is not ours,         unknown      the same again, elsewhere         the end: unknown
//!  a 2xx that is not ours, no whole answer
//! ```
//! **Unknown is sticky**: after it, *not done* of a repeat says nothing of the first; only *done* or *refused* ends it.
//! Patience is 5 s for all repeats of a call together, so a repeat never comes near the 60 s after which the cluster may
//! forget an id.

use std::time::Duration;

use ringfence_wire::{LeaseId, Problem, ProblemKind};

use crate::Error;
use crate::exchange::{Answer, Failure};

/// How long a call without a definite answer is repeated.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What has become of one attempt.
#[derive(Debug)]
pub(crate) enum Fate<T> {
    Done(T),
    Refused(Box<Problem>),
    NotDone(String),
    Unknown(String),
}

/// Sorts what came. `read` reads a 2xx.
pub(crate) fn fate<T>(
    came: Result<Answer, Failure>,
    read: impl FnOnce(&Answer) -> serde_json::Result<T>,
) -> Fate<T> {
    let answer = match came {
        Ok(answer) => answer,
        Err(Failure::NotSent(why)) => return Fate::NotDone(why),
        Err(Failure::Broken(why)) => return Fate::Unknown(why),
    };
    let status = answer.status.as_u16();
    if answer.status.is_success() {
        return read(&answer).map_or_else(
            |error| Fate::Unknown(format!("a {status} that cannot be read: {error}")),
            Fate::Done,
        );
    }
    match problem(&answer) {
        Some(problem) if status < 500 => Fate::Refused(problem),
        Some(problem) if problem.kind == ProblemKind::Unavailable => Fate::NotDone(problem.detail),
        Some(problem) => Fate::Unknown(problem.detail),
        None => Fate::Unknown(format!("a {status} that is not a node's")),
    }
}

/// The problem of an answer that is a node's own.
pub(crate) fn problem(answer: &Answer) -> Option<Box<Problem>> {
    let problem: Box<Problem> = serde_json::from_slice(&answer.body).ok()?;
    (problem.status == answer.status.as_u16()).then_some(problem)
}

/// What is known of a call so far.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// Whether an attempt may have been done.
    maybe_done: bool,
    last: String,
}

impl Doubt {
    pub(crate) fn not_done(&mut self, why: String) {
        self.last = why;
    }

    pub(crate) fn unknown(&mut self, why: String) {
        self.maybe_done = true;
        self.last = why;
    }

    /// An earlier call was done, and what it did may stand yet.
    pub(crate) fn may_stand(&mut self) {
        self.maybe_done = true;
    }

    pub(crate) fn maybe_done(&self) -> bool {
        self.maybe_done
    }

    /// What to say when there will be no definite answer.
    pub(crate) fn into_error(self, lease_id: Option<LeaseId>) -> Error {
        match self.maybe_done {
            true => Error::Unknown { lease_id, why: self.last },
            false => Error::Unavailable { why: self.last },
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use ringfence_wire::{EndReason, ProblemKind};

    use super::*;
    use crate::Loss;
    use crate::lifetime::Moment;

    fn came(status: u16, body: &str) -> Fate<u64> {
        let answer = Answer {
            sent: Moment::now(),
            status: StatusCode::from_u16(status).unwrap(),
            leader: None,
            body: body.to_owned().into(),
        };
        fate(Ok(answer), |answer| serde_json::from_slice(&answer.body))
    }

    fn ours(kind: ProblemKind) -> Fate<u64> {
        came(kind.status(), &serde_json::to_string(&Problem::new(kind, "why")).unwrap())
    }

    #[test]
    fn each_problem_of_ours_has_its_fate() {
        for &kind in ProblemKind::ALL {
            let fate = ours(kind);
            let expected = match kind {
                ProblemKind::Unavailable => matches!(fate, Fate::NotDone(_)),
                ProblemKind::Indeterminate => matches!(fate, Fate::Unknown(_)),
                _ => matches!(&fate, Fate::Refused(problem) if problem.kind == kind),
            };
            assert!(expected, "{kind:?}: {fate:?}");
        }
    }

    #[test]
    fn what_is_not_ours_is_unknown_whatever_it_says() {
        let unavailable = serde_json::to_string(&Problem::new(ProblemKind::Unavailable, "why")).unwrap();
        assert!(matches!(came(200, "7"), Fate::Done(7)));
        for (status, body) in [
            (200, "<html>"),
            (200, ""),
            (302, ""),
            (404, "no such page"),
            (407, r#"{"type":"about:blank"}"#),
            (500, ""),
            (502, "bad gateway"),
            (503, "no server is available"),
            (503, r#"{"type":"urn:somebody:else","status":503}"#),
            (504, "gateway timeout"),
            // Something in between has put another status on it.
            (502, unavailable.as_str()),
        ] {
            assert!(matches!(came(status, body), Fate::Unknown(_)), "{status} {body}");
        }
    }

    #[test]
    fn only_what_was_not_sent_is_not_done() {
        let read = |_: &Answer| Ok(());
        assert!(matches!(fate(Err(Failure::NotSent("why".into())), read), Fate::NotDone(_)));
        assert!(matches!(fate(Err(Failure::Broken("why".into())), read), Fate::Unknown(_)));
    }

    #[test]
    fn no_leader_does_not_end_a_doubt() {
        let mut doubt = Doubt::default();
        doubt.not_done("no leader".into());
        assert!(!doubt.maybe_done());
        doubt.unknown("no answer".into());
        doubt.not_done("no leader".into());
        assert!(doubt.maybe_done());
        let lease_id = LeaseId::from_u128(7);
        assert_eq!(doubt.into_error(lease_id), Error::Unknown { lease_id, why: "no leader".into() });
        let mut sure = Doubt::default();
        sure.not_done("no leader".into());
        assert_eq!(sure.into_error(lease_id), Error::Unavailable { why: "no leader".into() });
    }

    #[test]
    fn a_refusal_says_that_a_lease_is_lost_only_where_it_is() {
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
