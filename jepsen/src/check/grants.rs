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
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::super::story::{
        self, Story, acquire, gone, not_done, refused, release, renew, unknown, validate, verdict,
    };
    use super::*;

    /// One is released, one held to the end beside another, one certainly not acquired.
    fn fair() -> Story {
        let mut story = Story::new();
        story.acquires(1, "a", 0..10);
        story.looks("a", 11..12);
        story.releases(1, 20..30);
        story.call(31..32, renew(1), gone(EndReason::Released));
        story.acquires(2, "b:s c", 40..50);
        story.acquires(3, "b:s", 40..50);
        let granted = story.granted(2);
        story.call(60..70, renew(2), granted);
        story.call(71..72, acquire(4, "c"), refused(ProblemKind::Held));
        story.call(73..74, acquire(4, "c"), not_done());
        let token = story.token(2);
        story.call(75..76, validate("b", token), verdict(VerdictName::Live, token.0));
        story.end(100, 200);
        story
    }

    #[test]
    fn what_stays_until_its_end_is_right() {
        fair().keeps(&NO_GRANT_LOST);
    }

    #[test]
    fn without_a_log_nothing_is_shown() {
        let mut story = fair();
        story.history.end.changes.clear();
        story.cannot_tell(&NO_GRANT_LOST);
    }

    #[test]
    fn a_grant_that_is_not_in_the_log_is_found() {
        let mut story = fair();
        story.history.end.changes.remove(2);
        story.breaks(&NO_GRANT_LOST, "the log does not have it");
        story.history.end.changes.retain(|change| change.revision.0 > 103);
        story.history.end.changes_after.0 = 103;
        story.keeps(&NO_GRANT_LOST);
    }

    #[test]
    fn a_grant_whose_place_another_change_took_is_found() {
        let mut story = fair();
        story.history.end.changes[2].lease_id = story::id(77);
        story.breaks(&NO_GRANT_LOST, "the log has lease");
    }

    #[test]
    fn a_grant_beyond_all_that_is_left_is_found() {
        let mut story = fair();
        story.acquires(5, "z", 80..90);
        story.history.end.changes.pop();
        story.breaks(&NO_GRANT_LOST, "it is beyond all that there is in the end");
        // The logs may have been read only so far.
        story.end(100, 200).keeps(&NO_GRANT_LOST);
    }

    #[test]
    fn a_view_that_lacks_a_holder_is_found_at_the_end_and_at_any_time() {
        let mut story = fair();
        story.history.end.keys[1].holders.remove(1);
        story.breaks(&NO_GRANT_LOST, "the final view of b at revision 104 lacks token 104");
        let mut story = fair();
        let Came::Key { view } = &mut story.history.calls[1].came else { panic!() };
        view.holders.clear();
        story.breaks(&NO_GRANT_LOST, "of a at revision 101 lacks token 101");
    }

    #[test]
    fn a_view_with_a_holder_that_is_none_is_found() {
        let mut story = fair();
        let mut view = story.view("a");
        view.holders = story.view("c").holders;
        view.holders[0].token = Token(101);
        view.fence = Token(101);
        let seen = story.call(90..91, story::look("a"), Came::Key { view });
        story.breaks(&NO_GRANT_LOST, "lists token 101, which does not live");
        story.history.calls.truncate(seen as usize);
        story.keeps(&NO_GRANT_LOST);
    }

    #[test]
    fn a_later_answer_that_denies_a_grant_is_found() {
        use ProblemKind::{NotGranted, UnknownLease, WaitTimeout};
        for (asked, came, says) in [
            (renew(2), refused(UnknownLease), "later called unknown; by the log it never ended"),
            (renew(2), refused(NotGranted), "later called not granted yet"),
            (acquire(2, "b:s c"), refused(WaitTimeout), "later called waited in vain"),
            (acquire(2, "b:s c"), Came::Waiting { ahead: 0 }, "later called waiting"),
            (renew(2), gone(EndReason::Expired), "later called gone, Expired"),
            (
                renew(1),
                gone(EndReason::Expired),
                "later called gone, Expired; by the log it ended as Released",
            ),
            (renew(1), refused(UnknownLease), "later called unknown; by the log it ended as Released"),
        ] {
            let mut story = fair();
            // What was under way when the grant was told may have come before it.
            story.call(0..11, asked.clone(), refused(UnknownLease));
            story.call(45..55, asked.clone(), refused(UnknownLease));
            if says.contains("never") || says.contains("granted") || says.contains("wait") {
                story.keeps(&NO_GRANT_LOST);
            }
            story.history.calls.truncate(story.history.calls.len() - 2);
            story.call(90..91, asked, came);
            story.breaks(&NO_GRANT_LOST, says);
        }
    }

    #[test]
    fn an_id_may_be_forgotten_after_its_end() {
        let mut story = fair();
        story.call(59_990..60_000, renew(1), refused(ProblemKind::UnknownLease));
        story.keeps(&NO_GRANT_LOST);
        story.call(59_990..59_999, renew(1), refused(ProblemKind::UnknownLease));
        story.breaks(&NO_GRANT_LOST, "later called unknown");
    }

    #[test]
    fn a_release_that_ended_nothing_is_found() {
        let mut story = fair();
        story.call(80..81, release(2), Came::Done);
        story.breaks(&NO_GRANT_LOST, "was ended at 0.081 s, but by the log it never ended");
        let mut story = fair();
        let token = story.token(3);
        story.call(80..81, Asked::Revoke { key: story::key("b"), token }, Came::Done);
        story.breaks(&NO_GRANT_LOST, "was ended at 0.081 s, but by the log it never ended");
        let mut story = fair();
        story.call(80..81, release(2), unknown());
        story.call(80..81, release(3), not_done());
        story.keeps(&NO_GRANT_LOST);
    }

    #[test]
    fn the_dead_who_rise_are_found_without_a_log() {
        let granted = |story: &Story| story.granted(2);
        let token = fair().token(2);
        for (asked, came) in [
            (release(2), Came::Done),
            (renew(2), gone(EndReason::Abandoned)),
            (validate("b", token), verdict(VerdictName::Stale, 1)),
            (validate("c", Token(1)), verdict(VerdictName::Stale, 105)),
        ] {
            let mut story = fair();
            let alive = granted(&story);
            story.history.end.changes.clear();
            story.call(80..90, asked, came);
            story.call(90..91, renew(2), alive.clone());
            let sound = check(&story.history);
            assert!(sound.breaches.is_empty(), "{sound:#?}");
            story.call(91..92, renew(2), alive);
            let found = check(&story.history);
            assert!(found.breaches.iter().any(|breach| breach.what.contains("alive")), "{found:#?}");
        }
    }

    #[test]
    fn a_death_that_the_log_does_not_know_is_found() {
        let mut story = fair();
        let token = story.token(2);
        // Asked before anybody knew of the grant: it may not have been given yet.
        story.call(45..60, validate("b", token), verdict(VerdictName::Stale, 1));
        story.keeps(&NO_GRANT_LOST);
        story.call(80..90, validate("b", token), verdict(VerdictName::Stale, 1));
        story.breaks(&NO_GRANT_LOST, "was over at 0.090 s, but by the log it never ended");
    }

    #[test]
    fn what_was_called_not_done_and_is_done_is_found() {
        let mut story = fair();
        let other = story.granted(3);
        story.call(90..91, renew(4), other);
        story.breaks(&NO_GRANT_LOST, "was done, by their answers, but it lives");
        let mut story = fair();
        story.lease(4, "z");
        story.log(80, 4, ChangeName::Granted, None);
        story
            .end(100, 200)
            .breaks(&NO_GRANT_LOST, "was done, by their answers, but it is Granted at revision 105");
        // One of them is open: it may have been that.
        story.call(75..76, acquire(4, "z"), unknown());
        story.keeps(&NO_GRANT_LOST);
        let mut story = fair();
        story.lease(4, "b");
        story.log(80, 4, ChangeName::Queued, None);
        story.end(100, 200).breaks(&NO_GRANT_LOST, "but it is Queued at revision 105");
    }

    #[test]
    fn a_lease_that_stands_before_anybody_can_have_made_it_is_found() {
        let mut story = fair();
        story.call(80..81, acquire(5, "z"), not_done());
        story.lease(5, "z");
        story.log(80, 5, ChangeName::Granted, None);
        let Came::Granted { grant, mirrored, .. } = story.granted(5) else { panic!() };
        let repeat = story.call(83..84, acquire(5, "z"), Came::Granted { grant, standing: true, mirrored });
        story.end(100, 200).breaks(&NO_GRANT_LOST, "stood already at 0.084 s");
        // It was open, or another was still under way.
        let before = story.history.calls[repeat as usize - 1].clone();
        story.history.calls[repeat as usize - 1].came = unknown();
        story.keeps(&NO_GRANT_LOST);
        story.history.calls[repeat as usize - 1] = before;
        story.call(84..85, acquire(5, "z"), unknown());
        story.keeps(&NO_GRANT_LOST);
    }

    #[test]
    fn a_change_that_was_known_before_its_cause_is_found() {
        let mut story = fair();
        story.call(80..81, release(3), not_done());
        story.log(80, 3, ChangeName::Ended, Some(EndReason::Released));
        let seen = story.looks("a", 82..84) as usize;
        let again = story.call(85..86, release(3), Came::Done);
        story.end(100, 200).breaks(&NO_GRANT_LOST, "which was over at 0.085 s");
        // The look may have seen what this one did.
        story.history.calls[seen].ended_us = story.history.calls[again as usize].sent_us;
        story.keeps(&NO_GRANT_LOST);
        let mut story = fair();
        story.call(80..81, acquire(5, "z"), not_done());
        story.lease(5, "z");
        story.log(80, 5, ChangeName::Granted, None);
        story.looks("a", 82..84);
        let granted = story.granted(5);
        story.call(85..86, acquire(5, "z"), granted);
        story.end(100, 200).breaks(&NO_GRANT_LOST, "which was over at 0.085 s");
    }
}
