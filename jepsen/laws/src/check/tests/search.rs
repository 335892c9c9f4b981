//! A general search for a linearization, to hold the specialised check of reads against: Wing and Gong's, with the memory of
//! what was tried that Lowe added ("Testing for linearizability", 2017).
//!
//! It knows no logs and no bounds: it tries each order that real time allows on a model of the table with one key, and goes
//! back where an answer does not fit. A call without an answer may be done at any time after it was sent, or never. It takes
//! exponential time, and histories of up to 64 calls.

use std::collections::HashSet;

use fastrand::Rng;
use ringfence_wire::LeaseId;

use super::scene::{acquire, call, change, granted, key, lease, numbered, view};
use super::*;

/// A table with one key that is held exclusively, by leases that live until they are released.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Model {
    revision: u64,
    holder: Option<(LeaseId, u64)>,
    /// Released, and remembered.
    over: Vec<LeaseId>,
}

impl Model {
    fn fence(&self) -> u64 {
        self.holder.map_or(self.revision + 1, |(_, token)| token)
    }

    fn verdict(&self, token: Token) -> VerdictName {
        match self.holder {
            Some((_, holder)) if holder == token.0 => VerdictName::Live,
            _ if token.0 <= self.revision => VerdictName::Stale,
            _ => VerdictName::Unknown,
        }
    }

    /// The table after an acquire.
    fn acquired(mut self, lease: LeaseId) -> Self {
        if self.holder.is_none() && !self.over.contains(&lease) {
            self.revision += 1;
            self.holder = Some((lease, self.revision));
        }
        self
    }

    /// The table after a release.
    fn released(mut self, lease: LeaseId) -> Self {
        if self.holder.is_some_and(|(holder, _)| holder == lease) {
            self.revision += 1;
            self.holder = None;
        }
        if !self.over.contains(&lease) {
            self.over.push(lease);
            self.over.sort_unstable();
        }
        self
    }

    /// The table after `call`, if it can have come to its answer here.
    fn after(&self, call: &Call) -> Option<Self> {
        let unknown = matches!(call.conclusion, Conclusion::Unknown { .. });
        match (&call.invocation, &call.conclusion) {
            (Invocation::Acquire { lease, .. }, conclusion) => {
                let next = self.clone().acquired(*lease);
                let fits = match conclusion {
                    Conclusion::Granted { grant, .. } => next.holder == Some((*lease, grant.token.0)),
                    Conclusion::Refused { problem: ProblemKind::Held, .. } => {
                        next.holder.is_some_and(|(holder, _)| holder != *lease)
                    }
                    Conclusion::Refused { problem: ProblemKind::LeaseGone, .. } => next.over.contains(lease),
                    _ => unknown,
                };
                fits.then_some(next)
            }
            (Invocation::Release { lease }, _) => Some(self.clone().released(*lease)),
            (Invocation::Key { .. }, Conclusion::Key { view }) => {
                let holders = view.holders.iter().map(|holder| holder.token.0);
                let fits = view.revision.0 == self.revision
                    && view.fence.0 == self.fence()
                    && holders.eq(self.holder.map(|(_, token)| token));
                fits.then(|| self.clone())
            }
            (Invocation::Validate { token, .. }, Conclusion::Verdict { verdict }) => {
                (verdict.verdict == self.verdict(*token) && verdict.fence.0 == self.fence())
                    .then(|| self.clone())
            }
            _ => unknown.then(|| self.clone()),
        }
    }
}

/// Whether there is an order of `calls`, on a table that is new, which real time allows and which explains all answers.
fn is_linearizable(calls: &[Call]) -> bool {
    assert!(calls.len() <= 64, "each call is a bit");
    let known = |call: &Call| !matches!(call.conclusion, Conclusion::Unknown { .. });
    let all_known = bits(calls, known);
    let mut tried = HashSet::new();
    let mut open = vec![(0_u64, Model::default())];
    while let Some((done, model)) = open.pop() {
        if done & all_known == all_known {
            return true;
        }
        // None may be next that was sent after another one, not done yet, had ended.
        let left = |index: usize| done & (1 << index) == 0;
        let waits = (0..calls.len()).filter(|&index| left(index) && known(&calls[index]));
        let first_ended_us = waits.map(|index| calls[index].ended_us).min().unwrap_or(u64::MAX);
        for (index, call) in calls.iter().enumerate() {
            if left(index)
                && call.sent_us <= first_ended_us
                && let Some(next) = model.after(call)
                && tried.insert((done | 1 << index, next.clone()))
            {
                open.push((done | 1 << index, next));
            }
        }
    }
    false
}

