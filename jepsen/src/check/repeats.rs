//! A repeat is harmless: whatever is repeated, through whichever node, one lease_id is one grant.
//!
//! The contract lets an id be granted anew once it is forgotten, 60 s of cluster time after its end; clients are told to stop
//! long before. Where the log tells both, it is asked; otherwise two tokens are a breach only if less than 60 s passed
//! between the first request and the last answer, for cluster time is never faster than real time.

use std::collections::{BTreeMap, BTreeSet};

use super::lives::{Life, Lives, REMEMBERED_MS, at, did_nothing};
use super::{Checker, Found};
use crate::history::{Asked, Call, Came, ChangeName, History};

/// One lease_id, one token.
pub const ONE_GRANT_PER_LEASE: Checker = Checker {
    name: "one-grant-per-lease",
    law: "A lease_id is granted at most once, however often and wherever its acquire is repeated; a release that came \
          first keeps it from being granted at all.",
    check,
};

fn check(history: &History) -> Found {
    let mut found = Found::default();
    for (lease, life) in &Lives::of(history).by_id {
        let name = lease.to_string();
        if life.acquires().filter(|acquire| !did_nothing(acquire.call)).count() > 1 {
            found.saw("leases asked for again");
        }
        for (call, grant) in &life.grants {
            found.saw("grants answered");
            if grant.lease_id != *lease {
                found.breach(
                    format!("asked of lease {lease}, the answer is of {}", grant.lease_id),
                    [call.id],
                );
            }
        }
        one_token(&name, life, &mut found);
        one_place_in_the_log(&name, life, &mut found);
        one_created(&name, life, &mut found);
        none_after_a_release(&name, life, &mut found);
    }
    if !found.counts.contains_key("leases asked for again") {
        found.undecided = Some("no acquire was repeated".to_owned());
    }
    found
}

/// As answers tell it.
fn one_token(name: &str, life: &Life, found: &mut Found) {
    let tokens: BTreeSet<u64> = life.grants.iter().map(|(_, grant)| grant.token.0).collect();
    let Some((first_us, last_us)) = span(life) else { return };
    if tokens.len() > 1 && last_us < first_us + REMEMBERED_MS * 1_000 {
        let what = format!("lease {name} was granted more than once: tokens {tokens:?}");
        found.breach(what, life.grants.iter().map(|(call, _)| call.id));
    }
}

/// From the first acquire to the last answer with a grant.
fn span(life: &Life) -> Option<(u64, u64)> {
    let last_us = life.grants.iter().map(|(call, _)| call.ended_us).max()?;
    Some((life.first_sent_us()?, last_us))
}

/// In the log a lease goes on from nothing to its place or its grant, from its place to its grant or out, from its grant to
/// its end, and from there nowhere while it is remembered.
fn one_place_in_the_log(name: &str, life: &Life, found: &mut Found) {
    for pair in life.changes.windows(2) {
        let (one, other) = (pair[0], pair[1]);
        let begins = matches!(other.change, ChangeName::Granted | ChangeName::Queued);
        let over = matches!(one.change, ChangeName::Ended | ChangeName::Left);
        let wrong = match (one.change, other.change) {
            _ if over && begins => other.at_ms <= one.at_ms.saturating_add(REMEMBERED_MS),
            (ChangeName::Queued, ChangeName::Granted | ChangeName::Left)
            | (ChangeName::Granted, ChangeName::Ended) => false,
            _ => true,
        };
        if wrong {
            let what = format!(
                "in the log, lease {name} is {:?} at revision {} and then {:?} at {}",
                one.change, one.revision, other.change, other.revision
            );
            found.breach(what, life.calls.iter().map(|call| call.id));
        }
    }
}

/// 201 says that it is granted now: not to a request that was sent when somebody had been told of that grant.
fn one_created(name: &str, life: &Life, found: &mut Found) {
    let mut first: BTreeMap<_, &Call> = BTreeMap::new();
    for (call, grant) in &life.grants {
        let earliest = first.entry(grant.token).or_insert(call);
        if call.ended_us < earliest.ended_us {
            *earliest = call;
        }
    }
    for (call, grant) in &life.grants {
        let created = matches!(
            (&call.asked, &call.came),
            (Asked::Acquire { .. }, Came::Granted { standing: false, .. })
        );
        let before = first[&grant.token];
        if created && before.ended_us < call.sent_us {
            let what =
                format!("lease {name} was answered as granted now, but its token {} was known", grant.token);
            found.breach(what, [before.id, call.id]);
        }
    }
}

