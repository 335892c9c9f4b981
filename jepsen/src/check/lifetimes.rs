//! Leases live at least as long as their clients count, and not much longer than anybody wants them.
//!
//! **Not early.** A client that was told `expires_in_ms` counts from when it sent the request. Until then only four things
//! may end the lease: a release, a revoke, a time-to-live that ran out of what a *later* look was told (which is never
//! less), and, for an acquire without a known answer, its connection: the node that served it takes the lease back 2 s
//! later, unless a newer acquire came, or ever a renewal. Since such an acquire may be done late (a stopped node has it, or
//! the network), it excuses an `abandoned` end at any time. Not so where a renewal was done; or if it is known to be the
//! older: a repeat was answered with a lease that no other acquire can have made. Where answer or log name the reason, only
//! calls that fit it excuse.
//!
//! What shows that a lease is over, by a call that *ended* before the time: `lease-gone`, `unknown-lease`, a fence above
//! its token on one of its keys, a verdict `stale`, a view that has come as far as its token and does not list it. That a
//! lease which cannot stand beside it was granted is seen by the fence, or by [`super::exclusion`].
//!
//! In the log, in cluster time, an expiry comes later than its grant by more than the smallest time-to-live that anybody
//! asked for; renewals are not in the log, so nothing more can be told there.
//!
//! **Bounded.** Once the cluster is healed, a lease ends within its time-to-live after anybody wished it to live, and
//! [`LATE_US`]; a place in the queue likewise, after its wait. An unknown renewal or acquire counts as a wish until its client
//! gave up; what it does after that is covered by the bound, for a proposal is given 5 s. Leases that nobody in the history
//! asked for are not judged.
//!
//! Both speak of real time: in a run in which the monotonic clocks of nodes are faked, they say nothing.

use std::collections::BTreeMap;

use ringfence_wire::{EndReason, Key, LeaseId, ProblemKind, Token, VerdictName};

use super::lives::{
    Acquire, Life, Lives, Peaks, at, did_nothing, fence_peaks, found_standing, is_local, problem,
};
use super::{Checker, Found};
use crate::history::{Asked, Call, Came, ChangeName, History};

/// No lease ends before its time.
pub const NO_EARLY_END: Checker = Checker {
    name: "no-early-end",
    law: "No lease ends before its time as its client counts it, unless it is released, revoked or abandoned.",
    check: check_early,
};

/// All end in bounded time.
pub const BOUNDED_END: Checker = Checker {
    name: "bounded-end",
    law: "Once the cluster is healed, a lease that nobody renews ends within its time-to-live and 10 s.",
    check: check_bounded,
};

/// How long after its time-to-live a lease must have ended in a healed cluster.
const LATE_US: u64 = 10_000_000;

fn check_early(history: &History) -> Found {
    let mut found = Found::default();
    let lives = Lives::of(history);
    let peaks = fence_peaks(history);
    let verdicts = stale_verdicts(history);
    let mut covers = BTreeMap::new();
    for (&lease, life) in &lives.by_id {
        // Of a lease with two tokens the answers do not tell which they are about; that is another law's breach.
        let [token] = life.tokens()[..] else { continue };
        let seen = Seen { lease, life, token, excuses: Excuses::of(life, lives.revokes.get(&token)) };
        if let Some(cover) = seen.cover() {
            found.saw("leases counted on");
            seen.no_sign_of_an_end(cover, &peaks, verdicts.get(&token), &mut found);
            covers.insert(lease, cover);
        }
        seen.the_reason_is_true(&mut found);
        seen.not_early_in_the_log(&mut found);
    }
    views_list_who_is_counted_on(history, &lives, &covers, &mut found);
    if !found.counts.contains_key("leases counted on") || !found.counts.contains_key("ends") {
        found.undecided = Some("no lease was granted and ended".to_owned());
    }
    found
}

/// The calls that called a token stale.
fn stale_verdicts(history: &History) -> BTreeMap<Token, Vec<&Call>> {
    let mut stale: BTreeMap<Token, Vec<&Call>> = BTreeMap::new();
    for call in &history.calls {
        if let (Asked::Validate { token, .. }, Came::Verdict { verdict }) = (&call.asked, &call.came)
            && verdict.verdict == VerdictName::Stale
        {
            stale.entry(*token).or_default().push(call);
        }
    }
    stale
}

