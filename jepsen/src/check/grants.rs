//! What was acknowledged stays: grants, releases, refusals.
//!
//! - A grant that anybody was told of stands in the agreed log with its token and its lease, as far as the log was read
//!   (what came before it began cannot be looked up; what is beyond all that there is in the end was lost).
//! - Until its end in the log, every definite answer about it agrees: it is not unknown, gone, or waiting again. From the
//!   revision on a view lists exactly those whom the log has as holders then, local views as well.
//! - Who was called dead is not called alive by a later call, whatever the log says.
//! - A release or revoke that was answered as done has its end in the log.
//! - What was certainly not done did nothing: a lease is granted, queued or found standing only after an acquire was sent that
//!   may have been done, and ended as released only after such a release. When a change came is known from whoever was told
//!   of its revision, or of a later one.
//!
//! An id is remembered for 60 s of cluster time after its end, which are 60 s of real time at least. So `unknown-lease` and
//! what may follow it is only held against the cluster if that much cannot have passed, or if the log has no end at all.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_wire::{EndReason, Key, KeyView, LeaseId, ProblemKind, Token, VerdictName};

use super::lives::{
    Life, Lives, Peaks, REMEMBERED_MS, at, did_nothing, fence_peaks, found_standing, is_local, problem,
    revisions, views,
};
use super::{Checker, Found};
use crate::history::{Asked, Call, Came, Change, ChangeName, History};

/// No acknowledged grant is lost.
pub const NO_GRANT_LOST: Checker = Checker {
    name: "no-grant-lost",
    law: "What was acknowledged stays: a grant is in the agreed log and in every answer until its end, a release is an \
          end, and what was certainly not done was not done.",
    check,
};

fn check(history: &History) -> Found {
    let mut found = Found::default();
    let lives = Lives::of(history);
    grants_are_in_the_log(history, &lives, &mut found);
    views_agree_with_the_log(history, &lives, &mut found);
    let peaks = fence_peaks(history);
    let revisions = revisions(history);
    let signs = signs(history, &lives);
    for (&lease, life) in &lives.by_id {
        not_done_is_not_done(lease, life, &mut found);
        nothing_comes_before_its_cause(lease, life, &revisions, &mut found);
        // Of a lease with two tokens the answers do not tell which they are about; that is another law's breach.
        let [token] = life.tokens()[..] else { continue };
        let one = One { lease, life, token, whole: lives.log_is_whole };
        one.answers_agree(&mut found);
        one.ends_are_in_the_log(lives.revokes.get(&token), &mut found);
        one.the_dead_stay_dead(signs.get(&token), &peaks, &mut found);
    }
    if !found.counts.contains_key("grants found in the log") {
        found.undecided = Some("no acknowledged grant could be looked up in the log".to_owned());
    }
    found
}

fn grants_are_in_the_log(history: &History, lives: &Lives, found: &mut Found) {
    let last = lives.log.last_key_value().map_or(0, |(&revision, _)| revision);
    let end = history.end.keys.iter().map(|view| view.revision.0).max();
    for (lease, life) in &lives.by_id {
        let mut told = BTreeSet::new();
        for (call, grant) in &life.grants {
            let token = grant.token;
            if !told.insert(token) {
                continue;
            }
            found.saw("grants acknowledged");
            let lost = |why: &str| format!("the grant of lease {lease} with token {token} was lost: {why}");
            match lives.log.get(&token.0) {
                Some(change) if change.lease_id == *lease && change.change == ChangeName::Granted => {
                    found.saw("grants found in the log");
                }
                Some(change) => {
                    let why = format!("the log has lease {} {:?} there", change.lease_id, change.change);
                    found.breach(lost(&why), [call.id]);
                }
                None if token.0 <= history.end.changes_after.0 => found.saw("grants from before the log"),
                None if token.0 < last => found.breach(lost("the log does not have it"), [call.id]),
                None if end.is_some_and(|end| end < token.0) && call.ended_us < history.end.read_us => {
                    found.breach(lost("it is beyond all that there is in the end"), [call.id]);
                }
                None => found.saw("grants beyond the log"),
            }
        }
    }
}

