//! Who holds a key together is compatible: one alone, or all shared and within the smallest of their limits.
//!
//! A lease holds from its token on, in revisions. How long it surely held is told by three witnesses, each enough for
//! itself: the agreed log, which has its end; the last call that was told it lives, which came after all that anybody knew
//! when the call was sent; and any single view, which lists its holders of one instant.
//!
//! Times do not count here: a lease is live until a change ends it, however late, and that it does not end early is a
//! law of its own.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_wire::{Key, Mode, Token, VerdictName};

use super::lives::{Lives, Peaks, is_local, mode, revisions, views};
use super::tally::Tally;
use super::{Checker, Found};
use crate::history::{Asked, Call, Came, History};

/// Live holders of a key are always compatible.
pub const EXCLUSION: Checker = Checker {
    name: "exclusion",
    law: "Leases that hold a key at the same time are compatible: one alone, or shared and within the smallest limit.",
    check,
};

/// A lease holds a key from its token up to this revision at least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Hold {
    token: Token,
    to: u64,
    /// The calls that tell of its grant and of its life, if calls do.
    calls: [Option<u64>; 2],
}

type Holds<'a> = BTreeMap<&'a Key, Vec<(Hold, Mode)>>;

fn check(history: &History) -> Found {
    let mut found = Found::default();
    let lives = Lives::of(history);
    let logged = logged(&lives);
    let told = told(history, &lives);
    let mut grants: BTreeMap<&Key, BTreeSet<Token>> = BTreeMap::new();
    for (key, holds) in logged.iter().chain(&told) {
        grants.entry(key).or_default().extend(holds.iter().map(|(hold, _)| hold.token));
    }
    sweep(logged, "the log says so", &mut found);
    sweep(told, "their clients were told so", &mut found);
    for (call, view) in views(history) {
        found.saw("views");
        let mut tally = Tally::default();
        view.holders.iter().for_each(|holder| tally.add(mode(holder.mode, holder.limit)));
        if !tally.is_compatible() {
            let tokens: Vec<u64> = view.holders.iter().map(|holder| holder.token.0).collect();
            let what =
                format!("a view of {} at revision {} lists holders {tokens:?}", view.key, view.revision);
            found.breach(what, call.map(|call| call.id));
        }
    }
    if grants.values().all(|tokens| tokens.len() < 2) {
        found.undecided = Some("no key was granted twice".to_owned());
    }
    found
}

/// From grant to end, as the log has them.
fn logged<'a>(lives: &Lives<'a>) -> Holds<'a> {
    let mut holds = Holds::new();
    for life in lives.by_id.values() {
        for token in life.tokens() {
            let Some(granted) = life.granted(token) else { continue };
            let to = life.ended(token).map_or(u64::MAX, |ended| ended.revision.0 - 1);
            for changed in &granted.keys {
                let hold = Hold { token, to, calls: [None; 2] };
                holds.entry(&changed.key).or_default().push((hold, changed.mode));
            }
        }
    }
    holds
}

/// From grant to the last sign of life, as calls were told.
fn told<'a>(history: &'a History, lives: &Lives<'a>) -> Holds<'a> {
    let known = revisions(history);
    let mut signs: BTreeMap<Token, (u64, Option<u64>)> = BTreeMap::new();
    let mut sign = |token: Token, revision: u64, call: Option<u64>| {
        let last = signs.entry(token).or_insert((token.0, call));
        *last = (*last).max((revision, call));
    };
    for call in &history.calls {
        match (&call.came, &call.asked) {
            (Came::Granted { grant, .. }, _) => sign(grant.token, since(&known, call), Some(call.id)),
            (Came::Verdict { verdict }, Asked::Validate { token, .. })
                if verdict.verdict == VerdictName::Live && lives.by_token.contains_key(token) =>
            {
                sign(*token, since(&known, call), Some(call.id));
            }
            _ => {}
        }
    }
    for (call, view) in views(history) {
        for holder in &view.holders {
            sign(holder.token, view.revision.0, call.map(|call| call.id));
        }
    }
    let mut holds = Holds::new();
    for (token, (to, by)) in signs {
        let Some(life) = lives.with_token(token) else { continue };
        let granted = life.grants.iter().find(|(_, grant)| grant.token == token).map(|(call, _)| call.id);
        for (key, mode) in life.holds(token) {
            let hold = Hold { token, to: to.max(token.0), calls: [granted, by] };
            holds.entry(key).or_default().push((hold, mode));
        }
    }
    holds
}

