//! Tokens and fences only rise.
//!
//! - No two leases have the same token. (That no lease has two is [`super::repeats`].)
//! - Whoever asks for a lease after somebody was told of a token, a view's revision or a fence gets a larger token,
//!   on whatever key: the token is the number of the change.
//! - The fence of a key, as grants, renewals, views and verdicts of the cluster tell it, never falls from one call to a
//!   later one. What a single node says of its own state may lag, but counts for what comes after it.
//! - A lease that is live is not below the fences told with it; one that holds a key alone is the fence. The fence in a
//!   view is its smallest holder or, where nobody holds, the revision + 1.
//! - In the agreed log, revisions rise, a grant's token is its revision, and fences do not fall.

use std::collections::BTreeMap;

use ringfence_wire::{Key, KeyView, ModeName, Token, VerdictName};

use super::lives::{Lives, fence_peaks, fences, is_local, revisions, views};
use super::{Checker, Found};
use crate::history::{Asked, Came, ChangeName, History};

/// Tokens and fences only rise.
pub const TOKENS: Checker = Checker {
    name: "tokens",
    law: "Every grant has a token of its own, larger than all that anybody was told of before it was asked for; fences \
          never fall.",
    check,
};

fn check(history: &History) -> Found {
    let mut found = Found::default();
    let lives = Lives::of(history);
    no_token_is_given_twice(&lives, &mut found);
    later_is_larger(history, &lives, &mut found);
    fences_never_fall(history, &mut found);
    answers_agree_with_themselves(history, &mut found);
    the_log_rises(history, &mut found);
    if lives.by_token.len() < 2 {
        found.undecided = Some("fewer than two leases were granted".to_owned());
    }
    found
}

fn no_token_is_given_twice(lives: &Lives, found: &mut Found) {
    for (lease, life) in &lives.by_id {
        for token in life.tokens() {
            found.saw("tokens");
            let first = lives.by_token[&token];
            if first != *lease {
                let calls = [&first, lease].into_iter().flat_map(|id| &lives.by_id[id].grants);
                let calls = calls.filter(|(_, grant)| grant.token == token).map(|(call, _)| call.id);
                found.breach(format!("leases {first} and {lease} both have token {token}"), calls);
            }
        }
    }
}

fn later_is_larger(history: &History, lives: &Lives, found: &mut Found) {
    let known = revisions(history);
    for (lease, life) in &lives.by_id {
        let Some(sent_us) = life.first_sent_us() else { continue };
        let Some((number, call)) = known.before(sent_us) else { continue };
        for token in life.tokens() {
            found.saw("tokens compared with what was known before");
            if token.0 <= number {
                let by = life.grants.iter().map(|(call, _)| call.id).next();
                found.breach(
                    format!(
                        "lease {lease} has token {token}, but revision {number} was known before it was asked for"
                    ),
                    [call].into_iter().chain(by),
                );
            }
        }
    }
}

fn fences_never_fall(history: &History, found: &mut Found) {
    let peaks = fence_peaks(history);
    for call in history.calls.iter().filter(|call| !is_local(call)) {
        for (key, fence) in fences(call) {
            found.saw("fences");
            if let Some((higher, by)) = peaks[key].before(call.sent_us)
                && higher > fence.0
            {
                found.breach(format!("the fence of {key} fell from {higher} to {fence}"), [by, call.id]);
            }
        }
    }
}

fn answers_agree_with_themselves(history: &History, found: &mut Found) {
    for call in &history.calls {
        match (&call.came, &call.asked) {
            (Came::Granted { grant, .. }, _) => {
                for held in &grant.keys {
                    let alone = held.mode == ModeName::Exclusive;
                    if held.fence > grant.token || alone && held.fence < grant.token {
                        let what = format!(
                            "token {} was told with the fence {} of {}",
                            grant.token, held.fence, held.key
                        );
                        found.breach(what, [call.id]);
                    }
                }
            }
            (Came::Verdict { verdict }, Asked::Validate { key, token, .. })
                if verdict.verdict == VerdictName::Live && *token < verdict.fence =>
            {
                let what =
                    format!("token {token} was called live below the fence {} of {key}", verdict.fence);
                found.breach(what, [call.id]);
            }
            _ => {}
        }
    }
    for (call, view) in views(history) {
        found.saw("views");
        if let Some(what) = disagrees(view) {
            found.breach(what, call.map(|call| call.id));
        }
    }
}

fn disagrees(view: &KeyView) -> Option<String> {
    let KeyView { key, fence, revision, .. } = view;
    let smallest = view.holders.iter().map(|holder| holder.token).min();
    let right = smallest.unwrap_or(Token(revision.next().0));
    let largest = view.holders.iter().map(|holder| holder.token.0).max().unwrap_or(0);
    if *fence != right {
        Some(format!("a view of {key} at revision {revision} has fence {fence}, and should have {right}"))
    } else if largest > revision.0 {
        Some(format!("a view of {key} at revision {revision} has a holder with token {largest}"))
    } else {
        None
    }
}