/// Goes through the changes of each key, and looks at each view when the holders are those of its revision.
fn views_agree_with_the_log(history: &History, lives: &Lives, found: &mut Found) {
    let Some(&last) = lives.log.keys().next_back() else { return };
    let after = history.end.changes_after;
    let mut changes: BTreeMap<&Key, Vec<&Change>> = BTreeMap::new();
    for change in lives.log.values() {
        for changed in &change.keys {
            changes.entry(&changed.key).or_default().push(change);
        }
    }
    let mut seen: BTreeMap<&Key, Vec<(Option<&Call>, &KeyView)>> = BTreeMap::new();
    for (call, view) in views(history) {
        if (after.0..=last).contains(&view.revision.0) {
            seen.entry(&view.key).or_default().push((call, view));
        }
    }
    for (key, mut seen) in seen {
        seen.sort_by_key(|(_, view)| view.revision);
        let mut changes = changes.remove(key).unwrap_or_default().into_iter().peekable();
        let mut holders: BTreeSet<Token> = BTreeSet::new();
        for (call, view) in seen {
            found.saw("views held against the log");
            while let Some(change) = changes.next_if(|change| change.revision <= view.revision) {
                match (change.change, change.token) {
                    (ChangeName::Granted, Some(token)) => drop(holders.insert(token)),
                    (ChangeName::Ended, Some(token)) => drop(holders.remove(&token)),
                    _ => {}
                }
            }
            let listed: BTreeSet<Token> = view.holders.iter().map(|holder| holder.token).collect();
            let when =
                call.map_or("the final view".to_owned(), |call| format!("a view at {}", at(call.ended_us)));
            let calls = call.map(|call| call.id);
            for lost in holders.difference(&listed) {
                let what = format!(
                    "{when} of {key} at revision {} lacks token {lost}, which lives by the log",
                    view.revision
                );
                found.breach(what, calls);
            }
            for extra in listed.difference(&holders).filter(|token| token.0 > after.0) {
                let what = format!(
                    "{when} of {key} at revision {} lists token {extra}, which does not live by the log",
                    view.revision
                );
                found.breach(what, calls);
            }
        }
    }
}

fn not_done_is_not_done(lease: LeaseId, life: &Life, found: &mut Found) {
    let mut acquires = life.acquires().map(|acquire| acquire.call).peekable();
    let Some(first) = acquires.peek().map(|call| call.id) else { return };
    if !acquires.all(did_nothing) {
        return;
    }
    found.saw("leases certainly not acquired");
    let change = life.changes.iter().find(|c| matches!(c.change, ChangeName::Granted | ChangeName::Queued));
    let told = life.grants.first().map(|(call, _)| call.id);
    if let Some(change) = change {
        let what = format!(
            "no acquire of lease {lease} was done, by their answers, but it is {:?} at revision {} of the log",
            change.change, change.revision
        );
        found.breach(what, [first].into_iter().chain(told));
    } else if let Some(told) = told {
        found.breach(
            format!("no acquire of lease {lease} was done, by their answers, but it lives"),
            [first, told],
        );
    }
}

