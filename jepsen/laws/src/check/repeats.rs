//! A repeat is harmless: whatever is repeated, through whichever node, one lease_id is one grant.
//!
//! The contract lets an id be granted anew once it is forgotten, 60 s of cluster time after its end; clients are told to stop
//! long before. The log is judged by its own times. Answers are a breach only if less than 60 s passed between the first
//! request and the last answer, for cluster time is never faster than real time.

use super::facts::{Facts, Life, at};
use super::log::REMEMBERED_MS;
use super::{Checker, Found};
use crate::history::{Conclusion, Invocation};

/// One lease_id, one token.
pub const ONE_GRANT_PER_LEASE: Checker = Checker {
    name: "one-grant-per-lease",
    law: "A lease_id is granted at most once, however often and wherever its acquire is repeated; a release that came \
          first keeps it from being granted at all.",
    check,
};

fn check(facts: &Facts) -> Found {
    let mut found = facts.log.repeats.clone();
    for (lease, life) in &facts.lives {
        let name = lease.to_string();
        if life.possible_acquires().count() > 1 {
            found.saw("leases asked for again");
        }
        for (call, grant) in life.grants.iter().filter(|(_, grant)| grant.lease_id != *lease) {
            found.breach(format!("asked of lease {lease}, the answer is of {}", grant.lease_id), [call.id]);
        }
        one_token(&name, life, &mut found);
        one_created(&name, life, &mut found);
        none_after_a_release(&name, life, &mut found);
    }
    found.needs(&["leases asked for again"], "no acquire was repeated");
    found
}

fn one_token(name: &str, life: &Life, found: &mut Found) {
    let Some((_, first)) = life.grants.first() else { return };
    let last_us = life.grants.iter().map(|(call, _)| call.ended_us).max().unwrap_or(0);
    if life.is_remembered(last_us) && life.grants.iter().any(|(_, grant)| grant.token != first.token) {
        let tokens: Vec<u64> = life.grants.iter().map(|(_, grant)| grant.token.0).collect();
        let calls = life.grants.iter().map(|(call, _)| call.id);
        found.breach(format!("lease {name} was granted more than once: tokens {tokens:?}"), calls);
    }
}

/// 201 says that it is granted now: not to a request that was sent when somebody had been told of that grant.
fn one_created(name: &str, life: &Life, found: &mut Found) {
    for (call, grant) in &life.grants {
        let created = matches!(
            (&call.invocation, &call.conclusion),
            (Invocation::Acquire { .. }, Conclusion::Granted { standing: false, .. })
        );
        let mut told = life.grants.iter().filter(|(_, other)| other.token == grant.token);
        let before = told.find(|(other, _)| created && other.ended_us < call.sent_us);
        if let Some((before, _)) = before {
            let what =
                format!("lease {name} was answered as granted now, but its token {} was known", grant.token);
            found.breach(what, [before.id, call.id]);
        }
    }
}

/// A DELETE is remembered, for an id never seen as well.
fn none_after_a_release(name: &str, life: &Life, found: &mut Found) {
    let released = life.releases().filter(|call| call.conclusion == Conclusion::Done);
    let Some(release) = released.min_by_key(|call| call.ended_us) else { return };
    found.saw("releases");
    for (call, grant) in &life.grants {
        let is_later =
            matches!(call.invocation, Invocation::Acquire { .. }) && call.sent_us > release.ended_us;
        if is_later && call.ended_us < release.sent_us + REMEMBERED_MS * 1_000 {
            let what = format!(
                "lease {name} was released by {}, and an acquire sent after that was granted with token {}",
                at(release.ended_us),
                grant.token
            );
            found.breach(what, [release.id, call.id]);
        }
    }
}