fn bits(calls: &[Call], which: impl Fn(&Call) -> bool) -> u64 {
    calls.iter().enumerate().filter(|(_, call)| which(call)).fold(0, |bits, (index, _)| bits | 1 << index)
}

/// A history that a correct table has made: each call takes effect at one instant while it is under way, or, if it has no
/// answer, at any time after it was sent, or never.
fn correct(rng: &mut Rng) -> History {
    let mut planned = Vec::new();
    for process in 0..rng.u64(2..5) {
        let mut now_us = rng.u64(0..20);
        for n in 0..rng.u64(1..5) {
            let took_us = rng.u64(1..30);
            let lease_of_it = 1 + process * 10 + n / 2;
            let invocation = match rng.u8(0..6) {
                0..2 => acquire(lease_of_it),
                2 => Invocation::Release { lease: lease(lease_of_it) },
                3..5 => Invocation::Key { key: key(), local: false },
                _ => Invocation::Validate { key: key(), token: Token(rng.u64(1..5)), local: false },
            };
            let answered = rng.u8(0..8) > 0;
            let takes_us = if answered { took_us } else { rng.u64(1..200) };
            let done_us = now_us + rng.u64(0..=takes_us);
            let done_us = if answered || rng.bool() { done_us } else { u64::MAX };
            planned.push((done_us, answered, call(now_us, now_us + took_us, invocation, Conclusion::Done)));
            now_us += took_us + rng.u64(1..20);
        }
    }
    planned.sort_by_key(|(done_us, ..)| *done_us);
    let (mut model, mut changes, mut calls) = (Model::default(), Vec::new(), Vec::new());
    for (done_us, answered, mut call) in planned {
        let before = model.clone();
        if done_us < u64::MAX {
            call.conclusion = does(&mut model, &call.invocation);
        }
        if !answered {
            call.conclusion = Conclusion::Unknown { why: "no answer".to_owned() };
        }
        changes.extend(changed(&before, &model));
        calls.push(call);
    }
    let mut history = numbered(calls);
    history.end.keys = vec![shown(&model)];
    (history.end.healed_us, history.end.read_us) = (10_000, 10_000);
    history.end.changes = changes;
    history
}

fn shown(model: &Model) -> ringfence_wire::KeyView {
    let holders: Vec<u64> = model.holder.iter().map(|(_, token)| *token).collect();
    view(model.revision, model.fence(), &holders, 0)
}

fn does(model: &mut Model, invocation: &Invocation) -> Conclusion {
    match invocation {
        Invocation::Acquire { lease, .. } => {
            let stood = model.holder;
            *model = model.clone().acquired(*lease);
            let gone = model.over.contains(lease);
            match model.holder {
                Some((holder, token)) if holder == *lease => {
                    let Conclusion::Granted { mut grant, .. } = granted(1, token, token) else {
                        unreachable!()
                    };
                    grant.lease_id = holder;
                    Conclusion::Granted { grant, standing: stood == model.holder, mirrored: None }
                }
                _ if gone => Conclusion::Refused { problem: ProblemKind::LeaseGone, reason: None },
                _ => Conclusion::Refused { problem: ProblemKind::Held, reason: None },
            }
        }
        Invocation::Release { lease } => {
            *model = model.clone().released(*lease);
            Conclusion::Done
        }
        Invocation::Key { .. } => Conclusion::Key { view: shown(model) },
        Invocation::Validate { token, .. } => {
            let verdict = model.verdict(*token);
            Conclusion::Verdict { verdict: TokenVerdict { verdict, fence: Token(model.fence()) } }
        }
        other => unreachable!("{other:?} is not planned"),
    }
}

fn changed(before: &Model, after: &Model) -> Option<Change> {
    let (holder, name) = match (before.holder, after.holder) {
        (None, Some(holder)) => (holder, ChangeName::Granted),
        (Some(holder), None) => (holder, ChangeName::Ended),
        _ => return None,
    };
    let mut change = change(after.revision, 1, name, Some(holder.1), after.fence());
    change.lease_id = holder.0;
    change.reason = (name == ChangeName::Ended).then_some(EndReason::Released);
    Some(change)
}