fn the_log_rises(history: &History, found: &mut Found) {
    let mut last = history.end.changes_after;
    let mut peaks: BTreeMap<&Key, Token> = BTreeMap::new();
    for change in &history.end.changes {
        found.saw("changes");
        let (revision, lease) = (change.revision, change.lease_id);
        if revision <= last {
            found.breach(format!("change {revision} of lease {lease} follows change {last} in the log"), []);
        }
        last = last.max(revision);
        if change.change == ChangeName::Granted && change.token != Some(revision.into()) {
            let token = change.token.map_or("none".to_owned(), |token| token.to_string());
            found.breach(format!("the grant of lease {lease} is change {revision}, its token {token}"), []);
        }
        for changed in &change.keys {
            let (key, fence) = (&changed.key, changed.fence);
            let peak = peaks.entry(key).or_insert(fence);
            if fence < *peak {
                let what =
                    format!("in the log, the fence of {key} fell from {peak} to {fence} at {revision}");
                found.breach(what, []);
            } else if fence.0 > revision.next().0 {
                found.breach(format!("in the log, the fence of {key} is {fence} at revision {revision}"), []);
            }
            *peak = fence.max(*peak);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use ringfence_wire::{Revision, Token};

    use super::super::story::{self, Story, renew, validate, verdict};
    use super::*;

    /// Two leases after each other, two beside each other.
    fn four() -> Story {
        let mut story = Story::new();
        story.acquires(1, "a", 0..10);
        let fence = story.token(1).0;
        story.call(11..12, validate("a", Token(fence)), verdict(VerdictName::Live, fence));
        story.releases(1, 20..30);
        story.acquires(2, "a b", 40..50);
        story.acquires(3, "c:s", 60..70);
        story.acquires(4, "c:s", 60..80);
        story.looks("c", 81..82);
        let granted = story.granted(4);
        story.call(83..84, renew(4), granted);
        story.end(100, 200);
        story
    }

    #[test]
    fn tokens_and_fences_that_rise_are_right() {
        four().keeps(&TOKENS);
    }

    #[test]
    fn a_single_grant_shows_nothing() {
        let mut story = Story::new();
        story.acquires(1, "a", 0..10);
        story.end(1, 2).cannot_tell(&TOKENS);
    }

    #[test]
    fn two_leases_with_one_token_are_found() {
        let mut story = four();
        let mut other = story.grant(4);
        other.token = story.token(3);
        story.history.calls.retain(
            |call| !matches!(&call.came, Came::Granted { grant, .. } if grant.lease_id == other.lease_id),
        );
        story.history.end.changes.clear();
        let came = Came::Granted { grant: other, standing: false, mirrored: None };
        story.call(60..80, story::acquire(4, "c:s"), came);
        story.breaks(&TOKENS, "both have token 104");
    }

    #[test]
    fn a_token_below_what_was_known_is_found_on_any_key() {
        let mut story = four();
        story.acquires(5, "z", 300..310);
        let Came::Granted { grant, .. } = &mut story.history.calls.last_mut().unwrap().came else { panic!() };
        grant.token = Token(50);
        grant.keys[0].fence = Token(50);
        story.breaks(&TOKENS, "has token 50, but revision");
    }

    #[test]
    fn what_is_under_way_at_the_same_time_may_be_in_any_order() {
        let mut story = Story::new();
        story.acquires(1, "a", 0..10);
        story.acquires(2, "b", 0..10);
        // The larger token is answered before the smaller one's request has ended, and both were sent by then.
        story.history.calls[0].ended_us = 90_000;
        story.history.calls[1].sent_us = 9_000;
        story.end(100, 200).keeps(&TOKENS);
    }

    #[test]
    fn a_fence_that_falls_is_found_but_one_node_alone_may_lag() {
        let mut story = four();
        story.looks("a", 90..91);
        let lagging = story::key("b");
        let mut view = story.view("b");
        (view.fence, view.revision) = (Token(103), Revision(102));
        view.holders.clear();
        let asked = Asked::Key { key: lagging, local: true };
        story.call(92..93, asked.clone(), Came::Key { view: view.clone() });
        story.keeps(&TOKENS);
        story.call(94..95, story::look("b"), Came::Key { view });
        // The holder of b was told 103 as well: that is no fall. One less is.
        story.keeps(&TOKENS);
        let mut view = story.view("b");
        (view.fence, view.revision) = (Token(102), Revision(101));
        view.holders.clear();
        story.call(96..97, story::look("b"), Came::Key { view });
        story.breaks(&TOKENS, "the fence of b fell from 103 to 102");
    }

    #[test]
    fn an_answer_that_contradicts_itself_is_found() {
        let mut story = four();
        let mut grant = story.grant(4);
        grant.keys[0].fence = Token(999);
        let odd = story.call(90..91, renew(4), Came::Granted { grant, standing: true, mirrored: None });
        story.breaks(&TOKENS, "was told with the fence 999");
        story.history.calls.truncate(odd as usize);
        story.call(90..91, validate("a", Token(101)), verdict(VerdictName::Live, 103));
        story.breaks(&TOKENS, "called live below the fence");
        let mut story = four();
        story.history.end.keys[0].fence.0 += 1;
        story.breaks(&TOKENS, "and should have");
        let mut story = four();
        story.history.end.keys[0].revision = Revision(1);
        story.breaks(&TOKENS, "has a holder with token");
    }

    #[test]
    fn a_log_that_does_not_rise_is_found() {
        let mut story = four();
        story.history.end.changes.swap(1, 2);
        story.breaks(&TOKENS, "follows change");
        let mut story = four();
        story.history.end.changes[0].token = Some(Token(7));
        story.breaks(&TOKENS, "its token 7");
        let mut story = four();
        story.history.end.changes[2].keys[0].fence = Token(1);
        story.breaks(&TOKENS, "in the log, the fence of a fell");
        let mut story = four();
        story.history.end.changes[1].keys[0].fence = Token(900);
        story.breaks(&TOKENS, "in the log, the fence of a is 900");
    }
}