/// A DELETE is remembered, for an id never seen as well.
fn none_after_a_release(name: &str, life: &Life, found: &mut Found) {
    let released = |call: &&&Call| matches!((&call.asked, &call.came), (Asked::Release { .. }, Came::Done));
    let Some(release) = life.calls.iter().filter(released).min_by_key(|call| call.ended_us) else { return };
    found.saw("releases");
    for (call, grant) in &life.grants {
        let asked = matches!(call.asked, Asked::Acquire { .. }) && call.sent_us > release.ended_us;
        if asked && call.ended_us < release.sent_us + REMEMBERED_MS * 1_000 {
            let what = format!(
                "lease {name} was released by {}, and an acquire sent after that was granted with token {}",
                at(release.ended_us),
                grant.token
            );
            found.breach(what, [release.id, call.id]);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::super::story::{Story, acquire, release, renew, unknown};
    use super::*;

    /// An acquire whose answer was lost, its repeat, a renewal and a release.
    fn repeated() -> Story {
        let mut story = Story::new();
        story.lease(1, "a");
        story.log(5, 1, ChangeName::Granted, None);
        story.call(0..10, acquire(1, "a"), unknown());
        let Came::Granted { grant, .. } = story.granted(1) else { panic!() };
        let again = Came::Granted { grant, standing: true, mirrored: None };
        story.call(11..20, acquire(1, "a"), again.clone());
        story.call(21..30, renew(1), again);
        story.releases(1, 40..50);
        story.end(100, 200);
        story
    }

    #[test]
    fn a_repeat_that_is_told_the_same_is_right() {
        repeated().keeps(&ONE_GRANT_PER_LEASE);
    }

    #[test]
    fn without_a_repeat_nothing_is_shown() {
        let mut story = Story::new();
        story.acquires(1, "a", 0..10);
        story.end(1, 2).cannot_tell(&ONE_GRANT_PER_LEASE);
    }

    #[test]
    fn a_second_token_is_found_unless_the_lease_was_forgotten() {
        let mut story = repeated();
        story.history.end.changes.clear();
        let mut grant = story.grant(1);
        grant.token.0 += 9;
        let twice = Came::Granted { grant, standing: false, mirrored: None };
        story.call(59_998..59_999, acquire(1, "a"), twice.clone());
        story.breaks(&ONE_GRANT_PER_LEASE, "granted more than once");
        story.history.calls.pop();
        story.call(70_000..70_001, acquire(1, "a"), twice);
        story.keeps(&ONE_GRANT_PER_LEASE);
    }

    #[test]
    fn a_second_life_is_found_in_the_log() {
        for (at_ms, what) in [(60_040, ChangeName::Granted), (60_040, ChangeName::Queued)] {
            let mut story = repeated();
            story.log(at_ms, 1, what, None);
            story.breaks(&ONE_GRANT_PER_LEASE, "is Ended at revision 102 and then");
            story.history.end.changes.last_mut().unwrap().at_ms += 1;
            story.keeps(&ONE_GRANT_PER_LEASE);
        }
        let mut story = Story::new();
        story.lease(1, "a");
        story.log(1, 1, ChangeName::Granted, None);
        story.log(1, 1, ChangeName::Granted, None);
        story.breaks(&ONE_GRANT_PER_LEASE, "is Granted at revision 101 and then Granted at 102");
    }

    #[test]
    fn a_repeat_that_is_told_of_a_new_grant_is_found() {
        let mut story = repeated();
        let Came::Granted { grant, .. } = story.history.calls[1].came.clone() else { panic!() };
        let created = Came::Granted { grant, standing: false, mirrored: None };
        let together = story.call(15..25, acquire(1, "a"), created.clone());
        story.keeps(&ONE_GRANT_PER_LEASE);
        story.history.calls.truncate(together as usize);
        story.call(21..25, acquire(1, "a"), created);
        story.breaks(&ONE_GRANT_PER_LEASE, "answered as granted now");
    }

    #[test]
    fn an_answer_about_another_lease_is_found() {
        let mut story = repeated();
        story.acquires(2, "b", 60..61);
        let other = story.granted(2);
        story.call(62..63, renew(1), other);
        story.breaks(&ONE_GRANT_PER_LEASE, "the answer is of");
    }

    #[test]
    fn a_grant_after_a_release_is_found_for_an_id_never_seen() {
        let mut story = repeated();
        story.call(300..310, release(2), Came::Done);
        story.acquires(2, "b", 305..320);
        story.keeps(&ONE_GRANT_PER_LEASE);
        story.call(300..310, release(3), Came::Done);
        story.acquires(3, "b", 311..320);
        story.breaks(&ONE_GRANT_PER_LEASE, "an acquire sent after that was granted");
    }
}