/// From when on a lease may have ended for which reason, besides its time.
struct Excuses {
    released_us: u64,
    revoked_us: u64,
    abandoned_us: u64,
}

impl Excuses {
    fn of(life: &Life, revokes: Option<&Vec<&Call>>) -> Self {
        let unanswered = |call: &&&Call| {
            matches!(call.asked, Asked::Acquire { .. }) && !call.is_definite() && !is_older(life, call)
        };
        let is_renewed =
            life.calls.iter().any(|call| matches!(call.asked, Asked::Renew { .. }) && found_standing(call));
        let releases = |call: &&&Call| matches!(call.asked, Asked::Release { .. }) && call.may_be_done();
        Self {
            released_us: first_us(life.calls.iter().filter(releases)),
            revoked_us: first_us(revokes.into_iter().flatten().filter(|call| call.may_be_done())),
            abandoned_us: if is_renewed { u64::MAX } else { first_us(life.calls.iter().filter(unanswered)) },
        }
    }

    /// From when on this reason is excused; any of them if it is not known.
    fn since_us(&self, reason: Option<EndReason>) -> u64 {
        match reason {
            Some(EndReason::Expired) => u64::MAX,
            Some(EndReason::Released) => self.released_us,
            Some(EndReason::Revoked) => self.revoked_us,
            Some(EndReason::Abandoned) => self.abandoned_us,
            None => self.released_us.min(self.revoked_us).min(self.abandoned_us),
        }
    }
}

/// Whether `unanswered` was done before another acquire: that was answered with a lease which stood already, and nothing
/// else can have made it stand. What becomes of its connection means nothing from then on.
fn is_older(life: &Life, unanswered: &Call) -> bool {
    life.calls.iter().any(|&newer| {
        let made_by_another = |acquire: Acquire| {
            let call = acquire.call;
            call.id != unanswered.id
                && call.id != newer.id
                && !did_nothing(call)
                && call.sent_us <= newer.ended_us
        };
        found_standing(newer)
            && matches!(newer.asked, Asked::Acquire { .. })
            && !life.acquires().any(made_by_another)
    })
}

/// When the first of these calls was sent.
fn first_us<'a, 'b: 'a>(calls: impl Iterator<Item = &'a &'b Call>) -> u64 {
    calls.map(|call| call.sent_us).min().unwrap_or(u64::MAX)
}

/// A lease is counted on: by whom, since when that is known, and until when.
#[derive(Clone, Copy)]
struct Cover {
    since_us: u64,
    until_us: u64,
    call: u64,
}

struct Seen<'a> {
    lease: LeaseId,
    life: &'a Life<'a>,
    token: Token,
    excuses: Excuses,
}