/// Makes one read show something else, or come at another time.
fn mutate(history: &mut History, rng: &mut Rng) {
    let is_read =
        |call: &&mut Call| matches!(call.conclusion, Conclusion::Key { .. } | Conclusion::Verdict { .. });
    let reads: Vec<&mut Call> = history.calls.iter_mut().filter(is_read).collect();
    let Some(call) = rng.choice(reads) else { return };
    let other = |rng: &mut Rng, number: u64| (number + rng.u64(0..5)).saturating_sub(2);
    match (&mut call.conclusion, rng.u8(0..4)) {
        (Conclusion::Key { view }, 0) => {
            view.revision = Revision(other(rng, view.revision.0));
            if view.holders.is_empty() {
                view.fence = Token(view.revision.0 + 1);
            }
        }
        (Conclusion::Key { view }, 1) => {
            let token = other(rng, view.fence.0).max(1);
            *view = view_of(view.revision.0, token, rng.bool());
        }
        (Conclusion::Verdict { verdict }, 0) => {
            let live = verdict.verdict == VerdictName::Live;
            verdict.verdict = if live { VerdictName::Stale } else { VerdictName::Live };
        }
        (Conclusion::Verdict { verdict }, 1) => verdict.fence = Token(other(rng, verdict.fence.0)),
        _ => {
            let took_us = call.ended_us - call.sent_us;
            call.sent_us = rng.u64(0..200);
            call.ended_us = call.sent_us + took_us;
        }
    }
    let (end, calls) = (history.end.clone(), std::mem::take(&mut history.calls));
    *history = History { end, ..numbered(calls) };
}

/// Without the refusals of a key that is held: the specialised check makes nothing of them.
fn looked_at(history: &History) -> Vec<Call> {
    let held =
        |call: &Call| matches!(call.conclusion, Conclusion::Refused { problem: ProblemKind::Held, .. });
    history.calls.iter().filter(|call| !held(call)).cloned().collect()
}

fn view_of(revision: u64, token: u64, held: bool) -> ringfence_wire::KeyView {
    if held { view(revision, token, &[token], 0) } else { view(revision, revision + 1, &[], 0) }
}

/// What the laws say together.
fn breaches(history: &History) -> Vec<crate::check::Breach> {
    let laws = [LINEARIZABLE_READS, NO_GRANT_LOST, TOKENS];
    laws.iter().flat_map(|law| judge(law, history).breaches).collect()
}

#[test]
fn the_specialised_check_agrees_with_the_search() {
    let mut rng = Rng::with_seed(5);
    let (mut refuted, mut found_by_logs_only) = (0, 0);
    for round in 0..4_000 {
        let mut history = correct(&mut rng);
        assert!(is_linearizable(&history.calls), "round {round}: {:#?}", history.calls);
        assert_eq!(breaches(&history), [], "round {round}: {:#?}", history.calls);
        mutate(&mut history, &mut rng);
        let is_refuted = !is_linearizable(&looked_at(&history));
        let found = breaches(&history);
        assert!(!is_refuted || !found.is_empty(), "round {round}: {:#?}", history);
        refuted += u32::from(is_refuted);
        found_by_logs_only += u32::from(!is_refuted && !found.is_empty());
    }
    assert!(refuted > 500, "{refuted} refuted, {found_by_logs_only} found by the logs only");
}

#[test]
fn an_order_that_real_time_forbids_is_not_tried() {
    let get = |sent_us, view| {
        call(sent_us, sent_us + 5, Invocation::Key { key: key(), local: false }, Conclusion::Key { view })
    };
    let held = |sent_us| [call(0, 10, acquire(1), granted(1, 1, 1)), get(sent_us, view(0, 1, &[], 0))];
    assert!(is_linearizable(&held(10)), "while it is acquired");
    assert!(!is_linearizable(&held(11)));
    // Without an answer it may be done later.
    let mut late = held(11);
    late[0].conclusion = Conclusion::Unknown { why: String::new() };
    assert!(is_linearizable(&late));
}
