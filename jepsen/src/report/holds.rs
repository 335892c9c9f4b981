//! From when to when each token was held.
//!
//! A hold is *sure* from the answer that told of the grant to the end that its client counts: the latest
//! `sent + expires_in` of a grant or renewal, or when it, or an operator, sent the request to end it. From there to the first
//! sign of its end (an answer, or the nodes' logs and the first sight of their revision) it may have been held or not. Without
//! a sign that is the time-to-live after the last answer. A grant that no client was told of is never sure: it is shown from the
//! first sight of its revision. Two sure holds of one key side by side, both exclusive, are a breach.

use std::collections::{BTreeMap, HashMap};

use ringfence_wire::{EndReason, LeaseId, ProblemKind, Token};
use serde::Serialize;

use super::calls::{Keys, Order};
use crate::history::{Asked, Call, Came, ChangeName, History, reason_name};

/// One token, while it was held.
#[derive(Serialize)]
pub(super) struct Hold<'a> {
    token: u64,
    lease: String,
    process: Option<u32>,
    holder: Option<&'a str>,
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

/// What calls tell of a lease.
#[derive(Default)]
struct Told<'a> {
    token: Option<Token>,
    process: Option<u32>,
    holder: Option<&'a str>,
    asked_us: Option<u64>,
    granted_us: Option<u64>,
    call: Option<usize>,
    sure_us: u64,
    nominal_us: u64,
    ending_us: Option<u64>,
    sign: Option<(u64, &'static str)>,
}

/// All holds, in the order of their tokens.
pub(super) fn holds<'a>(history: &'a History, order: &Order<'a>, keys: &Keys<'a>) -> Vec<Hold<'a>> {
    let mut leases: HashMap<LeaseId, Told<'a>> = HashMap::new();
    for (place, &call) in order.calls.iter().enumerate() {
        note(call, place, &mut leases);
    }
    let mut tokens: BTreeMap<Token, LeaseId> = BTreeMap::new();
    for (lease, told) in &leases {
        tokens.extend(told.token.map(|token| (token, *lease)));
    }
    for &call in &order.calls {
        if let (Asked::Revoke { token, .. }, true) = (&call.asked, call.may_be_done())
            && let Some(told) = tokens.get(token).and_then(|lease| leases.get_mut(lease))
        {
            told.ends(call, "revoked");
        }
    }
    let seen = revisions_seen(history);
    note_changes(history, &seen, &mut leases, &mut tokens);
    let holds = tokens.into_iter().filter_map(|(token, lease)| {
        let told = leases.get(&lease)?;
        let asked_for = order.leases.get(&lease)?;
        let places = asked_for.iter().filter_map(|key| keys.get(key.as_str()).copied());
        let from = told.granted_us.or_else(|| first_seen(&seen, token.0)).or(told.asked_us)?;
        let sure = if told.granted_us.is_some() { told.sure_us } else { from };
        let sure = told.ending_us.map_or(sure, |ending| sure.min(ending)).max(from);
        let (sign, end) = told.sign.unwrap_or((told.nominal_us, "unknown"));
        Some(Hold {
            token: token.0,
            lease: lease.to_string().chars().take(8).collect(),
            process: told.process,
            holder: told.holder,
            keys: places.collect(),
            from,
            sure,
            to: sign.max(sure),
            end,
            call: told.call,
        })
    });
    holds.collect()
}

fn note<'a>(call: &'a Call, place: usize, leases: &mut HashMap<LeaseId, Told<'a>>) {
    let (Asked::Acquire { lease, .. }
    | Asked::Renew { lease, .. }
    | Asked::Release { lease }
    | Asked::Lease { lease, .. }) = &call.asked
    else {
        return;
    };
    let told = leases.entry(*lease).or_default();
    if matches!(call.asked, Asked::Acquire { .. }) {
        told.process.get_or_insert(call.process);
        told.asked_us.get_or_insert(call.sent_us);
    }
    match &call.came {
        Came::Granted { grant, .. } => {
            told.token = Some(grant.token);
            told.holder = grant.holder.as_ref().map(|holder| holder.as_str());
            if told.granted_us.is_none_or(|granted| call.ended_us < granted) {
                (told.granted_us, told.call) = (Some(call.ended_us), Some(place));
            }
            let expires_in_us = grant.expires_in_ms.unwrap_or(0).saturating_mul(1_000);
            told.sure_us = told.sure_us.max(call.sent_us.saturating_add(expires_in_us));
            told.nominal_us = told.nominal_us.max(call.ended_us + u64::from(grant.ttl_ms) * 1_000);
        }
        Came::Refused { problem: ProblemKind::LeaseGone, reason } => {
            told.sign(call.ended_us, reason.map_or("gone", reason_name));
        }
        _ => {}
    }
    if matches!(call.asked, Asked::Release { .. }) && call.may_be_done() {
        told.ends(call, "released");
    }
}

/// What the nodes' logs tell: grants that no client was told of, and ends.
fn note_changes(
    history: &History,
    seen: &[(u64, u64)],
    leases: &mut HashMap<LeaseId, Told<'_>>,
    tokens: &mut BTreeMap<Token, LeaseId>,
) {
    for change in &history.end.changes {
        let (Some(token), Some(told)) = (change.token, leases.get_mut(&change.lease_id)) else { continue };
        match change.change {
            ChangeName::Granted => {
                told.token.get_or_insert(token);
                tokens.entry(token).or_insert(change.lease_id);
            }
            ChangeName::Ended => {
                if let Some(seen_us) = first_seen(seen, change.revision.0) {
                    told.sign(seen_us, reason_name(change.reason.unwrap_or(EndReason::Expired)));
                }
            }
            ChangeName::Queued | ChangeName::Left => {}
        }
    }
}

/// Revisions, and when each was first seen at any node; both rise.
fn revisions_seen(history: &History) -> Vec<(u64, u64)> {
    let mut sights: Vec<_> = history.sights.iter().map(|sight| (sight.ended_us, sight.revision.0)).collect();
    sights.sort_unstable();
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for (ended_us, revision) in sights {
        if seen.last().is_none_or(|(highest, _)| revision > *highest) {
            seen.push((revision, ended_us));
        }
    }
    seen
}

/// When some node was first seen to have come to `revision`.
fn first_seen(seen: &[(u64, u64)], revision: u64) -> Option<u64> {
    seen.get(seen.partition_point(|(earlier, _)| *earlier < revision)).map(|(_, seen_us)| *seen_us)
}

impl Told<'_> {
    /// `call` may have ended it.
    fn ends(&mut self, call: &Call, how: &'static str) {
        self.ending_us = Some(self.ending_us.map_or(call.sent_us, |ending| ending.min(call.sent_us)));
        if call.is_definite() {
            self.sign(call.ended_us, how);
        }
    }

    /// At `at_us` it had ended.
    fn sign(&mut self, at_us: u64, how: &'static str) {
        if self.sign.is_none_or(|(earlier, _)| at_us < earlier) {
            self.sign = Some((at_us, how));
        }
    }
}
