//! Every answer is compared with the replayed log: what it says was so at one instant of the call.
//!
//! The table numbers its states, so there is hardly anything to search for. A view of a key carries its revision, and must
//! be the state of the key there: holders, waiters and fence. An answer without a revision (a grant, a verdict, a refusal)
//! must fit at least one of the revisions that the table can have had during the call, for all that it says at once. Those
//! follow from what other calls prove ([`Facts::revisions`]). So a lease that anybody called over is never called alive by
//! a later call, a grant stays until its end in the log, and nobody is shown less than was known before.
//!
//! The state of a single node may lag: its answers must fit any revision up to the call. Its verdicts are never `live`, and
//! `stale` must be right.
//!
//! An id is remembered for 60 s of cluster time after its end, which are 60 s of real time at least. `unknown-lease` is a
//! breach only if the lease had begun and that much cannot have passed, or if the log has it waiting or live.
//!
//! Answers at revisions that the log does not reach are not compared. How long a lease has left, how many are ahead of a
//! waiter, and who made a key not free for a shared claim are not looked at.

use std::ops::Range;

use ringfence_wire::{
    EndReason, Grant, Key, KeyView, LeaseId, Mode, ProblemKind, Token, Verdict, VerdictName,
};

use super::facts::{Facts, Life, at, is_local};
use super::log::{Line, Log};
use super::{Checker, Found, causes, transactions};
use crate::history::{Call, ChangeName, Conclusion, Invocation, Seen};

/// No acknowledged grant is lost.
pub const NO_GRANT_LOST: Checker = Checker {
    name: "no-grant-lost",
    law: "What was acknowledged stays: a grant is in the agreed log and in every answer until its end, a release is an \
          end, and what was certainly not done was not done.",
    check: no_grant_lost,
};

/// Reads and verdicts show the table as it was at one instant of the call.
pub const LINEARIZABLE_READS: Checker = Checker {
    name: "linearizable-reads",
    law: "What a linearizable call shows is the table at one instant of the call; what a local one shows, an earlier one.",
    check: linearizable_reads,
};

