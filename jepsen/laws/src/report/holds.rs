//! From when to when each token was held.
//!
//! A hold is *sure* from the answer that told of the grant to the end that its client counts: the latest
//! `sent + expires_in` of a grant or renewal, or when it, or an operator, sent the request to end it. From there to the first
//! sign of its end (an answer, or the end in the nodes' logs once its revision was known) it may have been held or not.
//! Without a sign that is the time-to-live after the last answer. A grant that no client was told of is never sure: it is
//! shown from when its revision was first known. Two sure holds of one key side by side, both exclusive, are a breach.

use ringfence_wire::{EndReason, LeaseId, ProblemKind, Token};
use serde::Serialize;

use super::calls::{Keys, Order};
use crate::check::facts::{Facts, problem};
use crate::check::plain::Plain;
use crate::history::{Call, Conclusion, History, Invocation, reason_name};

/// One token, while it was held.
#[derive(Serialize)]
pub(super) struct Hold {
    token: u64,
    lease: String,
    process: Option<u32>,
    holder: Option<String>,
    /// The places of its keys.
    keys: Vec<usize>,
    /// From here to `sure` it was certainly held, from there to `to` perhaps.
    from: u64,
    sure: u64,
    to: u64,
    /// How it ended, as far as is known.
    end: &'static str,
    /// The place of the call that was told of the grant first.
    call: Option<usize>,
}

/// All holds, in the order of their tokens.
pub(super) fn holds(history: &History, order: &Order, keys: &Keys) -> Vec<Hold> {
    let plain = Plain::of(history);
    let facts = Facts::of(&plain);
    facts.by_token.iter().filter_map(|(token, lease)| hold(&facts, *token, *lease, order, keys)).collect()
}

fn hold(facts: &Facts, token: Token, lease: LeaseId, order: &Order, keys: &Keys) -> Option<Hold> {
    let life = &facts.lives[&lease];
    let acquire = life.acquires().next()?.call;
    let grants = || life.grants.iter().filter(|(_, grant)| grant.token == token);
    let told = grants().map(|(call, _)| *call).min_by_key(|call| call.ended_us);
    let known_us = |revision| facts.revisions.reached(revision).map(|known| known.at_us);
    let from = told.map(|call| call.ended_us).or_else(|| known_us(token.0)).unwrap_or(acquire.sent_us);

    let revokes = facts.revokes.get(&token).into_iter().flatten().copied();
    let ends: Vec<&Call> = life.releases().chain(revokes).filter(|call| call.may_be_done()).collect();
    let counted = grants().map(|(call, grant)| {
        call.sent_us.saturating_add(grant.expires_in_ms.unwrap_or(0).saturating_mul(1_000))
    });
    let asked_us = ends.iter().map(|call| call.sent_us).min().unwrap_or(u64::MAX);
    let sure = counted.max().map_or(from, |counted_us| counted_us.min(asked_us)).max(from);

    let answered = ends.iter().filter(|call| call.is_definite()).map(|call| {
        (
            call.ended_us,
            if matches!(call.invocation, Invocation::Revoke { .. }) { "revoked" } else { "released" },
        )
    });
    let gone = life.calls.iter().filter(|call| problem(call) == Some(ProblemKind::LeaseGone));
    let gone = gone.map(|call| match call.conclusion {
        Conclusion::Refused { reason: Some(reason), .. } => (call.ended_us, reason_name(reason)),
        _ => (call.ended_us, "gone"),
    });
    let logged = life.held(token).and_then(|stage| stage.ended);
    let logged = logged.and_then(|ended| {
        Some((known_us(ended.revision.0)?, reason_name(ended.reason.unwrap_or(EndReason::Expired))))
    });
    let ttl_over = grants().map(|(call, grant)| call.ended_us + u64::from(grant.ttl_ms) * 1_000).max();
    let signs = answered.chain(gone).chain(logged);
    let (sign, end) = signs.min_by_key(|(us, _)| *us).unwrap_or((ttl_over.unwrap_or(0), "unknown"));
    Some(Hold {
        token: token.0,
        lease: lease.to_string().chars().take(8).collect(),
        process: Some(acquire.process),
        holder: grants().next_back().and_then(|(_, grant)| Some(grant.holder.as_ref()?.as_str().to_owned())),
        keys: acquire.invocation.keys().iter().filter_map(|key| keys.get(key.as_str()).copied()).collect(),
        from,
        sure,
        to: sign.max(sure),
        end,
        call: told.and_then(|call| order.place(call.id)),
    })
}
