//! A general search for a linearization, to hold the specialised check of reads against: Wing and Gong's, with the memory of
//! what was tried that Lowe added ("Testing for linearizability", 2017).
//!
//! It knows no logs and no bounds: it tries each order that real time allows on a model of the table with one key, and goes
//! back where an answer does not fit. A call without an answer may be done at any time after it was sent, or never. It takes
//! exponential time, and histories of up to 64 calls.

mod model;

use std::collections::HashSet;

use fastrand::Rng;
use ringfence_wire::LeaseId;

use self::model::{Model, changed, does, shown, valued};
use super::scene::{acquire, call, granted, key, lease, numbered, view};
use super::*;
use crate::history::{Seen, ValuedKey};

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
            // No value is set twice.
            let (newest, any) =
                (valued(process * 10 + 6 + n % 4), valued(process * 10 + 6 + rng.u64(0..=n % 4)));
            let invocation = match rng.u8(0..12) {
                6..8 => Invocation::Set { keys: vec![newest], ttl_ms: 1_000, only_if: None },
                8 => Invocation::EndIf { at: any },
                9 => Invocation::ExpireIf { at: any, ttl_ms: 1_000 },
                10 => Invocation::Token { at: any },
                11 => Invocation::Get { key: key() },
                0..2 => acquire(lease_of_it),
                2 => Invocation::Release { lease: lease(lease_of_it) },
                3..=4 => Invocation::Key { key: key(), local: false },
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
        if let (Invocation::Set { keys, .. }, Conclusion::Done, Some((_, token))) =
            (&call.invocation, &call.conclusion, model.holder)
        {
            let (asked, at) = (done_us, keys[0].clone());
            let told = Conclusion::Token { token: Token(token) };
            calls.push(self::call(asked, asked + rng.u64(1..20), Invocation::Token { at }, told));
        }
        calls.push(call);
    }
    let mut history = numbered(calls);
    history.end.keys = vec![shown(&model)];
    (history.end.healed_us, history.end.read_us) = (10_000, 10_000);
    history.end.changes = changes;
    history
}

/// Makes one answer say something else, or come at another time.
fn mutate(history: &mut History, rng: &mut Rng) {
    let is_known = |call: &&mut Call| {
        call.invocation.is_resp() && call.is_definite()
            || matches!(call.conclusion, Conclusion::Key { .. } | Conclusion::Verdict { .. })
    };
    let known: Vec<&mut Call> = history.calls.iter_mut().filter(is_known).collect();
    let Some(call) = rng.choice(known) else { return };
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
        (Conclusion::Token { token }, 0) => *token = Token(other(rng, token.0)),
        (Conclusion::Value { seen }, 0) => {
            let value = valued(rng.u64(0..4) * 10 + 6 + rng.u64(0..4)).value;
            *seen = [Seen::Nothing, Seen::Other, Seen::Value(value)][rng.usize(0..3)];
        }
        (conclusion @ (Conclusion::Done | Conclusion::Token { .. }), 0..2) => {
            let is_set = matches!(call.invocation, Invocation::Set { .. });
            let problem = if is_set { ProblemKind::Held } else { ProblemKind::LeaseGone };
            *conclusion = Conclusion::Refused { problem, reason: None };
        }
        (conclusion @ Conclusion::Refused { .. }, 0..2) => match &call.invocation {
            Invocation::Token { .. } => *conclusion = Conclusion::Token { token: Token(rng.u64(1..5)) },
            _ => *conclusion = Conclusion::Done,
        },
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

/// Whether somebody was told the token of each value that was set and answered OK, as clients of RESP ask for it at once.
fn is_told(history: &History) -> bool {
    let told = told(history);
    history.calls.iter().all(|call| match (&call.invocation, &call.conclusion) {
        (Invocation::Set { keys, .. }, Conclusion::Done) => told.contains(&keys[0].value),
        _ => true,
    })
}

fn told(history: &History) -> Vec<LeaseId> {
    let told = history.calls.iter().filter_map(|call| match (&call.invocation, &call.conclusion) {
        (Invocation::Token { at }, Conclusion::Token { .. }) => Some(at.value),
        _ => None,
    });
    told.collect()
}

/// Without what the laws make little of: changes and looks by a value whose token nobody was told, and that a key was not free.
fn looked_at(history: &History) -> Vec<Call> {
    let told = told(history);
    let mut calls = history.calls.clone();
    for call in &mut calls {
        let value = match (&call.invocation, &call.conclusion) {
            (Invocation::EndIf { at } | Invocation::ExpireIf { at, .. } | Invocation::Token { at }, _) => {
                Some(at.value)
            }
            (Invocation::Get { .. }, Conclusion::Value { seen: Seen::Value(value) }) => Some(*value),
            (_, Conclusion::Refused { problem: ProblemKind::Held, .. })
            | (_, Conclusion::Value { seen: Seen::Other }) => None,
            _ => continue,
        };
        if value.is_none_or(|value| !told.contains(&value)) {
            call.conclusion = Conclusion::Unknown { why: String::new() };
        }
    }
    calls
}

fn view_of(revision: u64, token: u64, held: bool) -> ringfence_wire::KeyView {
    if held { view(revision, token, &[token], 0) } else { view(revision, revision + 1, &[], 0) }
}

/// What the laws say together.
fn breaches(history: &History) -> Vec<crate::check::Breach> {
    let laws = [LINEARIZABLE_READS, NO_GRANT_LOST, TOKENS, NOTHING_MALFORMED, ONE_GRANT_PER_LEASE];
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
        let is_refuted = is_told(&history) && !is_linearizable(&looked_at(&history));
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