/// What an answer says about the table.
enum Says<'h> {
    Key(&'h KeyView),
    /// It is free.
    Free(&'h Key),
    /// They are not all free.
    Taken(Vec<&'h Key>),
    Verdict(&'h Key, Token, Verdict),
    Granted(&'h Grant),
    /// It waits.
    Waiting(LeaseId),
    /// It neither waits nor holds, and ended for this reason, if one is given.
    Over(LeaseId, Option<EndReason>),
    Unknown(LeaseId),
}

fn no_grant_lost(facts: &Facts) -> Found {
    let mut found = Found::default();
    grants_are_in_the_log(facts, &mut found);
    for view in &facts.history.end.keys {
        compare_view(facts, view, "the final view", None, &mut found);
    }
    for call in facts.history.calls.iter().filter(|call| !is_read(call)) {
        compare(facts, call, &mut found);
    }
    causes::precede_their_changes(facts, &mut found);
    transactions::sets_have_their_grants(facts, &mut found);
    found.needs(&["grants found in the log"], "no acknowledged grant could be looked up in the log");
    found
}

fn linearizable_reads(facts: &Facts) -> Found {
    let mut found = Found::default();
    for call in facts.history.calls.iter().filter(|call| is_read(call)) {
        compare(facts, call, &mut found);
    }
    let compared = ["views compared with the log", "verdicts", "looks at leases"];
    found.needs(&compared, "nothing that was read linearizably could be compared with the log");
    found
}

fn is_read(call: &Call) -> bool {
    use Invocation::{Get, Key, Lease, Validate};
    matches!(call.invocation, Key { .. } | Validate { .. } | Lease { .. } | Get { .. })
}

fn grants_are_in_the_log(facts: &Facts, found: &mut Found) {
    let (log, end) = (&facts.log, &facts.history.end);
    let read = end.keys.iter().map(|view| view.revision).max();
    for (lease, life) in &facts.lives {
        for (call, grant) in &life.grants {
            let token = grant.token;
            let in_log = life
                .held(token)
                .and_then(|stage| stage.begun)
                .is_some_and(|c| c.change == ChangeName::Granted);
            let lost = |why: &str| format!("the grant of lease {lease} with token {token} was lost: {why}");
            if in_log {
                found.saw("grants found in the log");
            } else if token.0 <= log.after {
                found.saw("grants from before the log");
            } else if token.0 <= log.last {
                found.breach(lost("the log does not have it"), [call.id]);
            } else if read.is_some_and(|read| read.0 < token.0) && call.ended_us < end.read_us {
                found.breach(lost("it is beyond everything that exists at the end"), [call.id]);
            }
        }
    }
}

/// Compares an answer with the states that it can have seen.
fn compare(facts: &Facts, call: &Call, found: &mut Found) {
    let Some(says) = says(facts, call) else { return };
    let (log, local) = (&facts.log, is_local(call));
    let seen = if local { "local " } else { "" };
    if let Says::Key(view) = says {
        found.saw(&format!("{seen}views of keys"));
        compare_view(facts, view, &format!("a view at {}", at(call.ended_us)), Some(call), found);
        return;
    }
    let Some(span) = span(facts, call) else { return };
    let wrong = match says {
        Says::Verdict(key, token, verdict) => {
            let Some(line) = log.known_line(key) else { return };
            found.saw(&format!("{seen}verdicts"));
            let life = line.life(token.0);
            (!verdict_fits(&verdict, token, line, &span, local)).then(|| {
                let Verdict { verdict, fence } = verdict;
                format!(
                    "{key}: token {token} was called {verdict:?} with fence {fence}; it lived {}",
                    words(&life)
                )
            })
        }
        Says::Granted(grant) => {
            found.saw(if is_read(call) { "looks at leases" } else { "grants and renewals" });
            let mut fits = span.clone();
            for held in &grant.keys {
                let Some(line) = log.known_line(&held.key) else { continue };
                fits = meet(&fits, &meet(&line.with_fence(held.fence.0), &line.life(grant.token.0)));
            }
            let fences: Vec<u64> = grant.keys.iter().map(|held| held.fence.0).collect();
            let (lease, token) = (grant.lease_id, grant.token);
            fits.is_empty()
                .then(|| format!("lease {lease} was called alive with token {token} and fences {fences:?}"))
        }
        _ if !log.is_whole => return,
        Says::Free(_) | Says::Taken(_) => not_so(&says, log, &span, found),
        Says::Waiting(lease) | Says::Over(lease, _) | Says::Unknown(lease) => {
            found.saw(if is_read(call) { "looks at leases" } else { "other answers" });
            contradiction(&says, &facts.lives[&lease], call, &span)
                .map(|said| format!("lease {lease} was called {said}"))
        }
        Says::Key(_) => None,
    };
    if let Some(what) = wrong {
        let (first, last) = (span.start, span.end - 1);
        let floor = facts.revisions.floor(call.sent_us).filter(|_| !local).and_then(|known| known.call);
        let what = format!("{what}; not so at any revision that the call can have seen, {first} to {last}");
        found.breach(what, floor.into_iter().chain([call.id]));
    }
}

fn says<'h>(facts: &Facts, call: &'h Call) -> Option<Says<'h>> {
    use ProblemKind::{Held, LeaseGone, NotGranted, UnknownLease, WaitTimeout};
    Some(match (&call.invocation, &call.conclusion) {
        (Invocation::Get { key }, Conclusion::Value { seen: Seen::Nothing }) => Says::Free(key),
        (Invocation::Get { key }, Conclusion::Value { .. }) => Says::Taken(vec![key]),
        (Invocation::Acquire { keys, .. }, Conclusion::Refused { problem: Held, .. })
            if keys.iter().all(|wanted| wanted.mode == Mode::Exclusive) =>
        {
            Says::Taken(keys.iter().map(|wanted| &wanted.key).collect())
        }
        (_, Conclusion::Key { view }) => Says::Key(view),
        (Invocation::Validate { key, token, .. }, Conclusion::Verdict { verdict }) => {
            Says::Verdict(key, *token, *verdict)
        }
        (_, Conclusion::Granted { grant, .. }) => Says::Granted(grant),
        (_, Conclusion::Waiting { .. }) | (_, Conclusion::Refused { problem: NotGranted, .. }) => {
            Says::Waiting(call.invocation.lease()?)
        }
        (Invocation::Release { lease }, Conclusion::Done) => Says::Over(*lease, None),
        (Invocation::Revoke { token, .. }, Conclusion::Done) => Says::Over(*facts.by_token.get(token)?, None),
        (_, Conclusion::Refused { problem: LeaseGone, reason }) => {
            Says::Over(call.invocation.lease()?, *reason)
        }
        (_, Conclusion::Refused { problem: WaitTimeout, .. }) => Says::Over(call.invocation.lease()?, None),
        (_, Conclusion::Refused { problem: UnknownLease, .. }) => Says::Unknown(call.invocation.lease()?),
        _ => return None,
    })
}

/// The revisions that the call can have seen, if the log has them all.
fn span(facts: &Facts, call: &Call) -> Option<Range<u64>> {
    let log = &facts.log;
    let floor =
        facts.revisions.floor(call.sent_us).filter(|_| !is_local(call)).map_or(0, |known| known.number);
    let last = match facts.revisions.ceiling(call.ended_us) {
        Some(most) => most.number,
        // The log was read after all that ended before the final reads.
        None => Some(log.last).filter(|_| call.ended_us < facts.history.end.read_us)?,
    };
    (floor <= last && log.has(floor) && log.has(last)).then_some(floor..last + 1)
}

fn verdict_fits(verdict: &Verdict, token: Token, line: &Line, span: &Range<u64>, local: bool) -> bool {
    let (at, life) = (meet(span, &line.with_fence(verdict.fence.0)), line.life(token.0));
    match verdict.verdict {
        VerdictName::Live => !local && !meet(&at, &life).is_empty(),
        VerdictName::Stale => !meet(&at, &(life.end.max(token.0)..u64::MAX)).is_empty(),
        VerdictName::Unknown if local => !at.is_empty(),
        VerdictName::Unknown => !meet(&at, &(0..token.0)).is_empty(),
    }
}

/// What the answer says, if the keys were not so at any revision of `span`.
fn not_so(says: &Says, log: &Log, span: &Range<u64>, found: &mut Found) -> Option<String> {
    let was = |key: &Key, is_free| {
        log.known_line(key).is_none_or(|it| it.was(span, |step| step.is_free() == is_free))
    };
    match says {
        Says::Free(key) => {
            found.saw("free keys");
            (!was(key, true)).then(|| format!("{key} was called free"))
        }
        Says::Taken(keys) => {
            found.saw("keys that were not free");
            (!keys.iter().any(|key| was(key, false))).then(|| format!("{} was called held", names(keys)))
        }
        _ => None,
    }
}

/// What the answer says, if the lease was not so at any revision of `span`.
fn contradiction(says: &Says, life: &Life, call: &Call, span: &Range<u64>) -> Option<String> {
    // The first revision of the span at which it neither waits nor holds.
    let free = life
        .stages
        .iter()
        .fold(span.start, |at, stage| if stage.during.contains(&at) { stage.during.end } else { at });
    let is_never_free = free >= span.end;
    match *says {
        Says::Waiting(_) => {
            let waits = life
                .stages
                .iter()
                .any(|stage| stage.token.is_none() && !meet(span, &stage.during).is_empty());
            (!waits).then(|| "waiting".to_owned())
        }
        Says::Over(_, reason) => {
            let ended =
                life.stages.iter().filter(|stage| stage.token.is_some() && stage.during.end < span.end);
            let mut reasons = ended.filter_map(|stage| stage.ended?.reason).peekable();
            let other = reasons.peek().copied().filter(|_| reason.is_some());
            let is_other = other.is_some() && reasons.all(|ended| Some(ended) != reason);
            let reason = reason.map_or(String::new(), |reason| format!(", {reason:?}"));
            let log = other
                .filter(|_| is_other)
                .map_or(String::new(), |other| format!("; by the log it ended as {other:?}"));
            (is_never_free || is_other).then(|| format!("over{reason}{log}"))
        }
        Says::Unknown(_) => {
            let has_begun = life.stages.first().is_some_and(|first| first.during.start <= span.start);
            let is_known = has_begun && life.is_remembered(call.ended_us);
            (is_never_free || is_known).then(|| "unknown".to_owned())
        }
        _ => None,
    }
}

/// Compares a view with the state of its key at its revision.
fn compare_view(facts: &Facts, view: &KeyView, name: &str, call: Option<&Call>, found: &mut Found) {
    let (key, revision) = (&view.key, view.revision);
    let mut breach = |what: String, other: Option<u64>| {
        let calls = other.into_iter().chain(call.map(|call| call.id));
        found.breach(format!("{name} of {key} at revision {revision} {what}"), calls);
    };
    if let Some(call) = call {
        let floor =
            facts.revisions.floor(call.sent_us).filter(|floor| !is_local(call) && revision.0 < floor.number);
        if let Some(floor) = floor {
            breach(format!("is old: {} was known before it was asked for", floor.number), floor.call);
        }
        if let Some(most) = facts.revisions.ceiling(call.ended_us).filter(|most| revision.0 > most.number) {
            breach(format!("is early: a later call found {}", most.number), most.call);
        }
    }
    let Some(line) = facts.log.known_line(key).filter(|_| facts.log.has(revision.0)) else { return };
    let step = line.at(revision.0);
    for extra in view.holders.iter().filter(|holder| !line.life(holder.token.0).contains(&revision.0)) {
        breach(format!("lists token {}, which does not live by the log", extra.token), None);
    }
    let listed = |token: &u64| view.holders.iter().any(|holder| holder.token.0 == *token);
    for (lost, _) in line.lives.iter().filter(|(token, life)| life.contains(&revision.0) && !listed(token)) {
        breach(format!("lacks token {lost}, which lives by the log"), None);
    }
    if facts.log.is_whole && view.waiters.len() != step.waiters {
        breach(format!("shows {} waiters, not {}", view.waiters.len(), step.waiters), None);
    }
    found.saw("views compared with the log");
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

fn names(keys: &[&Key]) -> String {
    keys.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(", ")
}

fn words(life: &Range<u64>) -> String {
    match life {
        life if life.is_empty() => "never".to_owned(),
        Range { start, end: u64::MAX } => format!("from revision {start} on"),
        Range { start, end } => format!("from revision {start}, and was ended by revision {end}"),
    }
}
