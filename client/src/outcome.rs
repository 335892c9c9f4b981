//! The outcome of one attempt. Nothing else interprets responses.
//!
//! ```text
//!  response                                       outcome     what follows            if it cannot be repeated
//!  2xx that reads as expected                     done        the end                 the end
//!  4xx with a `type` of Ringfence                 refused     the end                 the end
//!  429                                            limited     repeat once it says     repeat once it says
//!  503 `unavailable`; nothing was sent            not done    repeat elsewhere        repeat elsewhere
//!  504; a 4xx or 5xx of a proxy; an unreadable    ambiguous   repeat elsewhere        the end: unknown
//!  2xx; no complete response
//! ```

use std::time::Duration;

use ringfence_tls::cut;
use ringfence_wire::{Problem, ProblemKind};

use crate::transport::{Failure, Response};

/// The outcome of one attempt.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    Done(T),
    Refused(Box<Problem>),
    /// Not done, because there is too much of it. May be asked again after this time.
    Limited(Box<Problem>, Duration),
    /// Certainly not done, for now.
    NotDone(String),
    /// It may have been done.
    Ambiguous(String),
}

impl<T> Outcome<T> {
    /// Whether the cluster has said what became of it.
    pub(crate) fn is_definite(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Refused(_) | Self::Limited(..))
    }

    /// `read` reads a 2xx.
    pub(crate) fn of(
        result: Result<Response, Failure>,
        read: impl FnOnce(&Response) -> serde_json::Result<T>,
    ) -> Self {
        let response = match result {
            Ok(response) => response,
            Err(Failure::NotSent(why) | Failure::Untrusted(_, why)) => return Self::NotDone(why),
            Err(Failure::Broken(why)) => return Self::Ambiguous(why),
        };
        let status = response.status.as_u16();
        if response.status.is_success() {
            let unreadable = |error: serde_json::Error| {
                Self::Ambiguous(format!("unreadable {status}: {}", cut(error.to_string())))
            };
            return read(&response).map_or_else(unreadable, Self::Done);
        }
        match response.problem() {
            Some(problem) if problem.kind == ProblemKind::Unavailable => Self::NotDone(problem.detail),
            Some(problem) if matches!(problem.kind, ProblemKind::RateLimited | ProblemKind::Overloaded) => {
                Self::Limited(problem, response.retry_after())
            }
            Some(problem) if status < 500 => Self::Refused(problem),
            Some(problem) => Self::Ambiguous(problem.detail),
            None => Self::Ambiguous(format!("a {status} that no node wrote")),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;
    use crate::clock::Moment;

    fn outcome(status: u16, body: &str) -> Outcome<u64> {
        let response = Response {
            sent: Moment::now(),
            status: StatusCode::from_u16(status).unwrap(),
            leader: None,
            cluster: None,
            retry_after: None,
            body: body.to_owned().into(),
        };
        Outcome::of(Ok(response), Response::json)
    }

    fn of_problem(kind: ProblemKind) -> Outcome<u64> {
        outcome(kind.status(), &serde_json::to_string(&Problem::new(kind, "why")).unwrap())
    }

    #[test]
    fn each_problem_has_its_outcome() {
        for &kind in ProblemKind::ALL {
            let outcome = of_problem(kind);
            let expected = match kind {
                ProblemKind::Unavailable => matches!(outcome, Outcome::NotDone(_)),
                ProblemKind::RateLimited | ProblemKind::Overloaded => {
                    matches!(&outcome, Outcome::Limited(problem, _) if problem.kind == kind)
                }
                ProblemKind::Indeterminate => matches!(outcome, Outcome::Ambiguous(_)),
                _ => matches!(&outcome, Outcome::Refused(problem) if problem.kind == kind),
            };
            assert!(expected, "{kind:?}: {outcome:?}");
        }
    }

    #[test]
    fn a_response_of_something_in_between_is_ambiguous() {
        let unavailable = serde_json::to_string(&Problem::new(ProblemKind::Unavailable, "why")).unwrap();
        assert!(matches!(outcome(200, "7"), Outcome::Done(7)));
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
            // A proxy changed the status.
            (502, unavailable.as_str()),
        ] {
            assert!(matches!(outcome(status, body), Outcome::Ambiguous(_)), "{status} {body}");
        }
    }

    #[test]
    fn of_what_a_stranger_writes_little_is_told() {
        let long = "x".repeat(10_000);
        let of = |kind: ProblemKind| {
            outcome(kind.status(), &serde_json::to_string(&Problem::new(kind, long.as_str())).unwrap())
        };
        let told = |outcome| match outcome {
            Outcome::Refused(problem) | Outcome::Limited(problem, _) => problem.detail,
            Outcome::NotDone(why) | Outcome::Ambiguous(why) => why,
            Outcome::Done(_) => panic!("it was done"),
        };
        let problems = ProblemKind::ALL.iter().map(|kind| (told(of(*kind)), 5_000));
        for (why, most) in problems.chain([(told(outcome(200, &format!("\"{long}\""))), 400)]) {
            assert!(why.contains("xxx") && why.chars().count() < most, "{why}");
        }
        let advice = format!("{}\u{1b}[2J: do this", "x".repeat(1_000));
        let problem = serde_json::to_string(&Problem::new(ProblemKind::Forbidden, advice.as_str())).unwrap();
        let why = told(outcome(ProblemKind::Forbidden.status(), &problem));
        assert_eq!(why, advice.replace('\u{1b}', " "));
    }

    #[test]
    fn only_what_was_not_sent_is_certainly_not_done() {
        let read = |_: &Response| Ok(());
        assert!(matches!(Outcome::of(Err(Failure::NotSent("why".into())), read), Outcome::NotDone(_)));
        assert!(matches!(Outcome::of(Err(Failure::Broken("why".into())), read), Outcome::Ambiguous(_)));
    }
}