/// The revision that the state surely had reached when this call was answered from it.
fn since(known: &Peaks, call: &Call) -> u64 {
    if is_local(call) { 0 } else { known.before(call.sent_us).map_or(0, |(revision, _)| revision) }
}

/// Goes through the grants of each key, with those that still hold then.
fn sweep(holds: Holds, why: &str, found: &mut Found) {
    for (key, mut holds) in holds {
        holds.sort_unstable_by_key(|(hold, _)| *hold);
        let mut live: BTreeMap<(u64, Token), (Hold, Mode)> = BTreeMap::new();
        let mut tally = Tally::default();
        for (hold, mode) in holds {
            found.saw("grants of a key");
            while let Some(first) = live.first_entry()
                && first.key().0 < hold.token.0
            {
                tally.remove(first.remove().1);
            }
            if !tally.bears(mode) {
                let others: Vec<u64> = live.keys().map(|(_, token)| token.0).collect();
                let what = format!("token {} was granted {key} while {others:?} held it: {why}", hold.token);
                let calls = live.values().flat_map(|(other, _)| other.calls).chain(hold.calls);
                found.breach(what, calls.flatten().collect::<BTreeSet<_>>());
            } else if !live.is_empty() {
                found.saw("grants beside others");
            }
            tally.add(mode);
            live.insert((hold.to, hold.token), (hold, mode));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::super::story::{Story, look, renew, validate, verdict};
    use super::*;

    /// Alone after each other, and two beside each other within their limit.
    fn fair() -> Story {
        let mut story = Story::new();
        story.acquires(1, "a", 0..10);
        story.releases(1, 20..30);
        story.acquires(2, "a b", 40..50);
        story.acquires(3, "c:2", 60..70);
        story.acquires(4, "c:s", 60..70);
        story.looks("c", 80..81);
        story.end(100, 200);
        story
    }

    #[test]
    fn compatible_holders_are_right() {
        fair().keeps(&EXCLUSION);
    }

    #[test]
    fn keys_that_are_granted_once_show_nothing() {
        let mut story = Story::new();
        story.acquires(1, "a", 0..10);
        story.acquires(2, "b", 0..10);
        story.end(1, 2).cannot_tell(&EXCLUSION);
    }

    #[test]
    fn a_grant_beside_another_is_found_in_the_log() {
        for words in ["c:s", "c:9", "c", "b", "x b", "a:s"] {
            let mut story = fair();
            story.acquires(5, words, 90..91);
            story.history.calls.clear();
            story.history.end.keys.clear();
            story.breaks(&EXCLUSION, "the log says so");
        }
    }

    #[test]
    fn a_grant_beside_another_is_found_without_a_log() {
        let mut story = fair();
        story.acquires(5, "b", 90..91);
        let granted = story.granted(2);
        story.history.end.changes.clear();
        story.history.end.keys.clear();
        // The other was told of its life before it knew of this one: it may have ended between.
        story.keeps(&EXCLUSION);
        story.call(91..95, renew(2), granted.clone());
        story.keeps(&EXCLUSION);
        story.call(92..95, renew(2), granted);
        story.breaks(&EXCLUSION, "while [103] held it: their clients were told so");
    }

    #[test]
    fn a_verdict_is_a_sign_of_life() {
        let mut story = fair();
        story.acquires(5, "b", 90..91);
        story.history.end.changes.clear();
        story.history.end.keys.clear();
        let token = story.token(2);
        story.call(92..95, validate("b", token), verdict(VerdictName::Live, token.0));
        story.breaks(&EXCLUSION, "their clients were told so");
    }

    #[test]
    fn a_view_with_too_many_holders_is_found() {
        let mut story = fair();
        let mut view = story.view("c");
        view.holders[0].limit = std::num::NonZeroU32::new(1);
        story.history.end.changes.clear();
        let seen = story.call(90..91, look("c"), Came::Key { view });
        story.breaks(&EXCLUSION, "lists holders [104, 105]");
        story.history.calls.truncate(seen as usize);
        story.keeps(&EXCLUSION);
    }
}