impl Seen<'_> {
    /// The latest time until which anybody counts on it, as long as nothing but time may end it.
    fn cover(&self) -> Option<Cover> {
        let told = self.life.grants.iter().filter(|(call, _)| !is_local(call));
        let until = |call: &Call, in_ms: Option<u64>| call.sent_us.saturating_add(in_ms.unwrap_or(0) * 1_000);
        let last = told.clone().max_by_key(|(call, grant)| until(call, grant.expires_in_ms))?;
        let reason = self.life.ended(self.token).and_then(|ended| ended.reason);
        let until_us = until(last.0, last.1.expires_in_ms).min(self.excuses.since_us(reason));
        let since_us = told.map(|(call, _)| call.ended_us).min()?;
        Some(Cover { since_us, until_us, call: last.0.id })
    }

    fn no_sign_of_an_end(
        &self,
        cover: Cover,
        fences: &BTreeMap<&Key, Peaks>,
        stale: Option<&Vec<&Call>>,
        found: &mut Found,
    ) {
        for call in self.life.calls.iter().filter(|call| call.ended_us < cover.until_us) {
            let gone = match &call.came {
                Came::Refused { problem: ProblemKind::LeaseGone, reason } => {
                    // What the answer says is worth more than what might have been.
                    call.ended_us < self.excuses.since_us(*reason)
                }
                // One that was sent before anybody knew of the grant may have come before it.
                _ => {
                    problem(call) == Some(ProblemKind::UnknownLease)
                        && !is_local(call)
                        && call.sent_us > cover.since_us
                }
            };
            if gone {
                self.early(cover, call.id, "an answer says that it is gone", found);
            }
        }
        for (key, _) in self.life.holds(self.token) {
            if let Some((fence, call)) = fences.get(key).and_then(|peaks| peaks.before(cover.until_us))
                && fence > self.token.0
            {
                self.early(cover, call, &format!("the fence of {key} is {fence}"), found);
            }
        }
        // A token that is not given out yet is stale as well.
        let within = |call: &&&Call| call.ended_us < cover.until_us && call.sent_us > cover.since_us;
        if let Some(call) = stale.into_iter().flatten().find(within) {
            self.early(cover, call.id, "its token was called stale", found);
        }
    }

    fn early(&self, cover: Cover, shown_by: u64, how: &str, found: &mut Found) {
        let (lease, token, until) = (self.lease, self.token, at(cover.until_us));
        let what =
            format!("lease {lease}, token {token}, ended before {until}, until when it should live: {how}");
        found.breach(what, [cover.call, shown_by]);
    }

    /// An end has somebody who wanted it, whenever it was.
    fn the_reason_is_true(&self, found: &mut Found) {
        if self.life.acquires().next().is_none() {
            return;
        }
        let logged = self.life.ended(self.token).and_then(|ended| Some((None, ended.reason?)));
        let told = self.life.calls.iter().filter_map(|call| match &call.came {
            Came::Refused { problem: ProblemKind::LeaseGone, reason } => Some((Some(call.id), (*reason)?)),
            _ => None,
        });
        for (call, reason) in logged.into_iter().chain(told) {
            found.saw("ends");
            if reason != EndReason::Expired && self.excuses.since_us(Some(reason)) == u64::MAX {
                let (lease, token) = (self.lease, self.token);
                let what =
                    format!("lease {lease}, token {token}, ended as {reason:?}, which no call asked for");
                found.breach(what, call);
            }
        }
    }

    fn not_early_in_the_log(&self, found: &mut Found) {
        let (Some(granted), Some(ended)) = (self.life.granted(self.token), self.life.ended(self.token))
        else {
            return;
        };
        let renewed = self.life.calls.iter().filter_map(|call| match &call.asked {
            Asked::Renew { ttl_ms, .. } => ttl_ms.map(u64::from),
            _ => None,
        });
        let Some(ttl_ms) = self.life.acquires().map(|acquire| acquire.ttl_ms).chain(renewed).min() else {
            return;
        };
        if ended.reason == Some(EndReason::Expired) && ended.at_ms <= granted.at_ms.saturating_add(ttl_ms) {
            let (lease, token) = (self.lease, self.token);
            let (from_ms, to_ms) = (granted.at_ms, ended.at_ms);
            let what = format!(
                "in the log, lease {lease}, token {token}, was granted for {ttl_ms} ms at {from_ms} ms of cluster \
                 time and expired at {to_ms} ms"
            );
            found.breach(what, self.life.calls.iter().map(|call| call.id));
        }
    }
}

/// A view within the time in which a lease is counted on lists it, if it has come as far as its token.
fn views_list_who_is_counted_on(
    history: &History,
    lives: &Lives,
    covers: &BTreeMap<LeaseId, Cover>,
    found: &mut Found,
) {
    let mut by_key: BTreeMap<&Key, Vec<(Token, Cover)>> = BTreeMap::new();
    for (token, lease) in &lives.by_token {
        if let Some(cover) = covers.get(lease) {
            for (key, _) in lives.by_id[lease].holds(*token) {
                by_key.entry(key).or_default().push((*token, *cover));
            }
        }
    }
    let mut views: BTreeMap<&Key, Vec<&Call>> = BTreeMap::new();
    for call in &history.calls {
        if let Came::Key { view } = &call.came {
            views.entry(&view.key).or_default().push(call);
        }
    }
    for (key, mut views) in views {
        let Some(mut covers) = by_key.remove(key) else { continue };
        covers.sort_unstable_by_key(|(_, cover)| cover.since_us);
        views.sort_unstable_by_key(|call| call.sent_us);
        let mut coming = covers.into_iter().peekable();
        let mut counted: Vec<(Token, Cover)> = Vec::new();
        for call in views {
            let Came::Key { view } = &call.came else { continue };
            while let Some(cover) = coming.next_if(|(_, cover)| cover.since_us < call.sent_us) {
                counted.push(cover);
            }
            counted.retain(|(_, cover)| cover.until_us > call.sent_us);
            for (token, cover) in &counted {
                let reached = view.revision.0 >= token.0 && cover.until_us > call.ended_us;
                found.saw("looks at keys with leases counted on");
                if reached && view.holders.iter().all(|holder| holder.token != *token) {
                    let until = at(cover.until_us);
                    let what = format!(
                        "a view of {key} does not list token {token}, which should live until {until}"
                    );
                    found.breach(what, [cover.call, call.id]);
                }
            }
        }
    }
}

