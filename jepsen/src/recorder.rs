//! Writes down every call while it happens: as under way before anything is sent, and what came of it once that is known.
//!
//! So a history that is taken in the middle of a run is whole as well: what is still under way stands in it as unknown.

use std::sync::{Mutex, MutexGuard};

use ringfence_harness::{Acquired, Called, Failure, Fate, LeaseView, Reply};
use ringfence_laws::history::{Call, Conclusion, Invocation};
use ringfence_wire::{Grant, KeyView, LeaseId, Problem, ProblemKind, Verdict};

use crate::clock::Clock;

/// Where all processes of a run write down their calls.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    calls: Mutex<Vec<Call>>,
}

impl Recorder {
    /// Nothing has been asked for yet.
    pub fn new(clock: Clock) -> Self {
        Self { clock, calls: Mutex::default() }
    }

    /// A call is about to be sent. Gives its id.
    pub fn begin(&self, process: u32, node: Option<u64>, invocation: Invocation) -> u64 {
        // The time is taken under the lock, so that calls stand in the order of their times.
        let mut calls = self.calls();
        self.add(&mut calls, process, node, None, invocation)
    }

    /// A batch of calls is about to be sent, for one process each. Gives their ids.
    pub fn begin_batch(&self, node: u64, batch: Vec<(u32, Invocation)>) -> Vec<u64> {
        let mut calls = self.calls();
        // No other has the id of its first call.
        let number = calls.len() as u64;
        let begin =
            |(process, invocation)| self.add(&mut calls, process, Some(node), Some(number), invocation);
        batch.into_iter().map(begin).collect()
    }

    fn add(
        &self,
        calls: &mut Vec<Call>,
        process: u32,
        node: Option<u64>,
        batch: Option<u64>,
        invocation: Invocation,
    ) -> u64 {
        let id = calls.len() as u64;
        let sent_us = self.clock.now_us();
        let conclusion = Conclusion::Unknown { why: "it was under way when the history was taken".into() };
        calls.push(Call { id, process, node, batch, sent_us, ended_us: sent_us, invocation, conclusion });
        id
    }

    /// The end of a call is known.
    pub fn end(&self, id: u64, conclusion: Conclusion) {
        let mut calls = self.calls();
        let ended_us = self.clock.now_us();
        let call = Self::call(&mut calls, id);
        (call.ended_us, call.conclusion) = (ended_us, conclusion);
    }

    /// The same, of an acquire whose lease was not known before: the client library chooses its id.
    pub(crate) fn end_as(&self, id: u64, lease: LeaseId, conclusion: Conclusion) {
        if let Invocation::Acquire { lease: unknown, .. } = &mut Self::call(&mut self.calls(), id).invocation
        {
            *unknown = lease;
        }
        self.end(id, conclusion);
    }

    /// All calls so far, in the order they were sent. What is under way ends now, as unknown.
    pub fn take(&self) -> Vec<Call> {
        let now_us = self.clock.now_us();
        let mut calls = std::mem::take(&mut *self.calls());
        for call in calls.iter_mut().filter(|call| is_under_way(call)) {
            call.ended_us = now_us;
        }
        calls
    }

    fn call(calls: &mut [Call], id: u64) -> &mut Call {
        let place = usize::try_from(id).expect("an id is a place in the list");
        calls.get_mut(place).expect("an id was given by this recorder")
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().expect("no panic while the calls are locked")
    }
}

fn is_under_way(call: &Call) -> bool {
    call.ended_us == call.sent_us && matches!(call.conclusion, Conclusion::Unknown { .. })
}

/// What came of an acquire; with whether the answer says that the mirror has its fence.
pub(crate) fn acquired(called: Called<(Acquired, Option<bool>)>) -> Conclusion {
    conclusion(called, |(acquired, mirrored)| match acquired {
        Acquired::Granted(grant) => Conclusion::Granted { grant, standing: false, mirrored },
        Acquired::Standing(grant) => Conclusion::Granted { grant, standing: true, mirrored },
        Acquired::Waiting(waiting) => waiting.into(),
    })
}

/// What came of each of so many acquires that were asked for in one batch.
pub(crate) fn acquired_together(
    called: Result<Vec<Called<Acquired>>, Failure>,
    count: usize,
) -> Vec<Conclusion> {
    let each = |called: Called<Acquired>| {
        acquired(called.map(|reply| match reply {
            Reply::Done { status, body } => Reply::Done { status, body: (body, None) },
            Reply::Refused(problem) => Reply::Refused(problem),
        }))
    };
    match called {
        Ok(all) if all.len() == count => all.into_iter().map(each).collect(),
        Ok(all) => {
            let why = format!("a batch of {count} was answered with {} results", all.len());
            vec![Conclusion::Malformed { why }; count]
        }
        Err(failure) => {
            let whole = conclusion::<()>(Err(failure), |()| Conclusion::Done);
            vec![whole; count]
        }
    }
}

/// What came of a renewal.
pub(crate) fn renewed(called: Called<Grant>) -> Conclusion {
    conclusion(called, Conclusion::from)
}

/// What came of a look at a lease.
pub(crate) fn lease(called: Called<LeaseView>) -> Conclusion {
    conclusion(called, |view| match view {
        LeaseView::Granted(grant) => (*grant).into(),
        LeaseView::Waiting(waiting) => waiting.into(),
    })
}