/// Whoever is told "not done" asks again, and that is done: so it is looked at when a thing was done, too.
fn nothing_comes_before_its_cause(lease: LeaseId, life: &Life, revisions: &Peaks, found: &mut Found) {
    let all_acquires: Vec<&Call> = life.acquires().map(|acquire| acquire.call).collect();
    let acquires: Vec<&Call> = all_acquires.iter().copied().filter(|call| !did_nothing(call)).collect();
    let Some(first) = acquires.iter().min_by_key(|call| call.sent_us) else { return };
    for call in life.calls.iter().filter(|call| found_standing(call)) {
        if !acquires.iter().any(|acquire| acquire.id != call.id && acquire.sent_us <= call.ended_us) {
            let what = format!(
                "lease {lease} stood already at {}, but no acquire of it that was sent before was done, by their answers",
                at(call.ended_us)
            );
            found.breach(what, all_acquires.iter().map(|acquire| acquire.id).chain([call.id]));
        }
    }
    let releases = life.calls.iter().filter(|call| matches!(call.asked, Asked::Release { .. }));
    let release = releases.filter(|call| call.may_be_done()).min_by_key(|call| call.sent_us);
    for change in &life.changes {
        let cause = match (change.change, change.reason) {
            (ChangeName::Granted | ChangeName::Queued, _) => Some(first),
            (ChangeName::Ended, Some(EndReason::Released)) => release,
            _ => None,
        };
        let Some(cause) = cause else { continue };
        found.saw("changes held against what caused them");
        if let Some((revision, call)) = revisions.before(cause.sent_us)
            && revision >= change.revision.0
        {
            let what = format!(
                "lease {lease} is {:?} at revision {} of the log, which was over at {}, before anything was sent that \
                 can have done it",
                change.change,
                change.revision,
                at(cause.sent_us)
            );
            found.breach(what, [call, cause.id]);
        }
    }
}

/// What calls say of a token besides answers to its owner: when it was first known dead, and last alive.
#[derive(Clone, Copy, Default)]
struct Signs {
    dead: Option<(u64, u64)>,
    alive: Option<(u64, u64)>,
}

impl Signs {
    fn dead(&mut self, call: &Call) {
        let sign = (call.ended_us, call.id);
        self.dead = Some(self.dead.map_or(sign, |first| first.min(sign)));
    }

    fn alive(&mut self, call: &Call) {
        let sign = (call.sent_us, call.id);
        self.alive = Some(self.alive.map_or(sign, |last| last.max(sign)));
    }
}

fn signs(history: &History, lives: &Lives) -> BTreeMap<Token, Signs> {
    // A token that is not given out yet is stale as well.
    let is_known = |token: Token, us: u64| {
        let grants = lives.with_token(token).into_iter().flat_map(|life| &life.grants);
        grants.into_iter().any(|(call, grant)| grant.token == token && call.ended_us < us)
    };
    let mut signs: BTreeMap<Token, Signs> = BTreeMap::new();
    for call in &history.calls {
        match (&call.asked, &call.came) {
            (Asked::Validate { token, .. }, Came::Verdict { verdict }) => match verdict.verdict {
                VerdictName::Live if !is_local(call) => signs.entry(*token).or_default().alive(call),
                VerdictName::Stale if is_known(*token, call.sent_us) => {
                    signs.entry(*token).or_default().dead(call)
                }
                _ => {}
            },
            (Asked::Key { local: false, .. }, Came::Key { view }) => {
                view.holders.iter().for_each(|holder| signs.entry(holder.token).or_default().alive(call));
            }
            (Asked::Revoke { token, .. }, Came::Done) => signs.entry(*token).or_default().dead(call),
            _ => {}
        }
    }
    signs
}

/// A lease with one token.
struct One<'a> {
    lease: LeaseId,
    life: &'a Life<'a>,
    token: Token,
    whole: bool,
}