fn check_bounded(history: &History) -> Found {
    let mut found = Found::default();
    let lives = Lives::of(history);
    let end = &history.end;
    for life in lives.by_id.values().filter(|life| !life.tokens().is_empty()) {
        if due_us(life, end.healed_us).is_some_and(|due_us| due_us < end.read_us) {
            found.saw("leases that had to end");
        }
    }
    for view in &end.keys {
        for holder in &view.holders {
            let Some(life) = lives.with_token(holder.token) else { continue };
            let Some(due_us) = due_us(life, end.healed_us) else { continue };
            if due_us < end.read_us {
                let (token, key) = (holder.token, &view.key);
                let what = format!(
                    "token {token} holds {key} at {}, and had to end by {}",
                    at(end.read_us),
                    at(due_us)
                );
                found.breach(what, life.calls.iter().map(|call| call.id));
            }
        }
    }
    waiters(history, &lives, &mut found);
    if !found.counts.contains_key("leases that had to end") || end.keys.is_empty() {
        found.undecided = Some("the final reads were made before any lease had to end".to_owned());
    }
    found
}

/// When nobody's wish keeps it alive any longer; `None` if nobody asked for it.
fn due_us(life: &Life, healed_us: u64) -> Option<u64> {
    let asked = life.acquires().map(|acquire| acquire.ttl_ms);
    let renewed = life.calls.iter().filter_map(|call| match &call.asked {
        Asked::Renew { ttl_ms, .. } => ttl_ms.map(u64::from),
        _ => None,
    });
    let ttl_ms = asked.chain(renewed).max()?;
    // An acquire may be granted at the end of its wait, or of its place.
    let acquired = life.acquires().filter(|acquire| !did_nothing(acquire.call));
    let granted_us = acquired.map(|acquire| {
        let call = acquire.call;
        let open = !matches!(call.came, Came::Granted { .. });
        call.ended_us + if open { acquire.place_ms() * 1_000 } else { 0 }
    });
    let renewals =
        life.calls.iter().filter(|call| matches!(call.asked, Asked::Renew { .. }) && call.may_be_done());
    let wished_us = granted_us.chain(renewals.map(|call| call.ended_us)).max().unwrap_or(0);
    Some(wished_us.max(healed_us) + ttl_ms * 1_000 + LATE_US)
}

/// Waiters have no name in a view: the log tells who took a place and never left it.
fn waiters(history: &History, lives: &Lives, found: &mut Found) {
    let end = &history.end;
    if !lives.log_is_whole {
        return;
    }
    let crowded: Vec<&Key> =
        end.keys.iter().filter(|view| !view.waiters.is_empty()).map(|view| &view.key).collect();
    for (lease, life) in &lives.by_id {
        let Some(last) = life.changes.last().filter(|last| last.change == ChangeName::Queued) else {
            continue;
        };
        let Some(due_us) = wait_due_us(life, end.healed_us) else { continue };
        let waits = last.keys.iter().any(|changed| crowded.contains(&&changed.key));
        if waits && due_us < end.read_us {
            let what =
                format!("lease {lease} waits at {}, and had to leave by {}", at(end.read_us), at(due_us));
            found.breach(what, life.calls.iter().map(|call| call.id));
        }
    }
}

/// When its last wait, and the time that its place is kept, is over.
fn wait_due_us(life: &Life, healed_us: u64) -> Option<u64> {
    let waits = life.acquires().filter(|acquire| !did_nothing(acquire.call));
    let over_us =
        waits.map(|acquire| acquire.call.ended_us.max(healed_us) + acquire.place_ms() * 1_000).max()?;
    Some(over_us + LATE_US)
}

#[cfg(test)]
mod tests;
