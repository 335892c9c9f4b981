//! Every change of a lease has a cause: a call that asked for it, or time that ran out.
//!
//! - A place or a grant needs an acquire that may have been done and did not find it standing; an end as `released` needs a
//!   release, as `revoked` a revocation of its token, as `abandoned` an acquire without a known answer. The cause was sent
//!   before anybody could know of the change.
//! - **Not early.** A client that was told `expires_in_ms` counts from when it sent the request. Nobody knows of an end
//!   before that time, unless a cause was sent first. In the log, in cluster time, an expiry comes later than its grant by
//!   more than the smallest time-to-live that anybody asked for; renewals are not in the log, so no more can be said there.
//! - **Bounded.** Once the cluster is healed, a lease ends within its time-to-live after the last call that could keep it
//!   alive, and [`LATE_US`]; a place in the queue likewise, after its wait. A renewal or acquire without an answer counts
//!   until its client gave up; a proposal that is done later is within the bound, as it is given 5 s.
//!
//! An unanswered acquire may be done late, since a stopped node or the network may hold it. So it excuses an `abandoned` end
//! at any time. After a renewal it does not. Nor does it if a repeat is known to be newer: the repeat was answered with a lease
//! that no other acquire can have made. What happens to the older connection does not matter then.
//!
//! Leases that nobody in the history asked for are not judged. Both laws are about real time: where the monotonic clocks of
//! nodes are faked, they do not apply.

use std::collections::BTreeSet;

use ringfence_wire::{EndReason, Token};

use super::facts::{Facts, Life, at, found_standing, is_local};
use super::log::Stage;
use super::{Checker, Found};
use crate::history::{Call, ChangeName, Conclusion, Invocation};

/// No lease ends before its time.
pub const NO_EARLY_END: Checker = Checker {
    name: "no-early-end",
    law: "No lease ends before its time as its client counts it, unless it is released, revoked or abandoned.",
    check: no_early_end,
};

/// Leases end in bounded time.
pub const BOUNDED_END: Checker = Checker {
    name: "bounded-end",
    law: "Once the cluster is healed, a lease that nobody renews ends within its time-to-live and 10 s.",
    check: bounded_end,
};

/// How long after its time-to-live a lease must have ended in a healed cluster.
const LATE_US: u64 = 10_000_000;

/// Part of `no-grant-lost`: what was certainly not done was not done.
pub(super) fn precede_their_changes(facts: &Facts, found: &mut Found) {
    for (lease, life) in facts.lives.iter().filter(|(_, life)| life.acquires().next().is_some()) {
        let changes = life.stages.iter().flat_map(|stage| [stage.begun, stage.ended]).flatten();
        for change in changes {
            let causes: Vec<&Call> = match (change.change, change.reason) {
                (ChangeName::Granted | ChangeName::Queued, _) => {
                    life.possible_acquires().map(|it| it.call).filter(|call| !found_standing(call)).collect()
                }
                (_, Some(EndReason::Released)) => life.releases().filter(|call| call.may_be_done()).collect(),
                _ => continue,
            };
            found.saw("changes compared with their causes");
            let known = facts.revisions.reached(change.revision.0);
            let first = causes.iter().min_by_key(|call| call.sent_us);
            let what =
                format!("lease {lease} is {:?} at revision {} of the log", change.change, change.revision);
            match (first, known) {
                (None, _) => found
                    .breach(format!("{what}, and no call can have done that, by their answers"), life.ids()),
                (Some(first), Some(known)) if known.at_us < first.sent_us => {
                    let what = format!(
                        "{what}, known at {}, before the first call that can have done that was sent at {}",
                        at(known.at_us),
                        at(first.sent_us)
                    );
                    found.breach(what, known.call.into_iter().chain([first.id]));
                }
                _ => {}
            }
        }
    }
}

fn no_early_end(facts: &Facts) -> Found {
    let mut found = Found::default();
    for life in facts.lives.values().filter(|life| life.acquires().next().is_some()) {
        // Of a lease with two tokens the answers do not say which they are about; that breaks another law.
        let [stage] = life.stages.iter().filter(|stage| stage.token.is_some()).collect::<Vec<_>>()[..] else {
            continue;
        };
        let (Some(token), Some(end)) = (stage.token, stage.ended) else { continue };
        let Some(reason) = end.reason else { continue };
        found.saw("ends");
        let cause_us = first_cause_us(facts, life, token, reason);
        if reason != EndReason::Expired && cause_us == u64::MAX {
            let lease = end.lease_id;
            let what = format!("lease {lease}, token {token}, ended as {reason:?}, which no call asked for");
            found.breach(what, life.ids());
        }
        known_too_early(facts, life, stage, cause_us, &mut found);
        expired_too_early(life, stage, &mut found);
    }
    found.needs(&["ends of leases that a client counted on"], "no lease was granted and ended");
    found
}