impl One<'_> {
    /// Whether the log, read to the end, has its grant and no end.
    fn never_ended(&self) -> bool {
        self.whole && self.life.granted(self.token).is_some() && self.life.ended(self.token).is_none()
    }

    /// Whether the id must have been remembered during this call, had it ended right after it was first asked for.
    fn is_remembered(&self, call: &Call) -> bool {
        self.life.first_sent_us().is_some_and(|us| call.ended_us < us + REMEMBERED_MS * 1_000)
    }

    fn answers_agree(&self, found: &mut Found) {
        let known = self.life.grants.iter().min_by_key(|(call, _)| call.ended_us);
        let Some(&(known, _)) = known else { return };
        let later = |call: &&&Call| call.sent_us > known.ended_us && !is_local(call);
        let logged = self.life.ended(self.token).and_then(|ended| ended.reason);
        for call in self.life.calls.iter().filter(later) {
            found.saw("later answers");
            let says = match &call.came {
                Came::Refused { problem: ProblemKind::LeaseGone, reason } => {
                    let other = |logged: EndReason| reason.is_some_and(|reason| reason != logged);
                    let agrees = !self.never_ended() && !logged.is_some_and(other);
                    if agrees || logged.is_some() && !self.is_remembered(call) {
                        continue;
                    }
                    reason.map_or("gone".to_owned(), |reason| format!("gone, {reason:?}"))
                }
                Came::Refused { problem, .. } => match problem {
                    ProblemKind::UnknownLease => "unknown".to_owned(),
                    ProblemKind::NotGranted => "not granted yet".to_owned(),
                    ProblemKind::WaitTimeout => "waited in vain".to_owned(),
                    _ => continue,
                },
                Came::Waiting { .. } => "waiting".to_owned(),
                _ => continue,
            };
            if self.is_remembered(call) || self.never_ended() {
                let (lease, token) = (self.lease, self.token);
                let log = match (logged, self.never_ended()) {
                    (Some(reason), _) => format!("; by the log it ended as {reason:?}"),
                    (None, true) => "; by the log it never ended".to_owned(),
                    (None, false) => String::new(),
                };
                let what =
                    format!("lease {lease} was granted with token {token}, and later called {says}{log}");
                found.breach(what, [known.id, call.id]);
            }
        }
    }

    fn ends_are_in_the_log(&self, revokes: Option<&Vec<&Call>>, found: &mut Found) {
        let released = self.life.calls.iter().filter(|call| matches!(call.asked, Asked::Release { .. }));
        let all = released.chain(revokes.into_iter().flatten()).filter(|call| call.came == Came::Done);
        for call in all {
            found.saw("releases and revokes acknowledged");
            // An acquire that is sent after a release was forgotten is granted rightly.
            let asked_us = self.life.acquires().map(|acquire| acquire.call.ended_us).max().unwrap_or(0);
            if self.never_ended() && asked_us < call.sent_us + REMEMBERED_MS * 1_000 {
                let (lease, token) = (self.lease, self.token);
                let what = format!(
                    "lease {lease}, token {token}, was ended at {}, but by the log it never ended",
                    at(call.ended_us)
                );
                found.breach(what, [call.id]);
            }
        }
    }

    fn the_dead_stay_dead(&self, signs: Option<&Signs>, fences: &BTreeMap<&Key, Peaks>, found: &mut Found) {
        let mut signs = signs.copied().unwrap_or_default();
        // What was said before anybody knew of the grant may be of a life before, forgotten since.
        let known_us = self.life.grants.iter().map(|(call, _)| call.ended_us).min();
        for call in &self.life.calls {
            let later = known_us.is_some_and(|us| us < call.sent_us);
            match &call.came {
                Came::Granted { .. } if !is_local(call) => signs.alive(call),
                Came::Refused { .. } if later && problem(call) == Some(ProblemKind::LeaseGone) => {
                    signs.dead(call);
                }
                Came::Done if later && matches!(call.asked, Asked::Release { .. }) => signs.dead(call),
                _ => {}
            }
        }
        let (lease, token) = (self.lease, self.token);
        if let (Some((dead_us, dead)), Some((alive_us, alive))) = (signs.dead, signs.alive)
            && dead_us < alive_us
        {
            let what = format!("lease {lease}, token {token}, was over at {} and alive later", at(dead_us));
            found.breach(what, [dead, alive]);
        }
        let Some((alive_us, alive)) = signs.alive else { return };
        for (key, _) in self.life.holds(token) {
            if let Some((fence, call)) = fences.get(key).and_then(|peaks| peaks.before(alive_us))
                && fence > token.0
            {
                let what =
                    format!("lease {lease}, token {token}, was alive below the fence {fence} of {key}");
                found.breach(what, [call, alive]);
            }
        }
        if let Some((dead_us, dead)) = signs.dead
            && self.never_ended()
        {
            let what = format!(
                "lease {lease}, token {token}, was over at {}, but by the log it never ended",
                at(dead_us)
            );
            found.breach(what, [dead]);
        }
    }
}

#[cfg(test)]
mod tests;