/// What came of a look at a key.
pub(crate) fn key(called: Called<KeyView>) -> Conclusion {
    conclusion(called, Conclusion::from)
}

/// What came of a validation.
pub(crate) fn verdict(called: Called<Verdict>) -> Conclusion {
    conclusion(called, Conclusion::from)
}

/// What came of a call whose success says nothing more.
pub(crate) fn done(called: Called<()>) -> Conclusion {
    conclusion(called, |()| Conclusion::Done)
}

fn conclusion<T>(called: Called<T>, body: impl FnOnce(T) -> Conclusion) -> Conclusion {
    match called {
        Ok(Reply::Done { body: answer, .. }) => body(answer),
        Ok(Reply::Refused(problem)) => refused(*problem),
        Err(Failure { fate, why, .. }) => match fate {
            Fate::NotDone => Conclusion::NotDone { why },
            Fate::Unknown => Conclusion::Unknown { why },
            Fate::Malformed => Conclusion::Malformed { why },
        },
    }
}

/// A 4xx. What only a wrong request, or a guard, is answered is against the contract: no workload asks for that.
pub(crate) fn refused(problem: Problem) -> Conclusion {
    let Problem { kind, status, detail, reason, .. } = problem;
    match kind {
        ProblemKind::InvalidRequest
        | ProblemKind::Unauthenticated
        | ProblemKind::Forbidden
        | ProblemKind::NotFound
        | ProblemKind::MethodNotAllowed
        | ProblemKind::StaleToken
        | ProblemKind::TooLarge
        | ProblemKind::TokenRequired
        | ProblemKind::Unavailable
        | ProblemKind::Indeterminate => Conclusion::Malformed { why: format!("{status} {kind:?}: {detail}") },
        problem => Conclusion::Refused { problem, reason },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use ringfence_wire::{EndReason, GrantState, Key, Token};

    use super::*;

    fn invocation() -> Invocation {
        Invocation::Release { lease: LeaseId::from_u128(1).unwrap() }
    }

    fn failed(fate: Fate) -> Conclusion {
        done(Err(Failure { fate, problem: None, why: "why".into() }))
    }

    #[test]
    fn a_call_that_is_under_way_when_the_history_is_taken_is_unknown_up_to_then() {
        let recorder = Recorder::new(Clock::start());
        let first = recorder.begin(1, Some(2), invocation());
        let second = recorder.begin(2, Some(1), invocation());
        recorder.end(second, Conclusion::Done);
        while recorder.clock.now_us() == recorder.calls()[1].ended_us {}
        let calls = recorder.take();
        assert_eq!((first, second), (0, 1));
        assert!(matches!(calls[0].conclusion, Conclusion::Unknown { .. }));
        assert!(calls[0].ended_us > calls[1].ended_us, "its end was not known before the history was taken");
        assert_eq!(calls[1].conclusion, Conclusion::Done);
        assert!(calls[0].sent_us <= calls[1].sent_us && calls[1].sent_us <= calls[1].ended_us);
    }

    #[test]
    fn what_is_not_certain_is_neither_done_nor_refused() {
        assert!(matches!(failed(Fate::NotDone), Conclusion::NotDone { .. }));
        assert!(matches!(failed(Fate::Unknown), Conclusion::Unknown { .. }));
        assert!(matches!(failed(Fate::Malformed), Conclusion::Malformed { .. }));
    }

    #[test]
    fn a_refusal_keeps_its_reason_and_one_that_no_workload_can_get_is_malformed() {
        let gone = Problem {
            reason: Some(EndReason::Expired),
            ..Problem::new(ProblemKind::LeaseGone, "it has ended")
        };
        assert_eq!(
            done(Ok(Reply::Refused(Box::new(gone)))),
            Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: Some(EndReason::Expired) }
        );
        let wrong = Problem::new(ProblemKind::InvalidRequest, "no such field");
        assert!(matches!(done(Ok(Reply::Refused(Box::new(wrong)))), Conclusion::Malformed { .. }));
    }

    #[test]
    fn an_acquire_tells_new_grants_from_standing_ones_and_what_the_mirror_has() {
        let grant = Grant {
            lease_id: LeaseId::from_u128(7).unwrap(),
            state: GrantState::Granted,
            token: Token(4),
            holder: None,
            ttl_ms: 1_000,
            expires_in_ms: Some(900),
            keys: Vec::new(),
        };
        let done = |body| acquired(Ok(Reply::Done { status: 0, body }));
        assert!(matches!(
            done((Acquired::Granted(grant.clone()), Some(true))),
            Conclusion::Granted { standing: false, mirrored: Some(true), .. }
        ));
        assert!(matches!(
            done((Acquired::Standing(grant), None)),
            Conclusion::Granted { standing: true, mirrored: None, .. }
        ));
        let view = KeyView {
            key: Key::new("a").unwrap(),
            fence: Token(4),
            revision: ringfence_wire::Revision(9),
            holders: Vec::new(),
            more_holders: 0,
            waiters: Vec::new(),
            more_waiters: 0,
        };
        assert_eq!(key(Ok(Reply::Done { status: 200, body: view.clone() })), Conclusion::Key { view });
    }
}