/// When the first call was sent that can have caused this end.
fn first_cause_us(facts: &Facts, life: &Life, token: Token, reason: EndReason) -> u64 {
    let causes: Vec<&Call> = match reason {
        EndReason::Expired => Vec::new(),
        EndReason::Released => life.releases().filter(|call| call.may_be_done()).collect(),
        EndReason::Revoked => {
            let revokes = facts.revokes.get(&token).map_or(&[][..], Vec::as_slice);
            revokes.iter().copied().filter(|call| call.may_be_done()).collect()
        }
        EndReason::Abandoned => {
            let renewed =
                |call: &&Call| matches!(call.invocation, Invocation::Renew { .. }) && found_standing(call);
            let acquires = life.acquires().map(|acquire| acquire.call);
            let is_renewed = life.calls.iter().any(renewed);
            acquires.filter(|call| !is_renewed && !call.is_definite() && !is_older(life, call)).collect()
        }
    };
    causes.iter().map(|call| call.sent_us).min().unwrap_or(u64::MAX)
}

/// Whether `unanswered` was done before another acquire, which found the lease standing though nothing else can have made it.
fn is_older(life: &Life, unanswered: &Call) -> bool {
    let newer = life.acquires().map(|acquire| acquire.call).filter(|call| found_standing(call));
    newer.into_iter().any(|newer| {
        let mut others = life.possible_acquires().map(|acquire| acquire.call);
        others.all(|it| it.id == unanswered.id || it.id == newer.id || it.sent_us > newer.ended_us)
    })
}

/// Compares when somebody knew of the end with the time until which a client counts on the lease.
fn known_too_early(facts: &Facts, life: &Life, stage: &Stage, cause_us: u64, found: &mut Found) {
    let (Some(token), Some(end)) = (stage.token, stage.ended) else { return };
    let told = life.grants.iter().filter(|(call, grant)| !is_local(call) && grant.token == token);
    let until = |call: &Call, in_ms: Option<u64>| call.sent_us.saturating_add(in_ms.unwrap_or(0) * 1_000);
    let last = told.max_by_key(|(call, grant)| until(call, grant.expires_in_ms));
    let Some(&(call, grant)) = last else { return };
    found.saw("ends of leases that a client counted on");
    let until_us = until(call, grant.expires_in_ms).min(cause_us);
    if let Some(known) = facts.revisions.reached(end.revision.0).filter(|known| known.at_us < until_us) {
        let what = format!(
            "lease {}, token {token}, had ended at {}, and was to live until {}",
            end.lease_id,
            at(known.at_us),
            at(until_us)
        );
        found.breach(what, known.call.into_iter().chain([call.id]));
    }
}

fn expired_too_early(life: &Life, stage: &Stage, found: &mut Found) {
    let (Some(granted), Some(ended), Some(ttl_ms)) = (stage.begun, stage.ended, life.ttls_ms().min()) else {
        return;
    };
    if ended.reason == Some(EndReason::Expired) && ended.at_ms <= granted.at_ms.saturating_add(ttl_ms) {
        let what = format!(
            "in the log, lease {}, token {}, was granted for {ttl_ms} ms at {} ms of cluster time and expired at {} ms",
            ended.lease_id, granted.revision, granted.at_ms, ended.at_ms
        );
        found.breach(what, life.ids());
    }
}

fn bounded_end(facts: &Facts) -> Found {
    let mut found = Found::default();
    let end = &facts.history.end;
    let Some(last) = end.keys.iter().map(|view| view.revision.0).max() else {
        found.undecided = Some("there are no final reads".to_owned());
        return found;
    };
    let held: BTreeSet<Token> =
        end.keys.iter().flat_map(|view| &view.holders).map(|holder| holder.token).collect();
    for (lease, life) in &facts.lives {
        let token = life.tokens.iter().find(|token| held.contains(token));
        let waits =
            life.stages.last().is_some_and(|stage| stage.token.is_none() && stage.during.contains(&last));
        let due_us = due_us(life, waits, end.healed_us);
        let Some(due_us) = due_us.filter(|due_us| *due_us < end.read_us) else { continue };
        if !life.tokens.is_empty() {
            found.saw("leases that had to end");
        }
        if waits || token.is_some() {
            let what = token.map_or("waits".to_owned(), |token| format!("holds with token {token}"));
            let (read, due) = (at(end.read_us), at(due_us));
            found.breach(format!("lease {lease} {what} at {read}, and had to end by {due}"), life.ids());
        }
    }
    found.needs(&["leases that had to end"], "the final reads were made before any lease had to end");
    found
}

/// When a lease, or its place in the queue, must have ended; `None` if nobody asked for it.
fn due_us(life: &Life, waits: bool, healed_us: u64) -> Option<u64> {
    let acquired = life.possible_acquires().map(|acquire| {
        // It may be granted at the end of its wait, or of its place.
        let is_open = waits || !matches!(acquire.call.conclusion, Conclusion::Granted { .. });
        let from_us = if waits { acquire.call.ended_us.max(healed_us) } else { acquire.call.ended_us };
        from_us + if is_open { acquire.place_ms() * 1_000 } else { 0 }
    });
    let last_us = acquired.max();
    if waits {
        return Some(last_us? + LATE_US);
    }
    let renewals = life
        .calls
        .iter()
        .filter(|call| matches!(call.invocation, Invocation::Renew { .. }) && call.may_be_done());
    let wanted_us = last_us.into_iter().chain(renewals.map(|call| call.ended_us)).max().unwrap_or(0);
    Some(wanted_us.max(healed_us) + life.ttls_ms().max()? * 1_000 + LATE_US)
}
